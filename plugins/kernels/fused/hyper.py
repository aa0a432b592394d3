"""Hyper-connections on a GPU: `hyper_mix` and `hyper_head` in two dispatches, `hyper_expand` in one.

The first one multiplies the streams with `fn`, a slice of columns a threadgroup, because one threadgroup a row could
not read `fn` fast enough; the second adds the slices up and does the rest, Sinkhorn in the registers of one thread.
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, ceil_div, power_of_two, source
from sparkwright.plugins.kernels.fused.weights import LOWEST, literal

OUTS, WARPS, THREADS = 4, 4, 128
MOST_STREAMS = 6
"""Sinkhorn keeps a row's n x n coefficients in registers."""


def _logits(launcher: Launcher, streams: mx.array, fn: mx.array) -> tuple[mx.array, int]:
    """Parts of streams fn^T and of the sum of squares, float32 [r, slices, outputs + 1], and the number of slices."""
    r, outputs, columns = streams.shape[0], fn.shape[0], fn.shape[1]
    slices = ceil_div(columns, 256 * WARPS)
    sizes = {"R": r, "K": columns, "N": outputs, "OUTS": OUTS, "WARPS": WARPS, "SLICES": slices}
    (part,) = launcher.launch(
        "stream_logits",
        {"x": streams, "fn": fn},
        {"part": ((r, slices, outputs + 1), mx.float32)},
        {**sizes, "C": power_of_two(OUTS * r)},
        groups=(ceil_div(outputs, OUTS), slices),
        threads=WARP * WARPS,
    )
    return part, slices


def hyper_mix(launcher: Launcher) -> Op:
    def run(
        streams: mx.array, fn: mx.array, base: mx.array, scale: mx.array, eps: float, hc_eps: float, iters: int
    ) -> tuple[mx.array, mx.array, mx.array]:
        """streams [r, n, d] -> mixed [r, d], post [r, n], comb [r, n, n]; see reference.hyper_mix."""
        r, n, d = streams.shape
        part, slices = _logits(launcher, streams, fn)
        groups = ceil_div(d, 8 * THREADS) + 1  # the last one has no columns, it does Sinkhorn beside the others
        mixed, post, comb = launcher.launch(
            "hyper_collapse",
            {"part": part, "x": streams, "base": base, "scale": scale},
            {"y": ((r, d), streams.dtype), "post": ((r, n), mx.float32), "comb": ((r, n, n), mx.float32)},
            {"HC": n, "D": d, "N": fn.shape[0], "SLICES": slices, "THREADS": THREADS, "GROUPS": groups},
            groups=(groups, r),
            threads=THREADS,
            defines=_defines(eps, hc_eps, f"#define SINKHORN {iters}\n"),
            variant=f"mix{eps}_{hc_eps}_{iters}",
        )
        return mixed, post, comb

    return run


def hyper_head(launcher: Launcher) -> Op:
    def run(streams: mx.array, fn: mx.array, base: mx.array, scale: mx.array, eps: float, hc_eps: float) -> mx.array:
        """streams [r, n, d] -> [r, d] float32."""
        r, n, d = streams.shape
        part, slices = _logits(launcher, streams, fn)
        groups = ceil_div(d, 8 * THREADS)
        (y,) = launcher.launch(
            "hyper_collapse",
            {"part": part, "x": streams, "base": base, "scale": scale},
            {"y": ((r, d), mx.float32)},
            {"HC": n, "D": d, "N": fn.shape[0], "SLICES": slices, "THREADS": THREADS, "GROUPS": groups},
            groups=(groups, r),
            threads=THREADS,
            defines=_defines(eps, hc_eps, ""),
            variant=f"head{eps}_{hc_eps}",
        )
        return y

    return run


def hyper_expand(launcher: Launcher) -> Op:
    def run(branch: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
        """branch [r, d], streams [r, n, d], post [r, n], comb [r, n, n] -> [r, n, d]."""
        r, n, d = streams.shape
        (y,) = launcher.launch(
            "hyper_expand",
            {"branch": branch, "x": streams, "post": post, "comb": comb},
            {"y": (streams.shape, streams.dtype)},
            {"HC": n, "D": d, "THREADS": THREADS},
            groups=(ceil_div(d, 8 * THREADS), r),
            threads=THREADS,
        )
        return y

    return run


def _defines(eps: float, hc_eps: float, more: str) -> str:
    known = {"EPS": literal(eps), "HC_EPS": literal(hc_eps), "LOWEST": LOWEST}
    return "".join(f"#define {name} {value}\n" for name, value in known.items()) + more + source("hyper.h")
