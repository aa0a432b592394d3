"""Writes dspark_bytes.md: bytes that a DSpark block reads against one decode of its target, from the tensor contract.

Run from the repository root: `python docs/benchmarks/dspark_bytes.py`. It measures no machine. Uniform routing, a batch
of one, official formats; embeddings and caches are left out. A row that is looked up counts as nothing.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.deepseek_v4_checkpoint.test_contract import FLASH, PRO  # noqa: E402

from sparkwright.plugins.deepseek_v4.config import ModelConfig  # noqa: E402
from sparkwright.plugins.deepseek_v4.contract import expected  # noqa: E402
from sparkwright.plugins.deepseek_v4.formats import ITEM_BYTES  # noqa: E402

GB = 1e9


def reads(config: ModelConfig, rows: int, drafter: bool) -> dict[str, float]:
    """Bytes by part of a forward of `rows` rows of the target, or of a drafter's block of `rows` slots."""
    share = 1 - (1 - config.experts_per_token / config.experts) ** rows  # of the experts, that some row uses
    parts = dict.fromkeys(("dense", "experts", "head", "markov"), 0.0)
    for name, (dtype, shape) in expected(config, stages=3).items():
        size = math.prod(shape) * ITEM_BYTES[dtype]
        if name.startswith("head."):
            parts["head"] += size
        elif (
            name.startswith("mtp.") != drafter or name.startswith("embed.") or "tid2eid" in name or "markov_w1" in name
        ):
            continue  # another model's, or looked up by row
        elif "markov_w2" in name:
            parts["markov"] += size * rows  # once a slot: the next one waits for its draw
        elif ".experts." in name:
            parts["experts"] += size * share
        else:
            parts["dense"] += size
    return parts


def main() -> None:
    lines = [
        "# What a DSpark block reads",
        "",
        "Made by `docs/benchmarks/dspark_bytes.py` from the tensor contract: GB a round, official formats, uniform",
        "routing, batch of one. A block is 5 slots. *ratio* is to a decode of one row, which is the whole cost on a",
        "machine that is bound by bandwidth. The specification's byte model says 3.0 GB and 0.27 for Flash, 6.9 GB and",
        "0.17 for Pro. What a block of Flash width takes on one H200 is in [drafter_h200.md](drafter_h200.md).",
        "",
        "| model | decode | block: dense | experts | head | Markov | block | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, raw in (("Flash", FLASH), ("Pro", PRO)):
        config = ModelConfig.from_json(raw)
        decode = sum(reads(config, 1, drafter=False).values())
        block = reads(config, 5, drafter=True)
        total = sum(block.values())
        cells = [decode, block["dense"], block["experts"], block["head"], block["markov"], total]
        lines.append(f"| {name} | " + " | ".join(f"{c / GB:.2f}" for c in cells) + f" | {total / decode:.2f} |")
    lines += ["", "| verify rows | " + " | ".join(map(str, range(1, 9))) + " |", "|---" * 9 + "|"]
    for name, raw in (("Flash", FLASH), ("Pro", PRO)):
        config = ModelConfig.from_json(raw)
        sizes = [sum(reads(config, rows, drafter=False).values()) for rows in range(1, 9)]
        lines.append(f"| {name}, over one row | " + " | ".join(f"{s / sizes[0]:.2f}" for s in sizes) + " |")
    (HERE / "dspark_bytes.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
