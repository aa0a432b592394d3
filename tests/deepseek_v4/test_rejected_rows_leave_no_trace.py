"""Transactions: whatever was forwarded and taken back, the state is that of a run which never saw it (spec 6.4).

SPARKWRIGHT_DEBUG=1 is set, so the post-conditions of every commit are asserted too. Rejected tails are garbage tokens.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4 import cases, tiny
from tests.deepseek_v4.cases import Case, case

from sparkwright.plugins.deepseek_v4.state import State


@pytest.fixture(autouse=True)
def debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKWRIGHT_DEBUG", "1")


def speculate(c: Case, state: State, width: int, good: int) -> np.ndarray:
    """A verify of `width` rows of which the first `good` are the text's, committed so far; the logits of those."""
    start = state.position
    rows = np.array(c.tokens[start : start + width])
    rows[good:] = cases.garbage(rows[good:], c.raw["vocab_size"])
    work = state.begin()
    logits = np.array(c.model.forward(mx.array(rows), state).logits)
    work.commit(good)
    return logits[:good]


def every_commit(c: Case, length: int) -> None:
    """All blocks 1..8 and all m in 0..block after a prefill of `length`: logits to come, and the state itself."""
    base = c.prefilled(length)
    clean = {m: c.prefilled(length + m) for m in range(9)}
    for width in range(1, 9):
        for m in range(width + 1):
            state, what = cases.fork(base), f"{m} of {width} rows after {length}"
            speculate(c, state, width, m)
            cases.assert_same_state(state, clean[m], what)
            c.check(c.run(state, 5), length + m, what)


@pytest.mark.parametrize(("name", "length"), [("tiny-A", 126), ("one-block", 123), ("pro-like", 46)])
def test_every_part_of_every_block(name: str, length: int) -> None:
    """Both ratios close, the window wraps, and the indexer becomes sparse within these blocks."""
    every_commit(case(name), length)


@pytest.mark.target
@pytest.mark.parametrize("length", [1, 3, 4, 15, 16, 33, 34, 120, 127, 128, 131, 255])
def test_every_part_of_every_block_at_every_phase(length: int) -> None:
    every_commit(case("tiny-A"), length)


def test_an_abort_and_a_commit_of_nothing_are_the_same() -> None:
    c = case("tiny-A")
    for end in ("abort", "commit"):
        state = c.prefilled(127)
        work = state.begin()
        c.run(state, 6)
        work.abort() if end == "abort" else work.commit(0)
        cases.assert_same_state(state, c.prefilled(127), end)


def test_a_transaction_may_span_forwards() -> None:
    """Three forwards, more rows than any window holds, then a cut inside the second."""
    c = case("one-block")
    state = c.prefilled(118)
    work = state.begin()
    c.run(state, 5)
    assert state.position == 123
    rows = cases.garbage(c.tokens[126:137], c.raw["vocab_size"])
    c.model.forward(c.feed(123, 3), state)
    c.model.forward(mx.array(rows), state)
    c.model.forward(mx.array(cases.garbage(c.tokens[:40], c.raw["vocab_size"])), state)
    work.commit(8)
    cases.assert_same_state(state, c.prefilled(126), "a cut inside the second of four forwards")
    c.check(c.run(state, 9), 126, "after it")


def test_misuse_is_refused() -> None:
    c = case("one-block")
    state = c.prefilled(10)
    work = state.begin()
    with pytest.raises(RuntimeError, match="already open"):
        state.begin()
    c.run(state, 2)
    with pytest.raises(ValueError, match="0 <= m <= 2"):
        work.commit(3)
    work.commit(1)
    with pytest.raises(RuntimeError, match="already been committed"):
        work.abort()


def random_rounds(c: Case, rounds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = c.prefilled(5)
    for i in range(rounds):
        width = int(rng.integers(1, 9))
        good = int(rng.integers(0, width + 1))
        start = state.position
        if start + width > len(c.tokens):
            state = c.prefilled(5)
            continue
        logits = speculate(c, state, width, good)
        if good:
            c.check(logits, start, f"round {i}: {good} of {width}")
    cases.assert_same_state(state, c.prefilled(state.position), f"after {rounds} rounds")


def test_many_rounds_end_where_a_clean_run_does() -> None:
    random_rounds(case("one-block"), 120, seed=1)


@pytest.mark.target
def test_a_thousand_random_rounds() -> None:
    """About 2,250 tokens: windows, both ratios and buffers that grow."""
    raw = tiny.ONE_BLOCK
    c = cases.make(raw, 0, 2600, (), step=500)
    assert min(c.gaps.values()) >= 1e-6
    random_rounds(c, 1000, seed=7)


# ------------------------------------------------------------------------------------------------------- memory


WIDE = tiny.TINY_A | {
    "num_hidden_layers": 2,
    "compress_ratios": [4, 128],
    "num_hash_layers": 0,
    "head_dim": 256,
    "qk_rope_head_dim": 8,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "index_head_dim": 128,
    "index_topk": 32,
    "hc_sinkhorn_iters": 2,
}


@pytest.fixture(scope="module")
def wide() -> Iterator[tuple[Case, State, int]]:
    """A state whose row buffers (16 MB) dwarf everything that a round computes."""
    c = cases.make(WIDE, 0, 700, ())
    state = c.prefilled(100)
    layer = state.layers[0]
    assert layer.compressor is not None and layer.indexer is not None
    for compressor in (layer.compressor, layer.indexer):
        compressor.rows.reserve(16_000_000 // 4 // compressor.rows.array.shape[1])
    mx.eval(state.arrays)
    yield c, state, min(x.rows.array.nbytes for x in layer.compressors)


def peak_above_start(c: Case, state: State, rounds: int, hold: bool = False) -> int:
    """Bytes by which rounds of verify and commit exceed what was there before them."""
    held: list[mx.array] = []
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for i in range(rounds):
        if hold:
            held = [a[:1] for a in state.arrays]  # a view keeps the old buffer's bytes
            mx.eval(held)
        speculate(c, state, 6, (3 + i) % 7)
    del held
    return mx.get_peak_memory() - before


def test_memory_is_flat_over_commits(wide: tuple[Case, State, int]) -> None:
    c, state, buffer = wide
    assert buffer > 15_000_000
    assert peak_above_start(c, state, 120) < buffer // 4


def test_holding_an_old_buffer_is_noticed(wide: tuple[Case, State, int]) -> None:
    """The control: what the flat-memory test would see if someone held on to an array from before the update."""
    c, state, buffer = wide
    assert peak_above_start(c, state, 3, hold=True) > buffer // 2
