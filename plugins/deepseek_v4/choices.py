"""What ops of the family choose, said so that calls of other row counts compare: absolute positions, rows and experts.

For audits only; nothing here takes part in a forward.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from sparkwright.core.contracts import Choice
from sparkwright.plugins.deepseek_v4.reference import affinity


def route_scores(
    position: int, result: Any, x: mx.array, gate: mx.array, bias: mx.array, k: int, scale: float
) -> dict[str, Choice]:
    return {"experts": Choice(result[0], affinity(x, gate) + bias)}


def route_hash(position: int, result: Any, *arguments: Any) -> dict[str, Choice]:
    """The token alone decides: no rounding can change it."""
    return {"experts": Choice(result[0])}


def indexer_select(
    position: int, result: Any, query: mx.array, weight: mx.array, keys: mx.array, visible: mx.array, most: int, k: int
) -> dict[str, Choice]:
    """scores [r, span]: -inf for rows that a query does not see."""
    hits = mx.maximum(query.astype(mx.float32) @ keys.astype(mx.float32).T, 0)  # [r, Hi, span]
    scores = (weight.astype(mx.float32)[:, None, :] @ hits)[:, 0]
    seen = mx.arange(keys.shape[0], dtype=mx.int32) < visible[:, None]
    return {"rows": Choice(result, mx.where(seen, scores, -mx.inf))}


def attend_rows(
    position: int, result: Any, query: mx.array, ring: mx.array, slots: mx.array, rows: Any, select: Any, *rest: Any
) -> dict[str, Choice]:
    """Window keys as absolute positions: a ring of S slots holds position p in slot p mod S, so a query at t that reads
    slot s reads the last such position up to t. A slot of the future comes out as one S before it, which nobody reads.
    """
    t = (position + mx.arange(slots.shape[0], dtype=mx.int32))[:, None]
    read = mx.where(slots >= 0, t - (t - slots) % ring.shape[0], -1)
    return {"window": Choice(read)} | ({} if select is None else {"rows": Choice(select)})
