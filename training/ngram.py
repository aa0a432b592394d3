"""Uni-, bi- and trigram baselines on the held-out tokens: `python ngram.py DATA_FOLDER`.

Counts of the training tokens with absolute discounting (0.75), interpolated down to the unigram.
"""

from __future__ import annotations

import sys
from pathlib import Path

import data
import numpy as np

V, DISCOUNT = 4096, 0.75


def counted(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    keys = np.sort(keys)
    edge = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    return keys[edge], np.diff(np.r_[edge, len(keys)])


def looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    i = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[i] == wanted, values[i], 0)


def discounted(grams: np.ndarray, cur: np.ndarray, shorter: np.ndarray, held: np.ndarray) -> np.ndarray:
    """P(cur | held) from n-gram keys context * V + token of the training text, backing off to `shorter`."""
    keys, counts = counted(grams)
    contexts, start = np.unique(keys // V, return_index=True)
    kinds, total = np.diff(np.r_[start, len(keys)]), np.add.reduceat(counts, start)
    n, all_ = looked_up(contexts, kinds, held), looked_up(contexts, total, held)
    seen = np.maximum(looked_up(keys, counts, held * V + cur) - DISCOUNT, 0)
    return np.where(all_ > 0, (seen + DISCOUNT * n * shorter) / np.maximum(all_, 1), shorter)


def main(folder: Path) -> None:
    train = data.load(folder / "train.npy.xz").astype(np.int64)
    held = data.load(folder / "heldout.npy.xz").astype(np.int64)
    one = np.bincount(train, minlength=V) + 0.5
    one = (one / one.sum())[held]
    two = discounted(train[:-1] * V + train[1:], held[1:], one[1:], held[:-1])
    pair = held[:-2] * V + held[1:-1]
    three = discounted((train[:-2] * V + train[1:-1]) * V + train[2:], held[2:], two[1:], pair)
    for name, p in (("unigram", one), ("bigram", two), ("trigram", three)):
        print(name, round(float(-np.log(p).mean()), 3))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
