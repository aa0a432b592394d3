"""Texts drawn from the frozen target: `python own.py DATA_FOLDER TARGET.safetensors OUT --seed 0 [--tests]`.

Writes own_SEED.npy [rows, 512] (temperature 1, going on from 64 tokens of text: what the drafter learns from) and, with
--tests, tests.npz: continuations of the held-out prompts at T = 1, 0.7 and 0, which it is measured on.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import data
import inputs
import numpy as np
import torch
from model import CONFIG
from sample import sample
from train_drafter import PROMPT, load_target
from train_target import windows

MEASURED = 32  # blocks behind a prompt that evaluate.py wants of a text at least


def store(path: Path, array: np.ndarray) -> None:
    """Under its name only when it is whole: another process waits for it."""
    with path.with_suffix(".part").open("wb") as file:
        np.save(file, array)
    path.with_suffix(".part").replace(path)


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("folder", type=Path)
    ap.add_argument("target", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--rows", type=int, default=16384)
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--length", type=int, default=512)
    ap.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    ap.add_argument("--tests", action="store_true", help="also continuations of the held-out prompts")
    args = ap.parse_args()
    inputs.weights(args.target, "train_target.py")
    stream = data.load(args.folder / "train.npy.xz")
    if args.length <= PROMPT:
        inputs.stop(f"--length {args.length} leaves nothing to draw behind beginnings of {PROMPT} tokens; give more")
    if args.tests:
        prompts = torch.from_numpy(data.load(args.folder / "prompts.npy", "prompts.py").astype("int64"))
        least = prompts.shape[1] + MEASURED + CONFIG["dspark_block_size"]
        if args.length < least:
            inputs.stop(f"--length {args.length} leaves too little to measure behind the prompts; give {least} or more")
    if len(stream) <= PROMPT:
        inputs.stop(f"{args.folder}/train.npy.xz has {len(stream)} tokens, not the {PROMPT} of a beginning")
    if args.device.startswith("cuda"):
        torch.cuda.set_device(args.device)  # Triton launches on the current one
    began = time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(20 + args.seed)
    train = torch.from_numpy(stream.astype("int32"))
    rows = windows(train, args.rows, PROMPT - 1, torch.Generator().manual_seed(30 + args.seed))
    given, heats = torch.full((args.rows,), PROMPT), torch.ones(args.rows)
    if args.tests:
        rows = torch.cat([torch.nn.functional.pad(rows, (0, prompts.shape[1] - PROMPT)), prompts.repeat(3, 1)])
        given = torch.cat([given, torch.full((3 * len(prompts),), prompts.shape[1])])
        heats = torch.cat([heats, torch.tensor([1.0, 0.7, 0.0]).repeat_interleave(len(prompts))])
    target = load_target(args.target, args.device)
    found = sample(target, rows.to(args.device), given.to(args.device), args.length, heats.to(args.device))
    found = found.cpu().numpy().astype(np.uint16)
    if args.tests:
        np.savez(args.out / "tests_.npz", tokens=found[args.rows :], temperature=heats[args.rows :].numpy(),
                 first=prompts.shape[1] - 1)  # fmt: skip
        (args.out / "tests_.npz").replace(args.out / "tests.npz")
    store(args.out / f"own_{args.seed}.npy", found[: args.rows])
    print({"texts": found.shape, "vocabulary": CONFIG["vocab_size"]}, f"{time.perf_counter() - began:.0f}s", flush=True)


if __name__ == "__main__":
    main()
