"""Mean loss on all held-out tokens: `python heldout.py DATA_FOLDER TARGET.safetensors OUT.json [--most WINDOWS]`.

Non-overlapping windows of 2,048 and of 4,096 tokens, weights as stored; also the indexer's recall, and the loss with
attention to all compressed rows. `recall` is the share of dense attention's mass on compressed rows that the indexer's
top rows hold, where there are more rows than it takes.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import data
import inputs
import torch
from model import Target
from torch import Tensor
from train_drafter import load_target
from train_target import head_loss


@torch.no_grad()
def evaluate(model: Target, stream: Tensor, length: int, batch: int, most: int, select: bool) -> dict[str, Any]:
    n = min((len(stream) - 1) // length, most)
    if n < 1:
        inputs.stop(f"heldout.npy.xz has {len(stream)} tokens, less than a window of {length}; more is needed")
    loss, recall = 0.0, 0.0
    for first in range(0, n, batch):
        at = torch.arange(first, min(first + batch, n), device=stream.device) * length
        w = stream[at[:, None] + torch.arange(length + 1, device=stream.device)].long()
        out = model(w[:, :-1], select=select)
        loss += float(head_loss(model, out["hidden"], w[:, 1:])) * len(w)
        recall += float(out["recall"]) * len(w)
    return {"loss": round(loss / n, 4), "recall": round(recall / n, 4), "tokens": n * length}


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("folder", type=Path)
    ap.add_argument("target", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--most", type=int, default=100_000, help="windows of each length; all of them by default")
    ap.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    args = ap.parse_args()
    inputs.weights(args.target, "train_target.py")
    inputs.out(args.out)
    if args.device.startswith("cuda"):
        torch.cuda.set_device(args.device)  # Triton launches on the current one
    held = torch.from_numpy(data.load(args.folder / "heldout.npy.xz").astype("int32")).to(args.device)
    model = load_target(args.target, args.device)
    if args.device == "cpu":
        model = model.float()
    result = {}
    for name, length, batch, select in (
        ("2048", 2048, 8, True), ("4096", 4096, 4, True), ("2048_dense", 2048, 8, False),
    ):  # fmt: skip
        result[name] = evaluate(model, held, length, batch, args.most, select)
        print(name, result[name], flush=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
