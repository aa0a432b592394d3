"""Time during which a CUDA device was computing, and how many kernels that took, out of PyTorch's profiler.

PyTorch's profiler asks the driver about every kernel of the process, MLX's among them; nothing of PyTorch runs. Wall
time of small operations is the host's; this is the device's. Without PyTorch for CUDA, `busy` answers None.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx


def busy(work: Callable[[int], Any], repeats: int = 8) -> dict[str, float] | None:
    """work(i), evaluated by the caller's function, `repeats` times: microseconds and kernels of one of them."""
    if not mx.cuda.is_available():
        return None
    try:
        import torch
        from torch.profiler import ProfilerActivity, profile
    except ImportError:
        return None
    work(0)
    mx.synchronize()
    try:
        torch.zeros(1, device="cuda")
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            for i in range(repeats):
                work(i)
                mx.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            seen.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
    except (RuntimeError, OSError, ValueError, KeyError) as error:  # the wall times stand without it
        print(f"gpu_busy: no device times: {error}", file=sys.stderr)
        return None
    spans = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in events
        if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    if not spans:
        return None
    size = len(spans) // repeats if len(spans) % repeats == 0 else len(spans)  # each repeat has as many, or all are one
    parts = [spans[i : i + size] for i in range(0, len(spans), size)]
    one = statistics.median(map(_union, parts))  # another process on the device lengthens some
    return {"us": one if len(parts) == repeats else one / repeats, "kernels": len(spans) / repeats}


def _union(spans: list[tuple[float, float]]) -> float:
    """Kernels may run beside each other: what counts is when any of them does."""
    total, end = 0.0, float("-inf")
    for first, last in spans:
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total
