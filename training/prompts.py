"""Prompts for measuring, from held-out files: `python prompts.py HELDOUT.txt.xz TOKENIZER.json OUT_FOLDER [--each N]`.

128 (N) of Python sources and as many of prose (documentation), where there are so many, 127 tokens after <bos>, each
beginning at a line of the first two thirds of its file, at most four a file. Code is what Python can parse.
Writes prompts.npy and prompts.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import warnings
from pathlib import Path

import data
import inputs
import numpy as np

LENGTH, A_FILE = 128, 4


def is_code(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return len(ast.parse(text).body) > 1
    except (SyntaxError, ValueError, RecursionError):
        return False


def main(text: Path, tokenizer_path: Path, out: Path, each: int) -> None:
    documents, tokenizer, rng = data.texts_of(text), data.tokenizer_of(tokenizer_path), random.Random(5)
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[list[int]]] = {"code": [], "prose": []}
    for document in documents:
        kind = "code" if is_code(document) else "prose"
        lines = document.splitlines(keepends=True)
        for _ in range(A_FILE):
            at = rng.randrange(max(1, 2 * len(lines) // 3))
            ids = tokenizer.encode("".join(lines[at:])[: 8 * LENGTH], add_special_tokens=False).ids
            if len(ids) >= LENGTH - 1:
                found[kind].append([0, *ids[: LENGTH - 1]])
    rng.shuffle(found["code"])
    rng.shuffle(found["prose"])
    counts = {kind: len(rows) for kind, rows in found.items()}
    for kind, few in counts.items():
        if not few:
            inputs.stop(f"{text} has no {kind} of {LENGTH} tokens to make a prompt of; more held-out text is needed")
    rows = found["code"][:each] + found["prose"][:each]
    kinds = ["code"] * len(found["code"][:each]) + ["prose"] * len(found["prose"][:each])
    np.save(out / "prompts.npy", np.asarray(rows, dtype=np.uint16))
    (out / "prompts.json").write_text(json.dumps({"kinds": kinds, "found": counts}))
    print({"found": counts, "prompts": len(rows), **inputs.same("prompts.npy", (out / "prompts.npy").read_bytes())})


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("text", type=Path)
    ap.add_argument("tokenizer", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--each", type=int, default=128, help="prompts of each kind, at most")
    args = ap.parse_args()
    main(args.text, args.tokenizer, args.out, args.each)
