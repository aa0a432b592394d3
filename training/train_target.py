"""Train the target: `python train_target.py DATA_FOLDER OUT_FOLDER --seconds 400`.

DATA_FOLDER holds train.npy.xz and heldout.npy.xz (data.py). Windows of 2,048 tokens. In the first half of the time
ratio-4 layers attend to all their rows and the indexer learns where the mass lies; then its top-k decides, and experts
are multiplied as the FP4 numbers that they will be stored in. Writes target.safetensors (official layout) and
target.json (losses, on the weights read back from that file).
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import data
import quantise
import torch
import torch.nn.functional as F
from model import CONFIG, Target, compiled, halved
from optim import Optimiser, factor
from torch import Tensor


def windows(stream: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """[batch, length + 1] int64"""
    first = torch.randint(0, len(stream) - length - 1, (batch,), generator=generator).to(stream.device)
    return stream[first[:, None] + torch.arange(length + 1, device=stream.device)].long()


def head_loss(model: Target, hidden: Tensor, goal: Tensor) -> Tensor:
    return F.cross_entropy(model.head(hidden).float().flatten(0, -2), goal.flatten())


@torch.no_grad()
def evaluate(
    model: Target, stream: Tensor, length: int, batch: int, most: int, select: bool = True
) -> dict[str, float]:
    """Mean loss of non-overlapping windows of the held-out stream, and the indexer's recall."""
    n = min((len(stream) - 1) // length, most)
    losses, recalls = [], []
    for first in range(0, n - n % batch if n >= batch else n, batch):
        at = (first + torch.arange(min(batch, n), device=stream.device)) * length
        w = stream[at[:, None] + torch.arange(length + 1, device=stream.device)].long()
        out = model(w[:, :-1], select=select)
        losses.append(head_loss(model, out["hidden"], w[:, 1:]))
        recalls.append(out["recall"])
    return {"loss": float(torch.stack(losses).mean()), "recall": float(torch.stack(recalls).mean())}


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("folder", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--seconds", type=float, default=400)
    ap.add_argument("--batch", type=int, default=16)
    ap.add_argument("--length", type=int, default=2048)
    ap.add_argument("--muon", type=float, default=0.02)
    ap.add_argument("--adam", type=float, default=0.003)
    ap.add_argument("--select-from", type=float, default=0.5)
    ap.add_argument("--quantise-from", type=float, default=0.6)
    ap.add_argument("--eager", action="store_true")
    ap.add_argument("--tiny", action="store_true", help="a few tokens, to try the script")
    args = ap.parse_args()
    began = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    cuda = torch.cuda.is_available()
    device = "cuda" if cuda else "cpu"
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.suppress_errors = True  # a block that does not compile runs as it is
    generator = torch.Generator().manual_seed(1)
    held = torch.from_numpy(data.load(args.folder / "heldout.npy.xz").astype("int32")).to(device)
    train = held if args.tiny else torch.from_numpy(data.load(args.folder / "train.npy.xz").astype("int32")).to(device)
    print(f"data {time.perf_counter() - began:.1f}s, {len(train)} tokens", flush=True)
    model = Target(CONFIG).to(device)
    blocks = list(model.layers)
    if not args.eager:
        compiled(blocks)
    loss_of = head_loss if args.eager else torch.compile(head_loss, dynamic=False)
    optimiser = Optimiser(model, args.muon, args.adam, slow=("hc_", "attn_sink", "ape"))
    log: list[dict[str, Any]] = []
    model.train()
    for select in (False, True):  # compile before the clock of the schedule starts
        w = windows(train, args.batch, args.length, generator)
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(w[:, :-1], select=select)
            loss = loss_of(model, out["hidden"], w[:, 1:])
        (loss + out["index_loss"]).backward()
        print(f"compiled, {time.perf_counter() - began:.0f}s, loss {loss.item():.3f}", flush=True)
    for p in model.parameters():
        p.grad = None
    step, start = 0, time.perf_counter()
    total = args.seconds - (start - began)
    while (spent := time.perf_counter() - start) < total:
        share = spent / total
        w = windows(train, args.batch, args.length, generator)
        fake = quantise.fake_fp4 if share >= args.quantise_from else None
        with torch.autocast(device, dtype=torch.bfloat16):
            out = model(w[:, :-1], select=share >= args.select_from, fake=fake)
            loss = loss_of(model, out["hidden"], w[:, 1:])
        (loss + out["index_loss"]).backward()
        optimiser.step(factor(share))
        for block in blocks:
            block.ffn.balance()
        step += 1
        if step in (1, 2, 5, 10, 20, 50) or step % 100 == 0:
            loads = torch.stack([b.ffn.load for b in blocks[3:]])
            row = {
                "step": step, "seconds": round(time.perf_counter() - start, 1), "loss": round(loss.item(), 4),
                "index": round(out["index_loss"].item(), 4), "recall": round(float(out["recall"]), 4),
                "load": [round(float(loads.min()), 3), round(float(loads.max()), 3)],
            }  # fmt: skip
            log.append(row)
            print(row, flush=True)
    if cuda:
        torch.cuda.synchronize()
        print({"peak GiB": torch.cuda.max_memory_allocated() / 2**30})
    print({"steps": step, "tokens": step * args.batch * args.length, "seconds": time.perf_counter() - start})
    tensors = quantise.official_target(model.state_dict(), len(blocks))
    size = quantise.write(args.out / "target.safetensors", tensors)
    del optimiser
    most = 2 if args.tiny else 100_000
    small = args.tiny
    with torch.autocast(device, dtype=torch.bfloat16):
        model.eval()
        masters = evaluate(model, held, args.length, args.batch, most)
    frozen = Target(CONFIG)
    frozen.load_state_dict(quantise.target_state(quantise.read(args.out / "target.safetensors"), len(blocks)))
    frozen = halved(frozen.to(device))
    result = {
        "steps": step, "tokens": step * args.batch * args.length, "train_tokens_in_corpus": len(train), "bytes": size,
        "heldout_tokens": len(held), "heldout_unquantised": masters,
        "heldout_2048": evaluate(frozen, held, 2048, 2 if small else 16, most),
        "heldout_2048_dense": evaluate(frozen, held, 2048, 2 if small else 16, most, select=False),
        "heldout_4096": evaluate(frozen, held, 4096, 1 if small else 8, most),
        "log": log,
    }  # fmt: skip
    (args.out / "target.json").write_text(json.dumps(result, indent=1))
    print({k: v for k, v in result.items() if k != "log"}, f"{time.perf_counter() - began:.0f}s in all", flush=True)


if __name__ == "__main__":
    main()
