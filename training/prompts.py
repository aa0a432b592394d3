"""Prompts for measuring, from held-out files: `python prompts.py HELDOUT.txt.xz TOKENIZER.json OUT_FOLDER`.

128 of Python sources and 128 of prose (documentation), 127 tokens after <bos>, each beginning at a line of the first
two thirds of its file, at most four a file. Code is what Python can parse. Writes prompts.npy and prompts.json.
"""

from __future__ import annotations

import ast
import json
import lzma
import random
import sys
import warnings
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

EACH, LENGTH, A_FILE = 128, 128, 4


def is_code(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return len(ast.parse(text).body) > 1
    except (SyntaxError, ValueError, RecursionError):
        return False


def main(text: Path, tokenizer_path: Path, out: Path) -> None:
    tokenizer, rng = Tokenizer.from_file(str(tokenizer_path)), random.Random(5)
    documents = lzma.decompress(text.read_bytes()).decode().split("\0")
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
    rows = found["code"][:EACH] + found["prose"][:EACH]
    kinds = ["code"] * len(found["code"][:EACH]) + ["prose"] * len(found["prose"][:EACH])
    np.save(out / "prompts.npy", np.asarray(rows, dtype=np.uint16))
    (out / "prompts.json").write_text(json.dumps({"kinds": kinds, "found": counts}))
    print(counts, len(rows))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
