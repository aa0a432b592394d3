"""Which ops the fused backend has, and what each covers."""

from __future__ import annotations

from collections.abc import Callable

from sparkwright.core.contracts import Op, OpSpec
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.kernels.fused.attention import WIDEST_HEAD, attend_rows
from sparkwright.plugins.kernels.fused.choose import MOST_EXPERTS, WIDEST_INDEX, indexer_select, route_scores
from sparkwright.plugins.kernels.fused.experts import grouped_experts
from sparkwright.plugins.kernels.fused.hyper import MOST_STREAMS, hyper_expand, hyper_head, hyper_mix
from sparkwright.plugins.kernels.fused.launcher import Launcher
from sparkwright.plugins.kernels.fused.markov import markov_chain
from sparkwright.plugins.kernels.fused.matmul import (
    LETTERS,
    grouped_rows_matmul,
    project_rows,
    small_rows_matmul,
    swiglu_matmul,
)
from sparkwright.plugins.kernels.fused.rotate import norm_rotate, pool_windows
from sparkwright.plugins.kernels.fused.weights import DTYPES, FORMS

Make = Callable[[Launcher], Op]

TABLE: dict[OpSpec, Make] = {
    ops.ATTEND_ROWS: attend_rows,
    ops.GROUPED_EXPERTS: grouped_experts,
    ops.GROUPED_ROWS_MATMUL: grouped_rows_matmul,
    ops.HYPER_EXPAND: hyper_expand,
    ops.HYPER_HEAD: hyper_head,
    ops.HYPER_MIX: hyper_mix,
    ops.INDEXER_SELECT: indexer_select,
    ops.NORM_ROTATE: norm_rotate,
    ops.POOL_WINDOWS: pool_windows,
    ops.PROJECT_ROWS: project_rows,
    ops.ROUTE_SCORES: route_scores,
    ops.SMALL_ROWS_MATMUL: small_rows_matmul,
    ops.SWIGLU_MATMUL: swiglu_matmul,
}


FOREIGN: dict[tuple[str, str], Make] = {
    ("markov_chain", "sparkwright.plugins.drafters.dspark.markov:markov_chain"): markov_chain,
}
"""Ops that other plugins declare, by name and meaning: kernels import no drafter."""


def find(launcher: Launcher, op: OpSpec, dtype: str, format: str, widths: tuple[int, ...]) -> Op | None:
    """The kernel of an op, or None for what it does not cover. The same name with another meaning is not ours."""
    make = TABLE.get(op) or FOREIGN.get((op.name, op.reference))
    if make is None or dtype not in DTYPES or not covers(op, format, widths):
        return None
    if op == ops.INDEXER_SELECT and launcher.backend == "cuda" and dtype != "bfloat16":
        return None  # its scores are products on matrix units
    return make(launcher)


def covers(op: OpSpec, format: str, widths: tuple[int, ...]) -> bool:
    """Readable formats; at most eight matrices a projection; attention's channels in pairs that fit a threadgroup."""
    formats = [part for part in format.replace("/", "+").split("+") if part]
    if not all(part in FORMS for part in formats):
        return False
    if op == ops.PROJECT_ROWS:
        return len(widths) <= 1 + len(LETTERS)
    if op == ops.ATTEND_ROWS:
        return all(width % 2 == 0 and width <= WIDEST_HEAD for width in widths[1:])  # heads, channels, rotary
    if op in (ops.HYPER_MIX, ops.HYPER_HEAD, ops.HYPER_EXPAND):
        return all(streams <= MOST_STREAMS for streams in widths[:1])
    if op in (ops.NORM_ROTATE, ops.POOL_WINDOWS):
        pairs = widths if op == ops.NORM_ROTATE else widths[1:]  # channels, rotary; slots, channels
        return all(width % 2 == 0 and width <= WIDEST_HEAD for width in pairs)
    if op == ops.INDEXER_SELECT:  # heads, channels, rows chosen
        return all(width % 16 == 0 and width <= WIDEST_INDEX for width in widths[1:2])
    if op == ops.ROUTE_SCORES:
        return all(experts <= MOST_EXPERTS for experts in widths[1:2]) and all(k <= 32 for k in widths[2:])
    return bool(formats)


def reason(launcher: Launcher, op: OpSpec, dtype: str, format: str, widths: tuple[int, ...]) -> str:
    """Why `find` found nothing."""
    if op not in TABLE and (op.name, op.reference) not in FOREIGN:
        return "has no kernel for this op"
    if dtype not in DTYPES:
        return f"takes {', '.join(DTYPES)} activations, not {dtype}"
    unread = [part for part in format.replace("/", "+").split("+") if part and part not in FORMS]
    if unread:
        return f"does not read {' or '.join(unread)} weights"
    if op == ops.INDEXER_SELECT and launcher.backend == "cuda" and dtype != "bfloat16":
        return f"takes bfloat16 activations on CUDA, not {dtype}"
    return f"does not take widths {', '.join(map(str, widths))}" if widths else "does not take such weights"
