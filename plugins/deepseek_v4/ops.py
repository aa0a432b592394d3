"""The operations of the family that a kernel backend may replace, as data; their meaning is in `reference.py`.

Arrays go in, arrays come out: every op is a pure function, writes into nothing it was given, and row i of its result is
a function of row i of its arguments (and of what all rows share) alone. This module imports no MLX.
"""

from __future__ import annotations

from sparkwright.core.contracts import OpSpec

_AT = "sparkwright.plugins.deepseek_v4.reference:"
_CHOICES = "sparkwright.plugins.deepseek_v4.choices:"

HYPER_MIX = OpSpec(
    "hyper_mix",
    _AT + "hyper_mix",
    "hyper-connection coefficients (Sinkhorn) and the mix of the residual streams",
)
HYPER_EXPAND = OpSpec("hyper_expand", _AT + "hyper_expand", "a branch's output spread back over the residual streams")
HYPER_HEAD = OpSpec("hyper_head", _AT + "hyper_head", "the streams collapsed to one vector before the final norm")
PROJECT_ROWS = OpSpec("project_rows", _AT + "project_rows", "RMS norm, then every projection of the same row")
NORM_ROTATE = OpSpec(
    "norm_rotate", _AT + "norm_rotate", "RMS norm (optional) and rotary embedding of the last channels"
)
POOL_WINDOWS = OpSpec("pool_windows", _AT + "pool_windows", "gated pooling of closed windows into compressed rows")
INDEXER_SELECT = OpSpec(
    "indexer_select",
    _AT + "indexer_select",
    "indexer scores and each query's exact top-k of its visible rows",
    _CHOICES + "indexer_select",
)
ATTEND_ROWS = OpSpec(
    "attend_rows",
    _AT + "attend_rows",
    "attention over window and selected rows, sink, inverse rotary",
    _CHOICES + "attend_rows",
)
SMALL_ROWS_MATMUL = OpSpec(
    "small_rows_matmul", _AT + "small_rows_matmul", "a few rows by a matrix, its weights read once"
)
GROUPED_ROWS_MATMUL = OpSpec(
    "grouped_rows_matmul", _AT + "grouped_rows_matmul", "a few rows by one matrix for each output group"
)
ROUTE_SCORES = OpSpec(
    "route_scores", _AT + "route_scores", "experts of a row by score, and their weights", _CHOICES + "route_scores"
)
ROUTE_HASH = OpSpec(
    "route_hash", _AT + "route_hash", "experts of a row by token id, and their weights", _CHOICES + "route_hash"
)
GROUPED_EXPERTS = OpSpec(
    "grouped_experts", _AT + "grouped_experts", "the routed experts' MLPs, each expert's weights read once"
)
SWIGLU_MATMUL = OpSpec("swiglu_matmul", _AT + "swiglu_matmul", "clamped SwiGLU and the down projection")

OPS: tuple[OpSpec, ...] = (
    HYPER_MIX,
    HYPER_EXPAND,
    HYPER_HEAD,
    PROJECT_ROWS,
    NORM_ROTATE,
    POOL_WINDOWS,
    INDEXER_SELECT,
    ATTEND_ROWS,
    SMALL_ROWS_MATMUL,
    GROUPED_ROWS_MATMUL,
    ROUTE_SCORES,
    ROUTE_HASH,
    GROUPED_EXPERTS,
    SWIGLU_MATMUL,
)
