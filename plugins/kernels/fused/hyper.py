"""Hyper-connections on a GPU: `hyper_mix` and `hyper_head` in two dispatches, `hyper_expand` in one.

The first one multiplies the streams with `fn`, a slice of columns a threadgroup, because one threadgroup a row could
not read `fn` fast enough; the second adds the slices up and does the rest, Sinkhorn in the registers of one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, Plans, Prepared, ceil_div, power_of_two, source
from sparkwright.plugins.kernels.fused.weights import LOWEST, literal

OUTS, WARPS, THREADS = 4, 4, 128
MOST_STREAMS = 6
"""Sinkhorn keeps a row's n x n coefficients in registers."""


def _logits(launcher: Launcher, r: int, dtype: mx.Dtype, n: int, d: int, outputs: int) -> tuple[Prepared, int]:
    """(streams, fn) -> parts of streams fn^T and of the sum of squares, [r, slices, outputs + 1]; and the slices."""
    slices = ceil_div(n * d, 256 * WARPS)
    sizes = {"R": r, "K": n * d, "N": outputs, "OUTS": OUTS, "WARPS": WARPS, "SLICES": slices}
    prepared = launcher.prepare(
        "stream_logits",
        {"x": mx.zeros((r, n, d), dtype), "fn": mx.zeros((outputs, n * d))},
        {"part": ((r, slices, outputs + 1), mx.float32)},
        {**sizes, "C": power_of_two(OUTS * r)},
        groups=(ceil_div(outputs, OUTS), slices),
        threads=WARP * WARPS,
    )
    return prepared, slices


def _collapse(
    launcher: Launcher, r: int, dtype: mx.Dtype, n: int, d: int, eps: float, hc_eps: float, iters: int
) -> tuple[Prepared, Prepared]:
    """The two launches of `hyper_mix`, or with no iterations of `hyper_head`."""
    outputs = (2 + n) * n if iters else n
    first, slices = _logits(launcher, r, dtype, n, d, outputs)
    groups = ceil_div(d, 8 * THREADS) + (iters > 0)  # one more has no columns: it does Sinkhorn beside the others
    made: dict[str, tuple[Sequence[int], mx.Dtype]] = {"y": ((r, d), dtype if iters else mx.float32)}
    if iters:
        made |= {"post": ((r, n), mx.float32), "comb": ((r, n, n), mx.float32)}
    part = mx.zeros((r, slices, outputs + 1))
    second = launcher.prepare(
        "hyper_collapse",
        {
            "part": part,
            "x": mx.zeros((r, n, d), dtype),
            "base": mx.zeros((outputs,)),
            "scale": mx.zeros((3 if iters else 1,)),
        },
        made,
        {"HC": n, "D": d, "N": outputs, "SLICES": slices, "THREADS": THREADS, "GROUPS": groups},
        groups=(groups, r),
        threads=THREADS,
        defines=_defines(eps, hc_eps, f"#define SINKHORN {iters}\n" if iters else ""),
    )
    return first, second


def hyper_mix(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(*sizes: Any) -> tuple[Prepared, Prepared]:
        return _collapse(launcher, *sizes)

    def run(
        streams: mx.array, fn: mx.array, base: mx.array, scale: mx.array, eps: float, hc_eps: float, iters: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        """streams [r, n, d] -> mixed [r, d], post [r, n], comb [r, n, n]; see reference.hyper_mix."""
        r, n, d = streams.shape
        logits, collapse = plans.get(plan, r, streams.dtype, n, d, eps, hc_eps, iters)
        mixed, post, comb = collapse(*logits(streams, fn), streams, base, scale)
        return mixed, post, comb

    return run


def hyper_head(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(*sizes: Any) -> tuple[Prepared, Prepared]:
        return _collapse(launcher, *sizes)

    def run(streams: mx.array, fn: mx.array, base: mx.array, scale: mx.array, eps: float, hc_eps: float) -> mx.array:
        """streams [r, n, d] -> [r, d] float32."""
        r, n, d = streams.shape
        logits, collapse = plans.get(plan, r, streams.dtype, n, d, eps, hc_eps, 0)
        (y,) = collapse(*logits(streams, fn), streams, base, scale)
        return y

    return run


def hyper_expand(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(r: int, dtype: mx.Dtype, n: int, d: int) -> Prepared:
        streams = mx.zeros((r, n, d), dtype)
        return launcher.prepare(
            "hyper_expand",
            {
                "branch": mx.zeros((r, d), dtype),
                "x": streams,
                "post": mx.zeros((r, n)),
                "comb": mx.zeros((r, n, n)),
            },
            {"y": (streams.shape, dtype)},
            {"HC": n, "D": d, "THREADS": THREADS},
            groups=(ceil_div(d, 8 * THREADS), r),
            threads=THREADS,
        )

    def run(branch: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
        """branch [r, d], streams [r, n, d], post [r, n], comb [r, n, n] -> [r, n, d]."""
        r, n, d = streams.shape
        (y,) = plans.get(plan, r, streams.dtype, n, d)(branch, streams, post, comb)
        return y

    return run


def _defines(eps: float, hc_eps: float, more: str) -> str:
    known = {"EPS": literal(eps), "HC_EPS": literal(hc_eps), "LOWEST": LOWEST}
    return "".join(f"#define {name} {value}\n" for name, value in known.items()) + more + source("hyper.h")
