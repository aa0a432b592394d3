"""Train the target: `python train_target.py DATA_FOLDER OUT_FOLDER --seconds 400 [--begin TARGET.safetensors]`.

DATA_FOLDER holds train.npy.xz and heldout.npy.xz (data.py). Windows of 2,048 tokens. In the first part of the time
ratio-4 layers attend to all their rows and the indexer learns where the mass lies; then its top-k decides, and experts
are multiplied as the FP4 numbers that they will be stored in. Writes target.safetensors (official layout) and
target.json. With two processes (pace.py) gradients are averaged. heldout.py measures.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import data
import inputs
import pace
import quantise
import sinkhorn
import torch
import torch.distributed as dist
import torch.nn.functional as F
from model import CONFIG, Target, compiled
from optim import Optimiser, factor
from torch import Tensor


def windows(stream: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """[batch, length + 1] int64"""
    first = torch.randint(0, len(stream) - length - 1, (batch,), generator=generator).to(stream.device)
    return stream[first[:, None] + torch.arange(length + 1, device=stream.device)].long()


def head_loss(model: Target, hidden: Tensor, goal: Tensor) -> Tensor:
    return F.cross_entropy(model.head(hidden).float().flatten(0, -2), goal.flatten())


def save(model: Target, path: Path) -> int:
    unfinished = path.with_name("unfinished")
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    size = quantise.write(unfinished, quantise.official_target(state, len(model.layers)))
    unfinished.replace(path)
    return size


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("folder", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--seconds", type=float, default=400, help="from the start to the written weights")
    ap.add_argument("--steps", type=int, default=0, help="so many instead of --seconds: equal runs on one device")
    ap.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda where there is one")
    ap.add_argument("--begin", type=Path, help="go on from these weights")
    ap.add_argument("--batch", type=int, default=16, help="windows a process")
    ap.add_argument("--length", type=int, default=2048)
    ap.add_argument("--muon", type=float, default=0.02)
    ap.add_argument("--adam", type=float, default=0.003)
    ap.add_argument("--decay", type=float, default=0.6)
    ap.add_argument("--select-from", type=float, default=0.4)
    ap.add_argument("--quantise-from", type=float, default=0.6)
    ap.add_argument("--save-at", type=float, nargs="*", default=[0.7, 0.9])
    ap.add_argument("--eager", action="store_true", help="without torch.compile (which needs a C++ compiler)")
    ap.add_argument("--no-graph", action="store_true", help="without CUDA graphs")
    args = ap.parse_args()
    began = time.perf_counter()
    stream = data.load(args.folder / "train.npy.xz")
    if len(stream) < args.length + 2:
        inputs.stop(f"{args.folder}/train.npy.xz has {len(stream)} tokens, less than a window of {args.length}")
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    device, group = pace.start(nccl=True, asked=args.device)
    kind, graph = device[:4].rstrip(":"), device != "cpu" and not args.no_graph
    if device != "cpu":
        sinkhorn.check(device)
    generator = torch.Generator().manual_seed(1 + pace.RANK)
    train = torch.from_numpy(stream.astype("int32")).to(device)
    print(f"data {time.perf_counter() - began:.1f}s, {len(train)} tokens", flush=True)
    model = Target(CONFIG)
    if args.begin:
        quantise.fill(model, args.begin)
    model.to(device).train()
    blocks, learnt = list(model.layers), [b for b in model.layers if not b.ffn.hashed]
    optimiser = Optimiser(
        model, args.muon, args.adam, ("hc_", "attn_sink", "ape"), 3 + len(learnt) * CONFIG["n_routed_experts"]
    )
    if not args.eager:
        compiled(blocks)
    loss_of = head_loss if args.eager else torch.compile(head_loss, dynamic=False)
    tokens = windows(train, args.batch, args.length, generator)

    def gradients(select: bool, quantised: bool) -> None:
        with torch.autocast(kind, dtype=torch.bfloat16):
            out = model(tokens[:, :-1], select=select, fake=quantise.fake_fp4 if quantised else None)
            loss = loss_of(model, out["hidden"], tokens[:, 1:])
        optimiser.differentiate(loss + out["index_loss"])
        optimiser.report([loss, out["index_loss"], out["recall"], *(b.ffn.load for b in learnt)])

    def update() -> None:
        optimiser.step()
        for block, load in zip(learnt, optimiser.extra[3:].unflatten(0, (len(learnt), -1)), strict=True):
            block.ffn.load.copy_(load)
            block.ffn.balance()

    phases = {}
    for phase in ((False, False), (True, False), (True, True)):
        phases[phase] = pace.recorded(lambda p=phase: gradients(*p), graph)
        print(f"{phase} ready, {time.perf_counter() - began:.0f}s, loss {float(optimiser.extra[0]):.3f}", flush=True)
    optimiser.flat.zero_()  # with a zero gradient and a zero factor nothing moves
    step_now = pace.recorded(update, graph)
    for block in learnt:
        block.ffn.load.zero_()
    optimiser.count.zero_()
    print(f"step ready, {time.perf_counter() - began:.0f}s", flush=True)
    log: list[dict[str, Any]] = []
    saves = sorted(args.save_at)
    pace.meet()
    if group is not None:
        dist.all_reduce(optimiser.flat, group=group)  # the first one sets up
    step = 0
    clock = pace.Clock(args.seconds - 4 - (time.perf_counter() - began), args.steps)
    while (share := clock.share()) < 1:
        tokens.copy_(windows(train, args.batch, args.length, generator))
        phases[share >= args.select_from, share >= max(args.quantise_from, args.select_from)]()
        if group is not None:
            dist.all_reduce(optimiser.flat, group=group)
            optimiser.flat.div_(pace.WORLD)
        optimiser.factor.fill_(factor(share, decay=args.decay))
        step_now()
        step += 1
        if step in (1, 2, 5, 10, 20, 50) or step % 100 == 0:
            loss, index, recall, *loads = optimiser.extra.tolist()
            row = {
                "step": step, "seconds": round(time.perf_counter() - clock.began, 1), "loss": round(loss, 4),
                "index": round(index, 4), "recall": round(recall, 4),
                "load": [round(min(loads), 3), round(max(loads), 3)],
            }  # fmt: skip
            log.append(row)
            if pace.RANK == 0:
                print(row, flush=True)
            if not loss < 20:
                raise SystemExit(f"the loss is {loss} at step {step}")
        if saves and share >= saves[0]:
            saves.pop(0)
            if pace.RANK == 0:
                save(model, args.out / "target_before.safetensors")
    if pace.RANK == 0:
        size = save(model, args.out / "target.safetensors")
        result = {
            "steps": step, "processes": pace.WORLD, "tokens": step * pace.WORLD * args.batch * args.length,
            "train_tokens_in_corpus": len(train), "bytes": size, "began_from": args.begin and args.begin.name,
            "schedule_seconds": None if args.steps else round(clock.seconds, 1), "log": log,
        }  # fmt: skip
        (args.out / "target.json").write_text(json.dumps(result, indent=1) + "\n")
        print({k: v for k, v in result.items() if k != "log"}, f"{time.perf_counter() - began:.0f}s in all", flush=True)
    if device != "cpu":
        print({"peak GiB": torch.cuda.max_memory_allocated() / 2**30}, flush=True)
    pace.meet()


if __name__ == "__main__":
    main()
