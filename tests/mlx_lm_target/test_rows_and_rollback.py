"""Decode, prefill and verify are one function, and rows that were taken back leave nothing behind.

Bit for bit, in float32 with MLX's bundled BLAS (tests/conftest.py asks for it). Recurrent layers round differently for
other numbers of rows; they are compared with a tolerance.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import cache as kinds
from tests.mlx_lm_target.tiny import VOCABULARY

from sparkwright.core.contracts import TargetState
from sparkwright.plugins.targets.mlx_lm import MlxLmTarget
from sparkwright.plugins.targets.mlx_lm_state import WindowCache

EXACT = ["llama", "qwen3", "gemma2", "windowed", "gemma3", "hybrid"]
TargetOf = Callable[[str], MlxLmTarget]
Rows = tuple[np.ndarray, np.ndarray]  # logits [r, V], taps [r, taps * d]


def tokens(count: int, seed: int = 0) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, VOCABULARY, count)]


def forward(target: MlxLmTarget, state: TargetState, ids: list[int]) -> Rows:
    out = target.sparkwright_target_forward(mx.array(ids, mx.int32), state, "all")
    assert out.logits is not None
    assert out.taps is not None
    assert out.logits.dtype == mx.float32
    return np.array(out.logits), np.array(out.taps)


def decoded(target: MlxLmTarget, ids: list[int]) -> Rows:
    """Every row from a forward of its own."""
    state = target.sparkwright_target_new_state()
    rows = [forward(target, state, [t]) for t in ids]
    return np.concatenate([r[0] for r in rows]), np.concatenate([r[1] for r in rows])


def last_of_one_forward(target: MlxLmTarget, ids: list[int], rows: int) -> Rows:
    """The last rows of all the text at once; that this is decoding is the first test below."""
    logits, taps = forward(target, target.sparkwright_target_new_state(), ids)
    return logits[-rows:], taps[-rows:]


def same(a: Rows, b: Rows, exact: bool = True) -> None:
    for x, y in zip(a, b, strict=True):
        if exact:
            np.testing.assert_array_equal(x, y)
        else:
            np.testing.assert_allclose(x, y, atol=2e-4, rtol=2e-4)


def test_bit_equality_is_tested_on_the_bundled_blas() -> None:
    assert not hasattr(ctypes.CDLL(None), "openblas_get_config")


@pytest.mark.parametrize("name", [*EXACT, "recurrent"])
def test_rows_are_the_same_however_they_are_grouped(target_of: TargetOf, name: str) -> None:
    target = target_of(name)
    ids = tokens(90)
    expected = decoded(target, ids)
    groupings = [[*range(0, 90, 8), 90], [0, 37, 38, 40, 44, 52, 90], [0, 90], [0, 64, 65, 73, 90]]
    for cuts in groupings:
        state = target.sparkwright_target_new_state()
        rows = [forward(target, state, ids[a:b]) for a, b in pairwise(cuts)]
        got = np.concatenate([r[0] for r in rows]), np.concatenate([r[1] for r in rows])
        same(got, expected, exact=name != "recurrent")
        assert state.position == 90


@pytest.mark.parametrize("name", [*EXACT, "recurrent"])
@pytest.mark.parametrize("prompt", [1, 5, 7, 68, 71])  # windows are 5 and 70 wide
def test_any_number_of_rows_can_be_kept_at_any_phase_of_a_window(target_of: TargetOf, name: str, prompt: int) -> None:
    target = target_of(name)
    exact = name != "recurrent"
    ids, after = tokens(prompt + 8, seed=prompt), tokens(4, seed=99)
    for kept in range(9):
        state = target.sparkwright_target_new_state()
        forward(target, state, ids[:prompt])
        transaction = state.begin()
        forward(target, state, ids[prompt:])
        transaction.commit(kept)
        assert state.position == prompt + kept
        expected = last_of_one_forward(target, ids[: prompt + kept] + after, 4)
        same(forward(target, state, after), expected, exact)


@pytest.mark.parametrize("name", [*EXACT, "recurrent"])
def test_a_transaction_may_span_several_forwards(target_of: TargetOf, name: str) -> None:
    target = target_of(name)
    ids, after = tokens(30), tokens(3, seed=5)
    for kept in (0, 1, 4, 5, 9, 12):
        state = target.sparkwright_target_new_state()
        forward(target, state, ids[:10])
        transaction = state.begin()
        for a, b in ((10, 14), (14, 15), (15, 22)):
            assert state.position == a
            forward(target, state, ids[a:b])
        transaction.commit(kept)
        expected = last_of_one_forward(target, ids[: 10 + kept] + after, 3)
        same(forward(target, state, after), expected, name != "recurrent")


@pytest.mark.parametrize("name", ["llama", "windowed", "hybrid", "recurrent"])
def test_a_long_life_of_rounds_ends_where_plain_decoding_does(target_of: TargetOf, name: str) -> None:
    target = target_of(name)
    rng = np.random.default_rng(3)
    state = target.sparkwright_target_new_state()
    text: list[int] = []
    while len(text) < 300:
        rows = int(rng.integers(1, 9))
        block = tokens(rows, seed=len(text))
        transaction = state.begin()
        forward(target, state, block)
        kept = int(rng.integers(0, rows + 1))
        if kept == 0 and rng.integers(2):
            transaction.abort()
        else:
            transaction.commit(kept)
        text += block[:kept]
    after = tokens(2, seed=1)
    expected = last_of_one_forward(target, text + after, 2)
    same(forward(target, state, after), expected, name != "recurrent")


@pytest.mark.parametrize("name", ["windowed", "hybrid", "recurrent", "llama"])
def test_a_forward_interrupted_between_layers_can_be_aborted(
    target_of: TargetOf, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = target_of(name)
    ids, after = tokens(12), tokens(3, seed=5)
    state = target.sparkwright_target_new_state()
    forward(target, state, ids)
    transaction = state.begin()
    kind = type(target.model.module.layers[2])

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            forward(target, state, tokens(5, seed=2))
    transaction.abort()
    assert state.position == 12
    expected = last_of_one_forward(target, ids + after, 3)
    same(forward(target, state, after), expected, name != "recurrent")


def test_states_of_one_target_are_independent(target_of: TargetOf) -> None:
    target = target_of("windowed")
    a, b = target.sparkwright_target_new_state(), target.sparkwright_target_new_state()
    ids, others = tokens(20), tokens(20, seed=8)
    got = []
    for t, other in zip(ids, others, strict=True):
        got.append(forward(target, a, [t])[0])
        forward(target, b, [other])
    np.testing.assert_array_equal(np.concatenate(got), decoded(target, ids)[0])


def test_windows_give_equal_rows_long_after_they_have_filled(target_of: TargetOf) -> None:
    target = target_of("gemma3")
    ids = tokens(170)
    expected = decoded(target, ids)
    state = target.sparkwright_target_new_state()
    cuts = [0, 100, *range(103, 170, 7), 170]
    rows = [forward(target, state, ids[a:b])[0] for a, b in pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(rows), expected[0])


def test_a_window_that_moves_while_a_transaction_is_open_keeps_what_a_rollback_needs(
    target_of: TargetOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WindowCache, "STEP", 4)
    monkeypatch.setattr(WindowCache, "ALIGN", 2)
    target = target_of("windowed")
    ids, after = tokens(60), tokens(3, seed=5)
    for kept in range(0, 41, 3):
        state = target.sparkwright_target_new_state()
        forward(target, state, ids[:20])
        transaction = state.begin()
        for a, b in pairwise([20, 24, 25, 33, 34, 42, 50, 60]):
            forward(target, state, ids[a:b])
        transaction.commit(kept)
        expected = last_of_one_forward(target, ids[: 20 + kept] + after, 3)
        same(forward(target, state, after), expected, exact=False)


@pytest.mark.parametrize("prompt", [2, 9, 30])
def test_a_ring_that_is_snapshot_is_put_back_although_it_is_written_in_place(
    target_of: TargetOf, monkeypatch: pytest.MonkeyPatch, prompt: int
) -> None:
    target = target_of("llama")
    rings: Any = type("Ring", (kinds.RotatingKVCache,), {})  # a kind that the target does not know
    monkeypatch.setattr(type(target.model.module), "make_cache", lambda self: [rings(12) for _ in range(4)])
    ids, after = tokens(prompt + 5), tokens(2, seed=5)
    for kept in range(6):
        states = [target.sparkwright_target_new_state() for _ in range(2)]
        for state in states:
            forward(target, state, ids[:prompt])
            forward(target, state, [7])
        transaction = states[0].begin()
        for t in ids[prompt:]:  # one by one: rings are written in place only then
            forward(target, states[0], [t])
        transaction.commit(kept)
        if kept:
            forward(target, states[1], ids[prompt : prompt + kept])
        assert states[0].position == prompt + 1 + kept
        same(forward(target, states[0], after), forward(target, states[1], after), exact=kept != 5)


def test_a_window_keeps_a_bounded_number_of_rows(target_of: TargetOf) -> None:
    target = target_of("windowed")
    state = target.sparkwright_target_new_state()
    for start in range(0, 480, 8):
        forward(target, state, tokens(8, seed=start))
    window = state.caches[0]  # type: ignore[attr-defined]
    assert window.keys.shape[2] <= 2 * window.STEP + window.ALIGN


def test_transactions_end_once_and_do_not_nest(target_of: TargetOf) -> None:
    state = target_of("llama").sparkwright_target_new_state()
    transaction = state.begin()
    with pytest.raises(RuntimeError, match="open transaction"):
        state.begin()
    forward(target_of("llama"), state, [1, 2])
    with pytest.raises(ValueError, match="commit\\(3\\) of a transaction with 2 rows"):
        transaction.commit(3)
    transaction.commit(1)
    for end in (transaction.abort, lambda: transaction.commit(0)):
        with pytest.raises(RuntimeError, match="ended already"):
            end()
    assert state.position == 1
