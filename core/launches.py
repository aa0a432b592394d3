"""CUDA: whether MLX gathers its launches into graphs. Says nothing on Metal and the CPU.

MLX's CUDA backend collects what it launches into CUDA graphs and keeps an instance of each form that it met, to update
and launch it again. Plain decoding repeats a few forms. Speculative rounds differ in their rows, in what was accepted
and in what a compressed cache completes, so new forms keep coming, and each is instantiated first: on one H200 that
cost more than the graphs save (docs/benchmarks/demo_speed_h200.md). MLX reads the switch when it first launches
something; a process that computed on the GPU before it made an engine keeps what it had.
"""

from __future__ import annotations

import os

SWITCH = "MLX_USE_CUDA_GRAPHS"


def launch_singly() -> None:
    """On CUDA, without graphs, unless the user's environment says otherwise."""
    import mlx.core as mx

    if mx.cuda.is_available():
        os.environ.setdefault(SWITCH, "0")
