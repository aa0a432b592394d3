"""How many kernels of ours the bundled model needs on CUDA: each is compiled when it is first used.

    python docs/benchmarks/kernel_count.py

Runs anywhere: in the place of `mx.fast.cuda_kernel` stands a function that notes a kernel's name and answers zeros, so
nothing is compiled and the texts mean nothing. Plain decoding, then blocks of every depth, after a prompt of many rows.
"""

from __future__ import annotations

import collections
import json
from typing import Any

import mlx.core as mx

from sparkwright import assemble, load_config
from sparkwright.plugins.kernels.fused import launcher

names: dict[str, None] = {}


def make(name: str, **_: Any) -> Any:
    def call(*, output_shapes: Any, output_dtypes: Any, **_: Any) -> list[mx.array]:
        names[name] = None
        return [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]

    return call


def main() -> None:
    mx.fast.cuda_kernel = make
    launcher.here = lambda device: launcher.Launcher("cuda")
    arms: list[dict[str, Any]] = [{"drafter": {"use": "none"}}]
    for depth in range(5, 0, -1):
        arms.append({"drafter": {"use": "dspark"}, "scheduler": {"use": "fixed", "fixed": {"depth": depth}}})
    for arm in arms:
        config = load_config({**arm, "kernels": {"use": ["fused", "unfused"]}, "generation": {"ignore_eos": True}})
        with assemble(config) as engine:
            engine.complete("def quicksort(items):\n    return items\n" * 6, max_tokens=24, seed=1)
        print(json.dumps({**arm, "kernels_until_here": len(names)}))
    print(json.dumps(collections.Counter(name.split("_", 1)[1].rsplit("_", 1)[0] for name in names)))


if __name__ == "__main__":
    main()
