"""Text to tokens: `python data.py TEXT.xz TOKENIZER.json OUT.npy.xz` writes uint16 ids, documents in a fixed order.

Every document is <bos> text <eos>. `windows` cuts training windows out of the stream at random places.
"""

from __future__ import annotations

import argparse
import io
import lzma
import random
from pathlib import Path

import inputs
import numpy as np
from tokenizers import Tokenizer

BOS, EOS = 0, 1


def encode(texts: list[str], tokenizer: Tokenizer) -> np.ndarray:
    ids: list[np.ndarray] = []
    for first in range(0, len(texts), 256):
        for one in tokenizer.encode_batch_fast(texts[first : first + 256], add_special_tokens=False):
            ids.append(np.asarray([BOS, *one.ids, EOS], dtype=np.uint16))
    return np.concatenate(ids)


def load(path: Path, made_by: str = "data.py") -> np.ndarray:
    """Tokens of a .npy or .npy.xz."""
    data = inputs.file(path, made_by).read_bytes()
    try:
        found: np.ndarray = np.load(io.BytesIO(lzma.decompress(data) if path.suffix == ".xz" else data))
    except (ValueError, EOFError, lzma.LZMAError):
        inputs.stop(f"{path} holds no tokens, or not all of them; run {made_by} again")
    return found


def texts_of(path: Path) -> list[str]:
    """The documents of a .txt.xz that corpus.py wrote."""
    try:
        return lzma.decompress(inputs.file(path, "corpus.py").read_bytes()).decode().split("\0")
    except (EOFError, UnicodeError, lzma.LZMAError):
        inputs.stop(f"{path} is no xz file of text, or not all of one; run corpus.py again")


def tokenizer_of(path: Path) -> Tokenizer:
    inputs.file(path, "tokenizer.py")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        inputs.stop(f"{path} is no tokenizer ({error}); run tokenizer.py again")


def main(text: Path, tokenizer_path: Path, out: Path) -> None:
    texts, tokenizer = texts_of(text), tokenizer_of(tokenizer_path)
    inputs.out(out)
    random.Random(0).shuffle(texts)
    stream = encode(texts, tokenizer)
    buffer = io.BytesIO()
    np.save(buffer, stream)
    data = buffer.getvalue()
    out.write_bytes(lzma.compress(data, preset=1) if out.suffix == ".xz" else data)
    print({"tokens": len(stream), **inputs.same(out.name.removesuffix(".xz"), data)})


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("text", type=Path)
    ap.add_argument("tokenizer", type=Path)
    ap.add_argument("out", type=Path)
    args = ap.parse_args()
    main(args.text, args.tokenizer, args.out)
