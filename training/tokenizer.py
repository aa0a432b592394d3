"""Byte-level BPE of 4,096 tokens from the training text.

    python tokenizer.py train.txt.xz OUT_FOLDER

Ids 0, 1, 2 are <bos>, <eos> and <noise> (the drafter's filler). Digits stay apart.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import data
import inputs
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<bos>", "<eos>", "<noise>"]
SIZE = 4096
# A word with one leading space, a digit, a run of other marks, or white space (indentation stays whole).
SPLIT = r"\n+[ ]*| ?[A-Za-z_]+| ?\p{L}+|\d| ?[^\s\p{L}\d]+|[ ]+|\s+"


def main(train: Path, out: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = data.texts_of(train)
    tokenizer.train_from_iterator(texts[::4], trainer)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True, "clean_up_tokenization_spaces": False}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    sample = "".join(texts[:200])[:2_000_000]
    if tokenizer.get_vocab_size() != SIZE:
        inputs.stop(f"the text gives {tokenizer.get_vocab_size()} tokens, and the model has {SIZE}; give more text")
    made = inputs.same("tokenizer.json", (out / "tokenizer.json").read_bytes())
    print({"characters_per_token": len(sample) / len(tokenizer.encode(sample).ids), **made})


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("train", type=Path)
    ap.add_argument("out", type=Path)
    args = ap.parse_args()
    main(args.train, args.out)
