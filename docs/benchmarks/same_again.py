"""The same requests, again and again in one process: do the tokens stay the same?

    python docs/benchmarks/same_again.py --seconds 120 --out docs/benchmarks/same_again.json

A request is decided by its prompt, seed and configuration, so a text that differs from the first one of its kind means
that something computed another number than before: a race, or memory that another computation owned. Requests are
stopped after `--tokens` tokens of many more, so that with `fixed` depth every round has as many rows as every other and
no kernel is compiled for the short rounds at a text's end. Errors are counted; the first one's sentence is kept.

`--graphs` is what MLX_USE_CUDA_GRAPHS is set to before MLX computes anything; it says nothing elsewhere than on CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from demo_speed import prompts
from environment import environment

from sparkwright import assemble, load_config
from sparkwright.core.engine import Engine
from sparkwright.core.errors import SparkwrightError


def text_of(engine: Engine, prompt: str, seed: int, tokens: int) -> tuple[int, ...]:
    """The first `tokens` tokens of an answer."""
    found: list[int] = []
    with engine.stream(prompt, seed=seed, max_tokens=1000, ignore_eos=True) as stream:
        for piece in stream:
            found += piece.tokens
            if len(found) >= tokens:
                break
        stream.cancel()
        assert stream.result is not None
    return tuple(found[:tokens])


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--graphs", choices=["0", "1"], help="left out: what sparkwright itself chooses")
    ap.add_argument("--kernels", default="auto", help="kernels.use, names apart by commas")
    ap.add_argument("--drafter", default="dspark")
    ap.add_argument("--scheduler", default="fixed", help="cost_aware: rounds of all widths")
    ap.add_argument("--depth", type=int, default=5, help="of fixed")
    ap.add_argument("--temperature", type=float, default=1.0)
    ap.add_argument("--tokens", type=int, default=100)
    ap.add_argument("--requests", type=int, default=10, help="different ones")
    ap.add_argument("--seconds", type=float, default=60.0, help="of measuring; compiling comes before it")
    ap.add_argument("--until", type=float, default=1e9, help="all included")
    args = ap.parse_args()
    if args.graphs:
        os.environ["MLX_USE_CUDA_GRAPHS"] = args.graphs
    start = time.perf_counter()
    config = load_config(
        {
            "drafter": {"use": args.drafter}, "scheduler": {"use": args.scheduler, "fixed": {"depth": args.depth}},
            "sampler": {"chain": {"temperature": args.temperature}}, "kernels": {"use": args.kernels.split(",")},
        }
    )  # fmt: skip
    found: dict[str, Any] = {"texts": 0, "different": 0, "errors": 0, "first_error": None, "first_difference": None}
    with assemble(config) as engine:
        asked = [(prompts("code" if i % 2 else "prose")[i // 2 % 10], i) for i in range(args.requests)]
        first = [text_of(engine, prompt, seed, args.tokens) for prompt, seed in asked]
        begun = time.perf_counter()
        print(f"first texts after {begun - start:.0f} s", file=sys.stderr, flush=True)
        while time.perf_counter() - begun < args.seconds and time.perf_counter() - start < args.until:
            i = found["texts"] % len(asked)
            found["texts"] += 1
            try:
                prompt, seed = asked[i]
                again = text_of(engine, prompt, seed, args.tokens)
            except SparkwrightError as error:
                found["errors"] += 1
                found["first_error"] = found["first_error"] or f"text {found['texts']}: {error}"
                continue
            if again != first[i]:
                found["different"] += 1
                at = next(k for k, (a, b) in enumerate(zip(first[i], again, strict=True)) if a != b)
                found["first_difference"] = found["first_difference"] or f"text {found['texts']}, token {at}"
        found["seconds"] = round(time.perf_counter() - begun, 1)
        found["texts_of_the_requests"] = [list(text[:24]) for text in first]
    settings = {k: v for k, v in vars(args).items() if k != "out"}
    switch = os.environ.get("MLX_USE_CUDA_GRAPHS")
    report = {**settings, "MLX_USE_CUDA_GRAPHS": switch, **found, "environment": environment()}
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({k: v for k, v in report.items() if k not in ("environment", "texts_of_the_requests")}))


if __name__ == "__main__":
    main()
