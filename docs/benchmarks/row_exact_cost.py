"""What `engine.row_exact` gives and costs: bits of decode against verify, and rates with and without it.

    python docs/benchmarks/row_exact_cost.py > docs/benchmarks/row_exact_cost.jsonl
    python docs/benchmarks/row_exact_cost.py --model models/smollm2 --rows 14 >> FILE
    python docs/benchmarks/row_exact_cost.py --together --blas gpu --kernels auto unfused

One line of JSON a setting, each measured in a process of its own: row_exact off and on, with MLX's bundled BLAS and
with OpenBLAS on a CPU (`--blas`), with each kernel selection of `--kernels`. Bits: a text decoded row by row, then
forwarded in blocks of 2 to 8 from the same states. Rates: greedy text, plain and speculative (the model's own drafter,
or lookup), and milliseconds of a forward of 1, 2, 4 and 8 rows; medians, and the range of the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
PROMPT = (
    '"""Sorting."""\n\nfrom __future__ import annotations\n\n\ndef quicksort(items):\n    """Return a new sorted list'
)
ROWS = (1, 2, 4, 8)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="a folder; the bundled DeepSeek-V4 without it")
    parser.add_argument("--kernels", nargs="+", default=["auto"], help="values of kernels.use")
    parser.add_argument(
        "--blas", nargs="+", default=["bundled", "openblas"], help="bundled, openblas; another word leaves it alone"
    )
    parser.add_argument("--row-exact", nargs="+", default=["off", "on"])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rows", type=int, default=40, help="of the text whose bits are compared")
    parser.add_argument("--seconds", type=float, default=5.0, help="of measuring in each setting, about")
    parser.add_argument("--together", action="store_true", help="all settings at once: for compiling; rates suffer")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.one:
        print(json.dumps(measure(args)))
        return 0
    running = []
    for blas in args.blas:
        for kernels in args.kernels:
            for exact in args.row_exact:
                command = [
                    sys.executable, __file__, "--one", "--model", args.model, "--kernels", kernels, "--blas", blas,
                    "--row-exact", exact, "--tokens", str(args.tokens), "--seconds", str(args.seconds),
                    "--rows", str(args.rows),
                ]  # fmt: skip
                switch = {"SPARKWRIGHT_OPENBLAS": "0"} if blas == "bundled" else {}
                inherited = {k: v for k, v in os.environ.items() if k != "SPARKWRIGHT_OPENBLAS" or blas != "openblas"}
                running.append(subprocess.Popen(command, env=inherited | switch))
                if not args.together:
                    running[-1].wait()
    return max(process.wait() for process in running)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    from environment import environment

    from sparkwright.core.blas import ensure_blas

    blas = ensure_blas()
    from sparkwright import assemble, load_config
    from sparkwright.core.errors import SparkwrightError

    name = Path(args.model).name if args.model else "bundled DeepSeek-V4"
    seen: dict[str, Any] = {
        "model": name, "kernels": args.kernels[0], "row_exact": args.row_exact[0] == "on", "blas": blas.name,
    }  # fmt: skip

    def engine(drafter: str) -> Any:
        kernels = args.kernels[0]
        settings: dict[str, Any] = {
            "target": {"use": "auto"} | ({"model": args.model} if args.model else {}),
            "drafter": {"use": drafter},
            "scheduler": {"use": "fixed"},
            "sampler": {"use": "greedy"},
            "verifier": {"use": "greedy"},
            "kernels": {"use": kernels.split(",")},
            "engine": {"row_exact": seen["row_exact"], "costs": "none"},
            "generation": {"max_tokens": args.tokens, "ignore_eos": True},
        }
        return assemble(load_config(settings, environ={}))

    try:
        for what, drafter in (("plain", "none"), ("speculative", "lookup" if args.model else "dspark")):
            with engine(drafter) as running:
                if what == "plain":
                    began = time.perf_counter()
                    seen["bits"] = running.run(lambda parts: bits(parts.target, args.rows))
                    print(json.dumps(seen), "after", round(time.perf_counter() - began, 1), file=sys.stderr, flush=True)
                    seen["forward_ms"] = running.run(lambda parts: forwards(parts.target, args.seconds / 3))
                running.complete(PROMPT, max_tokens=8)

                def rate(running: Any = running) -> float:
                    clock = time.perf_counter()
                    result = running.complete(PROMPT)
                    return len(result.tokens) / (time.perf_counter() - clock)

                seen[f"{what}_tokens_per_second"] = repeated(rate, args.seconds / 3)
                seen[f"{what}_tau"] = running.complete(PROMPT).stats.tau
    except SparkwrightError as error:
        seen["refused"] = str(error)
    return seen | {"environment": environment()}


def repeated(once: Callable[[], float], seconds: float) -> dict[str, float]:
    values, until = [], time.perf_counter() + seconds
    while len(values) < 2 or time.perf_counter() < until:
        values.append(once())
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "repeats": len(values)}


def bits(target: Any, count: int) -> dict[str, Any]:
    """Rows of blocks that have the bits of their decode, and the largest difference of a logit."""
    import mlx.core as mx
    import numpy as np

    ids = [*target.encode(PROMPT), *((7919 * (i + 1)) % target.facts.vocab_size for i in range(count))][:count]

    def forward(state: Any, at: int, rows: int) -> Any:
        logits = target.forward(mx.array(ids[at : at + rows], dtype=mx.int32), state, "all").logits
        return np.array(logits.astype(mx.float32))

    state, alone = target.new_state(), []
    for at in range(count):
        alone.append(forward(state, at, 1)[0])
    state, at, equal, compared, worst = target.new_state(), 0, 0, 0, 0.0
    while at < count:
        for rows in range(2, min(8, count - at) + 1):
            transaction = state.begin()
            block = forward(state, at, rows)
            transaction.abort()
            mine = np.stack(alone[at : at + rows])
            equal += int((block.view(np.uint32) == mine.view(np.uint32)).all(axis=1).sum())
            compared += rows
            worst = max(worst, float(np.abs(block - mine).max()))
        forward(state, at, 3 if at + 3 <= count else count - at)
        at += 3
    return {"rows_equal": equal, "rows_compared": compared, "largest_difference": worst}


def forwards(target: Any, seconds: float) -> dict[str, Any]:
    """Milliseconds of a forward by rows, after 64 positions, each taken back."""
    import mlx.core as mx

    state = target.new_state()
    ids = mx.array([(7919 * (i + 1)) % target.facts.vocab_size for i in range(64)], dtype=mx.int32)
    mx.eval(target.forward(ids, state, "last").logits)
    times: dict[str, Any] = {}
    for rows in ROWS:

        def once(rows: int = rows) -> float:
            clock = time.perf_counter()
            transaction = state.begin()
            mx.eval(target.forward(ids[:rows], state, "all").logits)
            transaction.abort()
            return 1e3 * (time.perf_counter() - clock)

        once()
        times[str(rows)] = repeated(once, seconds / len(ROWS))
    return times


if __name__ == "__main__":
    sys.exit(main())
