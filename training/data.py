"""Text to tokens: `python data.py TEXT.xz TOKENIZER.json OUT.npy.xz` writes uint16 ids, documents in a fixed order.

Every document is <bos> text <eos>. `windows` cuts training windows out of the stream at random places.
"""

from __future__ import annotations

import io
import lzma
import random
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

BOS, EOS = 0, 1


def encode(texts: list[str], tokenizer: Tokenizer) -> np.ndarray:
    ids: list[np.ndarray] = []
    for first in range(0, len(texts), 256):
        for one in tokenizer.encode_batch_fast(texts[first : first + 256], add_special_tokens=False):
            ids.append(np.asarray([BOS, *one.ids, EOS], dtype=np.uint16))
    return np.concatenate(ids)


def load(path: Path) -> np.ndarray:
    data = path.read_bytes()
    return np.load(io.BytesIO(lzma.decompress(data) if path.suffix == ".xz" else data))


def main(text: Path, tokenizer: Path, out: Path) -> None:
    texts = lzma.decompress(text.read_bytes()).decode().split("\0")
    random.Random(0).shuffle(texts)
    stream = encode(texts, Tokenizer.from_file(str(tokenizer)))
    buffer = io.BytesIO()
    np.save(buffer, stream)
    data = buffer.getvalue()
    out.write_bytes(lzma.compress(data, preset=1) if out.suffix == ".xz" else data)
    print({"tokens": len(stream)})


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
