"""Train the drafter against the frozen target: `python train_drafter.py DATA_FOLDER TARGET.safetensors OUT`.

Half of each batch is text, half the target's own samples at temperature 1 (made first). The loss is
0.1 cross entropy + 0.9 total variation + 1.0 confidence, position weights exp(-k / 4). A second drafter without
a Markov head learns from the same batches, for the comparison. Writes dspark.safetensors,
no_markov.safetensors, drafter.json and rounds.npz: for
continuations of held-out prompts (prompts.py) at T = 1, 0.7 and 0, the probability that each draft of a block is
accepted, for a block at every position. evaluate.py makes the tables of it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import data
import numpy as np
import quantise
import torch
import torch.nn.functional as F
from drafter import Drafter
from model import CONFIG, Hyper, Target, compiled, expanding, halved, mixing
from optim import Optimiser, factor
from sample import sample
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
        result[f"overlap.{name}"] = torch.where(greedy, (z.argmax(-1) == labels).float(), torch.minimum(p, q).sum(-1))
        result[f"confidence.{name}"] = confidence
    return {name: value.half().cpu() for name, value in result.items()}


def load_target(path: Path, device: str) -> Target:
    target = Target(CONFIG)
    target.load_state_dict(quantise.target_state(quantise.read(path), CONFIG["num_hidden_layers"]))
    return halved(target.to(device))


def stored(drafter: Drafter, path: Path, device: str) -> Drafter:
    quantise.write(path, quantise.official_drafter(drafter.state_dict()))
    back = Drafter(CONFIG)
    back.load_state_dict(quantise.drafter_state(quantise.read(path)))
    return halved(back.to(device))


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("folder", type=Path)
    ap.add_argument("target", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--seconds", type=float, default=240, help="for training and sampling; measuring comes after")
    ap.add_argument("--batch", type=int, default=48)
    ap.add_argument("--anchors", type=int, default=128)
    ap.add_argument("--samples", type=int, default=12288)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--new", type=int, default=320, help="tokens after each held-out prompt")
    ap.add_argument("--muon", type=float, default=0.02)
    ap.add_argument("--adam", type=float, default=0.003)
    ap.add_argument("--quantise-from", type=float, default=0.5)
    ap.add_argument("--eager", action="store_true")
    ap.add_argument("--tiny", action="store_true")
    args = ap.parse_args()
    began = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(2)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.suppress_errors = True  # a block that does not compile runs as it is
    generator = torch.Generator().manual_seed(3)
    name = "heldout" if args.tiny else "train"
    train = torch.from_numpy(data.load(args.folder / f"{name}.npy.xz").astype("int32")).to(device)
    target = load_target(args.target, device)
    prompts = torch.from_numpy(np.load(args.folder / "prompts.npy").astype("int64")).to(device)
    if args.tiny:
        prompts = prompts[:2]
    heats = torch.tensor([1.0, 0.7, 0.0], device=device).repeat_interleave(len(prompts))
    fast = not args.eager
    if fast:
        compiled(target.layers)
    tests = sample(target, prompts.repeat(3, 1), prompts.shape[1] + args.new, heats)
    print(f"{tuple(tests.shape)} held-out continuations, {time.perf_counter() - began:.0f}s", flush=True)
    starts = windows(train, args.samples, PROMPT - 1, generator)
    own = sample(target, starts, args.length, torch.ones(args.samples, device=device)).to(torch.int32)
    print(f"{tuple(own.shape)} own samples, {time.perf_counter() - began:.0f}s", flush=True)
    drafters = {"dspark": Drafter(CONFIG).to(device), "no_markov": Drafter(CONFIG).to(device)}
    optimisers = {n: Optimiser(d, args.muon, args.adam, slow=("hc_", "attn_sink")) for n, d in drafters.items()}
    measure = losses
    if fast:
        for d in drafters.values():
            d.attend = torch.compile(d.attend, dynamic=False)
            for stage in d.stages:
                stage.ffn.compile(dynamic=False)
        measure = torch.compile(losses, dynamic=False)
    log, step, g = [], 0, CONFIG["dspark_block_size"]
    start = time.perf_counter()
    total = args.seconds - (start - began)
    while (spent := time.perf_counter() - start) < total:
        if step == 1:  # the first step compiles: the schedule begins after it
            print(f"compiled, {time.perf_counter() - began:.0f}s", flush=True)
            start, total = time.perf_counter(), total - spent
            spent = 0.0
        share = spent / total
        text = windows(train, args.batch - args.batch // 2, args.length - 1, generator)
        pick = torch.randint(0, args.samples, (args.batch // 2,), generator=generator).to(device)
        tokens = torch.cat([text, own[pick].long()])
        anchors = torch.randint(1, args.length - g, (args.batch, args.anchors), generator=generator).to(device)
        with torch.no_grad():
            out = target(tokens, select=True)
            p_logits = target_rows(target, out["hidden"], anchors)
        at = (anchors[..., None] + 1 + torch.arange(g, device=device)).flatten(1)
        labels = tokens.gather(1, at).unflatten(1, (-1, g))
        fake = quantise.fake_fp4 if share >= args.quantise_from else None
        row = {}
        for n, d in drafters.items():
            with torch.autocast(device, dtype=torch.bfloat16):
                h, confidence = d(out["taps"], tokens, anchors, target.embed, fake)
                z = d.logits(h, tokens, anchors, target.head, markov=n == "dspark")
            loss, overlap = measure(z, p_logits, confidence, labels)
            loss.backward()
            optimisers[n].step(factor(share))
            for stage in d.stages:
                stage.ffn.balance()
            row[n] = (loss.detach(), overlap)
        step += 1
        if step in (1, 2, 10, 50) or step % 100 == 0:
            line = {
                "step": step,
                "seconds": round(time.perf_counter() - start, 1),
                **{n: [round(float(a), 4), *(round(float(x), 3) for x in b)] for n, (a, b) in row.items()},
            }
            log.append(line)
            print(line, flush=True)
    frozen = {n: stored(d, args.out / f"{n}.safetensors", device) for n, d in drafters.items()}
    variants = {"dspark": (frozen["dspark"], True), "bias_off": (frozen["dspark"], False)}
    variants["no_markov"] = (frozen["no_markov"], False)
    parts = []
    size = 2 if args.tiny else 16
    Hyper.mixing, Hyper.expanding = staticmethod(mixing), staticmethod(expanding)  # other shapes: as they are
    plain = load_target(args.target, device)
    for first in range(0, len(tests), size):
        now = slice(first, first + size)
        parts.append(rounds(plain, variants, tests[now], heats[now], prompts.shape[1] - 1))
    arrays = {n: torch.cat([p[n] for p in parts]).numpy() for n in parts[0]}
    np.savez_compressed(
        args.out / "rounds.npz", tokens=tests.cpu().numpy().astype(np.uint16), temperature=heats.cpu().numpy(), **arrays
    )
    result = {"steps": step, "blocks": step * args.batch * args.anchors, "own_samples": list(own.shape), "log": log}
    (args.out / "drafter.json").write_text(json.dumps(result, indent=1))
    if args.tiny is False:
        np.save(args.out / "own.npy", own[:64].cpu().numpy().astype(np.uint16))
    print({k: v for k, v in result.items() if k != "log"}, f"{time.perf_counter() - began:.0f}s in all", flush=True)


if __name__ == "__main__":
    main()
