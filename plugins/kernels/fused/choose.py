"""`route_scores` and `indexer_select` on a GPU: scores in one dispatch, the choice in a second.

Of equal scores the lower expert or row is taken, as the ops' meaning has it; what is compared are scores that round
otherwise than the reference's, so a choice between near ties may fall otherwise.
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.deepseek_v4.reference import visible_rows
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, ceil_div, power_of_two, source
from sparkwright.plugins.kernels.fused.weights import LOWEST, literal, stored

MOST_EXPERTS = 1024
ROUTE_OUTS = 2
CHOOSERS, KEYS, SPLIT = 32, 16, 4
"""Warps that choose for a row; keys that a threadgroup scores; warps among which the index heads are shared."""
WIDEST_INDEX = 256


def route_split(k: int) -> int:
    return 8 if k >= 2048 else 4 if k >= 1024 else 1


def route_scores(launcher: Launcher) -> Op:
    def run(x: mx.array, gate: mx.array, bias: mx.array, k: int, scale: float) -> tuple[mx.array, mx.array]:
        """x [r, d], gate [E, d] float32, bias [E] -> experts int32 [r, k] ascending, weights float32 [r, k]."""
        r, d = x.shape
        experts, split = gate.shape[0], route_split(d)
        matrix = stored("a", Linear(gate))
        sizes = {"R": r, "K": d, "N": experts, "G": 1, "OUTS": ROUTE_OUTS, "SPLIT": split}
        (score,) = launcher.launch(
            "small_rows_matmul",
            {"x": x, **matrix.inputs},
            {"y": ((r, experts), mx.float32)},
            {"T": x.dtype, "Y": mx.float32, **sizes, "C": power_of_two(ROUTE_OUTS * r)},
            groups=(ceil_div(experts, ROUTE_OUTS), 1),
            threads=WARP * split,
            defines=matrix.defines + source("rows_plain.h"),
            variant=f"plain_{matrix.variant}",
        )
        index, weight = launcher.launch(
            "route_choose",
            {"score": score, "bias": bias},
            {"index": ((r, k), mx.int32), "weight": ((r, k), mx.float32)},
            {"E": experts, "LANES": ceil_div(experts, WARP), "TOPK": k},
            groups=(1, r),
            threads=WARP,
            defines=f"#define LOWEST {LOWEST}\n#define SCALE {literal(scale)}\n",
            variant=f"scale{scale}",
        )
        return index, weight

    return run


def indexer_select(launcher: Launcher) -> Op:
    def run(query: mx.array, weight: mx.array, keys: mx.array, visible: mx.array, most: int, k: int) -> mx.array:
        """query [r, Hi, Di], weight [r, Hi], keys [span, Di], visible int32 [r] -> int32 [r, min(k, span)]."""
        r, heads, width = query.shape
        span = keys.shape[0]
        if most <= k:  # every row takes all that it sees
            return visible_rows(visible, min(k, span))
        (score,) = launcher.launch(
            "indexer_scores",
            {"query": query, "weight": weight, "keys": keys.astype(query.dtype)},
            {"score": ((r, span), mx.float32)},
            {"R": r, "HEADS": heads, "K": width, "SPLIT": SPLIT},
            groups=(ceil_div(span, KEYS), 1),
            threads=WARP * SPLIT,
        )
        (index,) = launcher.launch(
            "rows_choose",
            {"score": score, "visible": visible},
            {"index": ((r, min(k, span)), mx.int32)},
            {"TOPK": k, "WIDTH": min(k, span), "WARPS": CHOOSERS},
            groups=(1, r),
            threads=WARP * CHOOSERS,
        )
        return index

    return run
