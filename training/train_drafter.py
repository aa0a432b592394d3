"""Train the drafter against the frozen target: `python train_drafter.py DATA_FOLDER TARGET.safetensors TEXTS OUT`.

TEXTS holds own_*.npy and tests.npz (own.py). Half of each batch is text, half the target's own samples at temperature
1. The loss is 0.1 cross entropy + 0.9 total variation + 1.0 confidence, position weights exp(-k / 4). With two
processes (pace.py) the second one trains a drafter without a Markov head on the same batches, for the comparison;
`--role` says which one a single process trains. Writes ROLE.safetensors, ROLE.json and rounds_ROLE.npz: for
continuations of held-out prompts (prompts.py) at T = 1, 0.7 and 0, the probability that each draft of a block is
accepted, for a block at every position. evaluate.py makes the tables of it.
"""

from __future__ import annotations

import argparse
import json
import time
import zipfile
from pathlib import Path
from typing import Any

import data
import inputs
import numpy as np
import pace
import quantise
import sinkhorn
import torch
import torch.nn.functional as F
from drafter import Drafter
from model import CONFIG, Target, compiled, halved, plain_again
from optim import Optimiser, factor
from torch import Tensor
from train_target import windows

LAMBDA = 4.0
PROMPT = 64  # tokens of text that an own sample goes on from


def target_rows(target: Target, hidden: Tensor, anchors: Tensor) -> Tensor:
    """The target's logits [B, N, g, V] after the anchor and after each but the last draft of its block."""
    g = target.config["dspark_block_size"]
    at = (anchors[..., None] + torch.arange(g, device=anchors.device)).flatten(1)
    rows = hidden.gather(1, at[..., None].expand(-1, -1, hidden.shape[-1]))
    return target.head(rows).float().unflatten(1, (-1, g))


def losses(z: Tensor, p_logits: Tensor, confidence: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """z, p_logits [B, N, g, V], confidence logits and labels [B, N, g] -> loss, mean overlap of p and q by slot [g]"""
    g = z.shape[2]
    w = torch.exp(-torch.arange(g, device=z.device) / LAMBDA)
    w = w / w.sum()
    log_q, p = F.log_softmax(z, -1), F.softmax(p_logits, -1)
    ce = -log_q.gather(-1, labels[..., None])[..., 0]
    distance = (log_q.exp() - p).abs().sum(-1)
    overlap = (1 - 0.5 * distance).detach()
    bce = F.binary_cross_entropy_with_logits(confidence, overlap.clamp(0, 1), reduction="none")
    each = (0.1 * ce + 0.9 * distance + bce).mean((0, 1))
    return (each * w).sum(), overlap.mean((0, 1))


@torch.no_grad()
def rounds(
    target: Target, drafters: dict[str, tuple[Drafter, bool]], tokens: Tensor, t: Tensor, first: int
) -> dict[str, Tensor]:
    """tokens [B, S] drawn from the target at temperatures t [B]; a block at every anchor from `first` on.

    -> for each drafter `accept.NAME` [B, N, g], the probability that the draft of a slot is accepted, given the text
    and that those before it were; `confidence.NAME` logits, and `overlap.NAME` of p and q.
    Given that the token at a position is x ~ p, stochastic verification has accepted it with probability
    min(p(x), q(x)) / p(x): so one pass over the emitted text says what every possible round would have done.
    """
    g, s = target.config["dspark_block_size"], tokens.shape[1]
    anchors = torch.arange(first, s - g, device=tokens.device)[None].expand(len(tokens), -1)
    out = target(tokens, select=True)
    heat = t.clamp_min(1e-3)[:, None, None, None]
    greedy = (t == 0)[:, None, None]
    p_logits = target_rows(target, out["hidden"], anchors)
    p = F.softmax(p_logits / heat, -1)
    at = (anchors[..., None] + 1 + torch.arange(g, device=tokens.device)).flatten(1)
    labels = tokens.gather(1, at).unflatten(1, (-1, g))
    p_x = p.gather(-1, labels[..., None])[..., 0]
    result = {}
    for name, (drafter, markov) in drafters.items():
        h, confidence = drafter(out["taps"], tokens, anchors, target.embed)
        z = drafter.logits(h, tokens, anchors, target.head, markov)
        q = F.softmax(z / heat, -1)
        ratio = (q.gather(-1, labels[..., None])[..., 0] / p_x.clamp_min(1e-12)).clamp(max=1)
        result[f"accept.{name}"] = torch.where(greedy, (z.argmax(-1) == labels).float(), ratio)
        if markov:
            result[f"confidence.{name}"] = confidence
    return {name: value.half().cpu() for name, value in result.items()}


def load_target(path: Path, device: str) -> Target:
    target = Target(CONFIG)
    quantise.fill(target, path)
    return halved(target.to(device))


def measured_on(path: Path) -> tuple[Tensor, Tensor, int]:
    """What own.py --tests wrote: tokens, temperatures, the first anchor."""
    try:
        with np.load(inputs.file(path, "own.py --tests")) as tests:
            tokens, heats = torch.from_numpy(tests["tokens"].astype("int64")), torch.from_numpy(tests["temperature"])
            return tokens, heats, int(tests["first"])
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
        inputs.stop(f"{path} is not what own.py --tests writes, or not all of it; run it again")


def stored(drafter: Drafter, path: Path, device: str) -> Drafter:
    quantise.write(path, quantise.official_drafter(drafter.state_dict()))
    back = Drafter(CONFIG)
    back.load_state_dict(quantise.drafter_state(quantise.read(path)))
    return halved(back.to(device))


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("folder", type=Path)
    ap.add_argument("target", type=Path)
    ap.add_argument("texts", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--seconds", type=float, default=400, help="until the weights are written; measuring follows")
    ap.add_argument("--steps", type=int, default=0, help="so many instead of --seconds: equal runs on one device")
    ap.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda where there is one")
    ap.add_argument("--role", choices=["dspark", "no_markov"], help="default: by the process")
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--anchors", type=int, default=128)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--muon", type=float, default=0.02)
    ap.add_argument("--adam", type=float, default=0.003)
    ap.add_argument("--decay", type=float, default=0.6)
    ap.add_argument("--quantise-from", type=float, default=0.5)
    ap.add_argument("--wait", type=float, default=120, help="seconds to wait for the texts")
    ap.add_argument("--warm", action="store_true", help="compile for these shapes, with random weights, and stop")
    ap.add_argument("--eager", action="store_true", help="without torch.compile (which needs a C++ compiler)")
    ap.add_argument("--no-graph", action="store_true", help="without CUDA graphs")
    ap.add_argument("--texts-a-pass", type=int, default=16, help="of those it is measured on")
    args = ap.parse_args()
    began = time.perf_counter()
    if not args.warm:
        inputs.weights(args.target, "train_target.py")
        stream = data.load(args.folder / "train.npy.xz")
        if len(stream) < args.length + 1:
            inputs.stop(f"{args.folder}/train.npy.xz has {len(stream)} tokens, less than a window of {args.length}")
    args.out.mkdir(parents=True, exist_ok=True)
    device, _ = pace.start(nccl=False, asked=args.device)
    role = args.role or ("dspark", "no_markov")[pace.RANK]
    kind, graph, markov = device[:4].rstrip(":"), device != "cpu" and not args.no_graph, role == "dspark"
    if device != "cpu":
        sinkhorn.check(device)
    g, half = CONFIG["dspark_block_size"], args.batch // 2
    torch.manual_seed(2)
    target = halved(Target(CONFIG).to(device)) if args.warm else load_target(args.target, device)
    drafter = Drafter(CONFIG).to(device)
    optimiser = Optimiser(drafter, args.muon, args.adam, ("hc_", "attn_sink"), 1 + g)
    measure = losses
    if not args.eager:
        compiled(target.layers)
        drafter.attend = torch.compile(drafter.attend, dynamic=False)
        for stage in drafter.stages:
            stage.ffn.compile(dynamic=False)
        measure = torch.compile(losses, dynamic=False)
    tokens = torch.randint(3, 4096, (args.batch, args.length), device=device)
    anchors = torch.randint(1, args.length - g, (args.batch, args.anchors), device=device)

    def gradients(quantised: bool) -> None:
        with torch.no_grad():
            out = target(tokens, select=True)
            p_logits = target_rows(target, out["hidden"], anchors)
            at = (anchors[..., None] + 1 + torch.arange(g, device=device)).flatten(1)
            labels = tokens.gather(1, at).unflatten(1, (-1, g))
        with torch.autocast(kind, dtype=torch.bfloat16):
            fake = quantise.fake_fp4 if quantised else None
            h, confidence = drafter(out["taps"], tokens, anchors, target.embed, fake)
            z = drafter.logits(h, tokens, anchors, target.head, markov=markov)
        loss, overlap = measure(z, p_logits, confidence, labels)
        optimiser.differentiate(loss)
        optimiser.report([loss, overlap])

    def update() -> None:
        optimiser.step()
        for stage in drafter.stages:
            stage.ffn.balance()

    phases = {}
    for phase in (False, True):
        phases[phase] = pace.recorded(lambda p=phase: gradients(p), graph)
        print(f"{role} {phase} ready, {time.perf_counter() - began:.0f}s", flush=True)
    optimiser.flat.zero_()  # with a zero gradient and a zero factor nothing moves, but the balance
    step_now = pace.recorded(update, graph)
    optimiser.count.zero_()
    for stage in drafter.stages:
        stage.ffn.bias.zero_()
    print(f"{role} step ready, {time.perf_counter() - began:.0f}s", flush=True)
    if args.warm:
        return
    generator = torch.Generator().manual_seed(3)  # the same batches in both processes
    train = torch.from_numpy(stream.astype("int32")).to(device)
    while len(files := sorted(args.texts.glob("own_*.npy"))) < 2:
        if time.perf_counter() - began > args.wait and files:
            break
        if time.perf_counter() - began > args.wait + 30:
            inputs.stop(f"there are no own_*.npy in {args.texts}; own.py makes them ({inputs.CARD}, Training it again)")
        time.sleep(0.2)
    tests = measured_on(args.texts / "tests.npz")  # needed in the end only, and better missed before training
    pace.meet()
    files = sorted(args.texts.glob("own_*.npy"))
    arrays = [data.load(f, "own.py") for f in files]
    shortest = min(a.shape[1] for a in arrays)
    if shortest < args.length:
        inputs.stop(f"own samples of {args.texts} have {shortest} tokens; give --length {shortest} or draw longer ones")
    own = torch.from_numpy(np.concatenate([a[:, : args.length] for a in arrays]).astype("int32")).to(device)
    print(f"{role} {len(own)} own samples, {time.perf_counter() - began:.0f}s", flush=True)
    log: list[dict[str, Any]] = []
    step = 0
    pace.meet()
    clock = pace.Clock(args.seconds - 2 - (time.perf_counter() - began), args.steps)
    while (share := clock.share()) < 1:
        text = windows(train, args.batch - half, args.length - 1, generator)
        pick = torch.randint(0, len(own), (half,), generator=generator).to(device)
        tokens.copy_(torch.cat([text, own[pick][:, : args.length].long()]))
        anchors.copy_(torch.randint(1, args.length - g, anchors.shape, generator=generator))
        phases[share >= args.quantise_from]()
        optimiser.factor.fill_(factor(share, decay=args.decay))
        step_now()
        step += 1
        if step in (1, 2, 10, 50) or step % 200 == 0:
            loss, *overlap = optimiser.extra.tolist()
            row = {"step": step, "seconds": round(time.perf_counter() - clock.began, 1), "loss": round(loss, 4),
                   "overlap": [round(x, 3) for x in overlap]}  # fmt: skip
            log.append(row)
            print(role, row, flush=True)
            if not loss < 20:
                raise SystemExit(f"the loss is {loss} at step {step}")
    frozen = stored(drafter, args.out / f"{role}.safetensors", device)
    result = {
        "steps": step, "blocks": step * args.batch * args.anchors, "own_samples": list(own.shape),
        "schedule_seconds": None if args.steps else round(clock.seconds, 1), "log": log,
    }  # fmt: skip
    (args.out / f"{role}.json").write_text(json.dumps(result, indent=1) + "\n")
    print({k: v for k, v in result.items() if k != "log"}, f"{time.perf_counter() - began:.0f}s", flush=True)
    plain_again()  # other shapes: as they are
    del phases, step_now
    variants = {"dspark": (frozen, True), "bias_off": (frozen, False)} if markov else {"no_markov": (frozen, False)}
    texts, heats, first = tests[0].to(device), tests[1].to(device), tests[2]
    plain, size = load_target(args.target, device), args.texts_a_pass
    cuts = [slice(i, i + size) for i in range(0, len(texts), size)]
    parts = [rounds(plain, variants, texts[cut], heats[cut], first) for cut in cuts]
    found = {n: torch.cat([p[n] for p in parts]).numpy() for n in parts[0]}
    if markov:
        found |= {"tokens": texts.cpu().numpy().astype(np.uint16), "temperature": heats.cpu().numpy()}
    np.savez_compressed(args.out / f"rounds_{role}.npz", **found)
    print(f"{role} rounds, {time.perf_counter() - began:.0f}s in all", flush=True)


if __name__ == "__main__":
    main()
