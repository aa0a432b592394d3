"""`route_scores` and `indexer_select` on a GPU: scores in one dispatch, the choice in a second.

Of equal scores the lower expert or row is taken, as the ops' meaning has it; what is compared are scores that round
otherwise than the reference's, so a choice between near ties may fall otherwise.
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.deepseek_v4.reference import visible_rows
from sparkwright.plugins.kernels.fused.launcher import (
    WARP,
    Held,
    Launcher,
    Plans,
    Prepared,
    ceil_div,
    power_of_two,
    source,
)
from sparkwright.plugins.kernels.fused.weights import LOWEST, literal, stored

MOST_EXPERTS = 1024
ROUTE_OUTS = 2
CHOOSERS, KEYS, SPLIT = 32, 16, 4
"""Warps that choose for a row; keys that a threadgroup scores; warps among which the index heads are shared."""
WIDEST_INDEX = 256


def route_split(k: int) -> int:
    return 8 if k >= 2048 else 4 if k >= 1024 else 1


def route_scores(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(r: int, dtype: mx.Dtype, gate: Held, k: int, scale: float) -> tuple[Prepared, Prepared]:
        experts, d = gate.array.shape
        split, matrix = route_split(d), stored("a", Linear(gate.array))
        sizes = {"R": r, "K": d, "N": experts, "G": 1, "OUTS": ROUTE_OUTS, "SPLIT": split}
        first = launcher.prepare(
            "small_rows_matmul",
            {"x": mx.zeros((r, d), dtype)},
            {"y": ((r, experts), mx.float32)},
            {"T": dtype, "Y": mx.float32, **sizes, "C": power_of_two(ROUTE_OUTS * r)},
            groups=(ceil_div(experts, ROUTE_OUTS), 1),
            threads=WARP * split,
            defines=matrix.defines + source("rows_plain.h"),
            fixed=matrix.inputs,
        )
        second = launcher.prepare(
            "route_choose",
            {"score": mx.zeros((r, experts)), "bias": mx.zeros((experts,))},
            {"index": ((r, k), mx.int32), "weight": ((r, k), mx.float32)},
            {"E": experts, "LANES": ceil_div(experts, WARP), "TOPK": k},
            groups=(1, r),
            threads=WARP,
            defines=f"#define LOWEST {LOWEST}\n#define SCALE {literal(scale)}\n",
        )
        return first, second

    def run(x: mx.array, gate: mx.array, bias: mx.array, k: int, scale: float) -> tuple[mx.array, mx.array]:
        """x [r, d], gate [E, d] float32, bias [E] -> experts int32 [r, k] ascending, weights float32 [r, k]."""
        first, second = plans.get(plan, x.shape[0], x.dtype, Held(gate), k, scale)
        index, weight = second(*first(x), bias)
        return index, weight

    return run


def indexer_select(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(r: int, heads: int, width: int, dtype: mx.Dtype, k: int, taken: int) -> tuple[Prepared, Prepared]:
        score = mx.zeros((r, 8))
        first = launcher.prepare(
            "indexer_scores",
            {
                "query": mx.zeros((r, heads, width), dtype),
                "weight": mx.zeros((r, heads)),
                "keys": mx.zeros((8, width), dtype),
            },
            {"score": (score.shape, mx.float32)},
            {"R": r, "HEADS": heads, "K": width, "SPLIT": SPLIT},
            groups=(1, 1),  # as many as the keys of a call need
            threads=WARP * SPLIT,
        )
        second = launcher.prepare(
            "rows_choose",
            {"score": score, "visible": mx.zeros((r,), mx.int32)},
            {"index": ((r, taken), mx.int32)},
            {"TOPK": k, "WIDTH": taken, "WARPS": CHOOSERS},
            groups=(1, r),
            threads=WARP * CHOOSERS,
        )
        return first, second

    def run(query: mx.array, weight: mx.array, keys: mx.array, visible: mx.array, most: int, k: int) -> mx.array:
        """query [r, Hi, Di], weight [r, Hi], keys [span, Di], visible int32 [r] -> int32 [r, min(k, span)]."""
        r, heads, width = query.shape
        span = keys.shape[0]
        if most <= k:  # every row takes all that it sees
            return visible_rows(visible, min(k, span))
        first, second = plans.get(plan, r, heads, width, query.dtype, k, min(k, span))
        scores = first.resized((r, span), (ceil_div(span, KEYS), 1))
        (index,) = second(*scores(query, weight, keys.astype(query.dtype)), visible)
        return index

    return run
