"""The first fault of the report: dense attention up to 1,024 rows in decode, but top-512 above 512 rows in a batch.

Here the released top-k of 512 is crossed at 2,048 tokens and 1,024 rows at 4,096, in decode, in verify blocks that
straddle either, and in prefill; all three must take the oracle's rows, query by query.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4 import cases, tiny
from tests.deepseek_v4.cases import Case

from sparkwright.core.contracts import Op, OpSpec
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.deepseek_v4.state import State

TOKENS = 4144
EDGES = {512: 4 * 513 - 1, 1024: 4 * 1025 - 1}
"""Rows -> the first position that sees one more than so many."""


@cache
def mid_k() -> Case:
    return cases.make(tiny.MID_K, 2, TOKENS, (), step=512)


@cache
def prefilled(rows: int) -> State:
    return mid_k().prefilled(EDGES[rows] - 12)


def near(position: int) -> range:
    return range(position - 12, position + 16)


@pytest.mark.parametrize("rows", EDGES)
def test_the_choice_is_clear_where_it_is_compared(rows: int) -> None:
    gaps = mid_k().gaps
    compared = [t for t in near(EDGES[rows]) if t in gaps]
    assert (len(compared) == 16) if rows == 512 else (len(compared) == 28)  # dense below the first edge
    assert min(gaps[t] for t in compared) >= cases.SMALLEST_GAP


@pytest.mark.parametrize("rows", EDGES)
def test_prefill_crosses(rows: int) -> None:
    c, r = mid_k(), near(EDGES[rows])
    c.check(c.rows[r.start : r.stop], r.start, "prefill in chunks of 512")


@pytest.mark.parametrize("rows", EDGES)
def test_decode_crosses(rows: int) -> None:
    c, state = mid_k(), cases.fork(prefilled(rows))
    c.check(np.concatenate([c.run(state, 1) for _ in range(28)]), EDGES[rows] - 12, "decode")


@pytest.mark.parametrize("rows", EDGES)
@pytest.mark.parametrize("width", [2, 5, 8])
def test_verify_blocks_straddle(rows: int, width: int) -> None:
    """Blocks that end before, begin after, and lie across the edge, at every offset."""
    c = mid_k()
    for start in range(EDGES[rows] - width, EDGES[rows] + 2):
        state = cases.fork(prefilled(rows))
        c.run(state, start - state.position)
        work = state.begin()
        block = c.run(state, width)
        work.abort()
        c.check(block, start, f"block of {width} at {start}")


def test_a_decode_that_stays_dense_up_to_1024_rows_is_noticed() -> None:
    """The fault itself, as a control: these texts can tell the two apart."""

    def select(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        reference = select_reference(op, dtype=dtype, format=format, widths=widths)
        if op.name != "indexer_select":
            return reference

        def dense_to_1024(query: mx.array, weight: mx.array, keys: mx.array, visible: mx.array, *more: Any) -> Any:
            k = 1024 if query.shape[0] == 1 else 512
            return reference(query, weight, keys, visible, more[0], k)

        return dense_to_1024

    c = mid_k()
    model = tiny.tiny_model(c.raw, c.weights, select)
    state = cases.fork(prefilled(512))
    model.forward(c.feed(state.position, 16), state, "none")
    one = np.array(model.forward(c.feed(state.position, 1), state).logits)
    error = np.abs(one - c.logits[state.position - 1]).max() / np.abs(c.logits).max()
    assert error > 10 * cases.TOLERANCE
