"""Faults that other implementations had, put in on purpose: the comparison with the oracle must notice each.

The comparison is the one of the other tests, on a small scale: a prefill, then blocks of six and single rows across
windows of both ratios and the indexer's threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4 import cases, tiny
from tests.deepseek_v4.cases import Case, case

from sparkwright.core.contracts import Op, OpSpec, SelectKernel
from sparkwright.plugins.deepseek_v4.compressor import Compressor
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.deepseek_v4.reference import visible_rows
from sparkwright.plugins.deepseek_v4.state import CompressorState, State
from sparkwright.plugins.deepseek_v4.step import Step

Change = Callable[..., Any]
STEPS = (30, *(6,) * 18, *(1,) * 6)


def changed(name: str, change: Change) -> SelectKernel:
    """The reference ops, but `name` is called as change(reference, *arguments)."""

    def select(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        reference = select_reference(op, dtype=dtype, format=format, widths=widths)
        return (lambda *a, **k: change(reference, *a, **k)) if op.name == name else reference

    return select


def error(c: Case, select: SelectKernel) -> float:
    """The largest difference from the oracle, relative to the largest |logit|."""
    model = tiny.tiny_model(c.raw, c.weights, select)
    state, worst = model.new_state(), 0.0
    for count in STEPS:
        first = state.position
        logits = np.array(model.forward(c.feed(first, count), state).logits)
        worst = max(worst, float(np.abs(logits - c.logits[first : first + count]).max()))
    return worst / float(np.abs(c.logits).max())


def comb_transposed(op: Op, branch: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> Any:
    return op(branch, streams, post, comb.swapaxes(1, 2))


def sink_left_out(op: Op, *a: Any) -> Any:
    return op(*a[:5], mx.full(a[5].shape, -1e30), *a[6:])


def inverse_rotary_left_out(op: Op, *a: Any) -> Any:
    return op(*a[:6], mx.ones(a[6].shape), mx.zeros(a[7].shape))


def routed_by_anchor(op: Op, x: mx.array, gate: mx.array, table: mx.array, tokens: mx.array, scale: float) -> Any:
    return op(x, gate, table, mx.broadcast_to(tokens[:1], tokens.shape), scale)


def dense_if_the_first_query_is(
    op: Op, query: mx.array, weight: mx.array, keys: mx.array, visible: mx.array, most: int, k: int
) -> Any:
    if visible.tolist()[0] <= k:  # type: ignore[index, operator]
        return visible_rows(visible, keys.shape[0])
    return op(query, weight, keys, visible, most, k)


def sparse_if_the_last_query_is(
    op: Op, query: mx.array, weight: mx.array, keys: mx.array, visible: mx.array, most: int, k: int
) -> Any:
    """Top-k minus one for everyone as soon as anyone in the batch must choose."""
    return op(query, weight, keys, visible, most, k - 1 if most > k else k)


OPS: dict[str, tuple[str, Change]] = {
    "comb transposed": ("hyper_expand", comb_transposed),
    "sink left out": ("attend_rows", sink_left_out),
    "inverse rotary left out": ("attend_rows", inverse_rotary_left_out),
    "hash routing by anchor id": ("route_hash", routed_by_anchor),
    "threshold of the first query for the batch": ("indexer_select", dense_if_the_first_query_is),
    "threshold of the last query for the batch": ("indexer_select", sparse_if_the_last_query_is),
}


def test_nothing_is_noticed_when_nothing_is_changed() -> None:
    assert error(case("tiny-A"), select_reference) <= cases.TOLERANCE


@pytest.mark.parametrize("fault", OPS)
def test_a_changed_op(fault: str) -> None:
    name, change = OPS[fault]
    assert error(case("tiny-A"), changed(name, change)) > 100 * cases.TOLERANCE


def test_overlap_dropped_at_call_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Compressor._slots

    def without(self: Compressor, state: CompressorState, step: Step) -> tuple[mx.array, mx.array]:
        kv, gate = right(self, state, step)
        if self.ratio == 4:  # the first window of the call finds nothing before it
            gate = mx.concatenate([mx.full((1, 4, self.width), -mx.inf), gate[:1, 4:]], axis=1)
            gate = mx.concatenate([gate, right(self, state, step)[1][1:]])
        return kv, gate

    monkeypatch.setattr(Compressor, "_slots", without)
    assert error(case("tiny-A"), select_reference) > 100 * cases.TOLERANCE


def test_ape_slot_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(self: Step, ratio: int) -> mx.array:
        return mx.array(((self.position + 1 + np.arange(self.rows)) % ratio).astype(np.int32))

    monkeypatch.setattr(Step, "slot_in_window", shifted)
    assert error(case("tiny-A"), select_reference) > 100 * cases.TOLERANCE


def test_visibility_of_the_last_query_for_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(self: Step, ratio: int) -> mx.array:
        return mx.full((self.rows,), self.most(ratio), dtype=mx.int32)

    monkeypatch.setattr(Step, "visible", last)
    assert error(case("tiny-A"), select_reference) > 100 * cases.TOLERANCE


def test_a_rollback_that_forgets_the_emitted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trimming a ring without taking back the rows that closed in the rejected tail: the post-conditions see it."""
    monkeypatch.setenv("SPARKWRIGHT_DEBUG", "1")
    monkeypatch.setattr(CompressorState, "truncate", lambda self, end: self.raw.truncate(end))
    c = case("tiny-A")
    state: State = c.prefilled(126)
    work = state.begin()
    c.run(state, 6)
    with pytest.raises(AssertionError, match="rows of ratio"):
        work.commit(0)
