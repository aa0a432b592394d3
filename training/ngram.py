"""Uni-, bi- and trigram baselines on the held-out tokens: `python ngram.py DATA_FOLDER [TEXTS.json]`.

With TEXTS (texts.py) also on those, written into that file. Counts of the training tokens with absolute discounting
(0.75), interpolated down to the unigram.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import data
import inputs
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


def negative_logs(train: np.ndarray, held: np.ndarray) -> dict[str, np.ndarray]:
    """Nats of each token of `held` but the first two, by each model of `train`."""
    one = np.bincount(train, minlength=V) + 0.5
    one = (one / one.sum())[held]
    two = discounted(train[:-1] * V + train[1:], held[1:], one[1:], held[:-1])
    pair = held[:-2] * V + held[1:-1]
    three = discounted((train[:-2] * V + train[1:-1]) * V + train[2:], held[2:], two[1:], pair)
    return {"unigram": -np.log(one[2:]), "bigram": -np.log(two[1:]), "trigram": -np.log(three)}


def main(folder: Path, texts: Path | None = None) -> None:
    if texts is not None:
        inputs.file(texts, "texts.py")
    train = data.load(folder / "train.npy.xz").astype(np.int64)
    held = data.load(folder / "heldout.npy.xz").astype(np.int64)
    for name, nats in negative_logs(train, held).items():
        print(name, round(float(nats.mean()), 3))
    if texts is not None:
        tokenizer = data.tokenizer_of(folder / "tokenizer.json")
        try:
            found = json.loads(texts.read_text(encoding="utf-8"))
            ids = [tokenizer.encode(one["text"], add_special_tokens=False).ids for one in found["texts"]]
        except (ValueError, KeyError, TypeError):
            inputs.stop(f"{texts} is not what texts.py writes; run it again")
        starts = np.cumsum([0, *map(len, ids)])[:-1]
        nats = negative_logs(train, np.concatenate([np.asarray(row, dtype=np.int64) for row in ids]))
        for one, start, row in zip(found["texts"], starts, ids, strict=True):
            here = slice(start, start + len(row) - 2)  # from the third token on: what is before the text is another one
            one["nats"] = {name: round(float(each[here].mean()), 4) for name, each in nats.items()}
        found.pop("baselines", None)
        texts.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print([one["nats"] for one in found["texts"]])


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("folder", type=Path)
    ap.add_argument("texts", type=Path, nargs="?")
    args = ap.parse_args()
    main(args.folder, args.texts)
