"""Coupled text against plain text over whole products of drafters, schedulers, temperatures and seeds.

    python docs/benchmarks/coupled_product.py --model tiny --out coupled_product.jsonl
    python docs/benchmarks/coupled_product.py --model demo --seeds 5 --out coupled_product.jsonl
    python docs/benchmarks/coupled_product.py --model models/smollm2 --seeds 4 --out coupled_product.jsonl

`tiny`: the models, drafters and schedulers of tests/exact/coupled.py, 20 seeds of 128 tokens for every cell. `demo`:
the bundled DeepSeek-V4. Any folder: a real model. Seeds of these two go round some prompts. Rows are bit-equal by MLX's
bundled BLAS, which this script chooses; with --row-exact the default BLAS is used and `engine.row_exact` makes them so.
One JSON line a cell; a cell that is in the file already is not run again. What is printed at the end is a table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="tiny, tiny-v4, tiny-qwen3, demo, or a folder")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--row-exact", action="store_true")
    parser.add_argument("--dtype", default="auto", help="of a folder's weights, as target.mlx_lm.dtype")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this long")
    return parser.parse_args()


def worlds(args: argparse.Namespace, folder: Path) -> list[Any]:
    from tests.exact import coupled

    tiny = {"tiny-v4": coupled.tiny_v4, "tiny-qwen3": coupled.tiny_qwen3}
    if args.model == "tiny" or args.model in tiny:
        return [make(folder / name) for name, make in tiny.items() if args.model in ("tiny", name)]
    return [coupled.demo(folder) if args.model == "demo" else coupled.real(args.model, args.dtype, folder)]


def main() -> int:
    args = arguments()
    if not args.row_exact:
        os.environ["SPARKWRIGHT_OPENBLAS"] = "0"  # before anything imports MLX
    sys.path.insert(0, str(ROOT))
    sys.path.insert(0, str(Path(__file__).parent))
    from tests.exact import coupled

    records: dict[tuple[Any, ...], dict[str, Any]] = {}
    if args.out.exists():
        known = [json.loads(line) for line in args.out.read_text().splitlines()]
        records = {key(record): record for record in known}
    started, mine = time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        for world in worlds(args, Path(folder)):
            for temperature in coupled.TEMPERATURES:
                plain: list[tuple[int, ...]] = []
                for drafter, scheduler in world.pairs:
                    cell = {
                        "model": world.name, "temperature": temperature, "drafter": drafter, "scheduler": scheduler,
                        "seeds": args.seeds, "tokens": args.tokens, "row_exact": args.row_exact,
                    }  # fmt: skip
                    if key(cell) not in records:
                        if time.monotonic() - started > args.minutes * 60:
                            continue
                        more = {"tokens": args.tokens, "row_exact": args.row_exact}
                        plain = plain or coupled.plainly(world, temperature, args.seeds, **more)
                        settings = {
                            "drafter": world.drafters[drafter], "scheduler": coupled.SCHEDULERS[scheduler],
                        }  # fmt: skip
                        got = coupled.texts(world, temperature, settings, range(args.seeds), plain, **more)
                        same = [ours == theirs for ours, theirs in zip(got.tokens, plain, strict=True)]
                        record = cell | {
                            "identical": sum(same), "distinct": len(set(plain)), "submitted": got.submitted,
                            "accepted": got.accepted, "differ": [seed for seed, s in enumerate(same) if not s],
                        }  # fmt: skip
                        with args.out.open("a") as out:
                            out.write(json.dumps(record) + "\n")
                        records[key(cell)] = record
                        print(json.dumps(record), file=sys.stderr, flush=True)
                    mine.append(records[key(cell)])
    print(table(mine))
    return int(any(r["identical"] < r["seeds"] for r in mine))


def key(cell: dict[str, Any]) -> tuple[Any, ...]:
    names = ("model", "temperature", "drafter", "scheduler", "seeds", "tokens", "row_exact")
    return tuple(cell[name] for name in names)


def table(records: list[dict[str, Any]]) -> str:
    lines = ["| model | T | drafter | scheduler | equal texts | drafts submitted | accepted |", "|" + "---|" * 7]
    for r in records:
        lines.append(
            f"| {r['model']} | {r['temperature']} | {r['drafter']} | {r['scheduler']} "
            f"| {r['identical']} of {r['seeds']} | {r['submitted']} | {r['accepted']} |"
        )
    texts, equal = sum(r["seeds"] for r in records), sum(r["identical"] for r in records)
    return "\n".join([*lines, "", f"{equal} of {texts} texts equal plain decoding's, in {len(records)} cells."])


if __name__ == "__main__":
    sys.exit(main())
