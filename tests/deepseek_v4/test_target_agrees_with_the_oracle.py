"""The target against its float64 definition: one-shot, decode, verify blocks and chunks, logits and taps.

Every comparison is also a comparison of decode with verify and prefill: with the bundled BLAS each row must have the
very bits of the one-shot forward, however it was reached. The long part of the matrix carries the marker `target`.
"""

from __future__ import annotations

from collections.abc import Iterable

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4 import cases, tiny
from tests.deepseek_v4.cases import Case, case

CONFIGS = list(tiny.CONFIGS)
CHUNKS = (1, 2, 3, 5, 7, 16, 64, 128)


@pytest.fixture(params=CONFIGS)
def config(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_no_selection_of_the_texts_is_a_near_tie(config: str) -> None:
    gaps = case(config).gaps
    assert len(gaps) > 50, "the text must cross the indexer's top-k"
    assert min(gaps.values()) >= cases.SMALLEST_GAP


def test_one_shot_logits_and_taps(config: str) -> None:
    c = case(config)
    c.check(c.rows, 0, "one-shot")
    taps = np.array(c.model.forward(mx.array(c.tokens), c.model.new_state(), "none").taps)
    assert taps.shape == c.taps.shape
    assert np.abs(taps - c.taps).max() <= cases.TOLERANCE * np.abs(c.taps).max()


def test_rows_one_by_one_and_in_blocks_at_boundaries(config: str) -> None:
    c = case(config)
    k = 4 * (c.raw["index_topk"] + 1)
    cases.singles_and_blocks(c, (1, k - 3, 124, 253))


@pytest.mark.parametrize("chunk", [7, 64])
def test_prefill_in_chunks(config: str, chunk: int) -> None:
    _in_chunks(case(config), chunk)


def _in_chunks(c: Case, chunk: int) -> None:
    state = c.model.new_state()
    logits, taps = [], []
    for at in range(0, cases.TOKENS, chunk):
        out = c.model.forward(c.feed(at, chunk), state)
        logits.append(np.array(out.logits))
        taps.append(np.array(out.taps))
    c.check(np.concatenate(logits), 0, f"chunks of {chunk}")
    error = np.abs(np.concatenate(taps) - c.taps).max()
    assert error <= cases.TOLERANCE * np.abs(c.taps).max(), f"taps in chunks of {chunk}"


def test_last_and_none_are_parts_of_all(config: str) -> None:
    c = case(config)
    state = c.prefilled(120)
    work = state.begin()
    last = c.model.forward(c.feed(120, 8), state, "last")
    work.abort()
    assert last.logits is not None and last.logits.shape[0] == 1
    c.check(np.array(last.logits), 127, "logits of the last row")
    work = state.begin()
    none = c.model.forward(c.feed(120, 8), state, "none")
    assert none.logits is None and none.taps is not None
    work.commit(8)
    c.check(c.run(state, 3), 128, "after a forward without logits")


def test_a_tap_of_the_embedding() -> None:
    c = case("many-heads")
    model = tiny.tiny_model(c.raw, c.weights, taps=(-1, 1))
    taps = np.array(model.forward(c.feed(0, 5), model.new_state()).taps)
    assert np.array_equal(taps[:, : c.raw["hidden_size"]], c.weights["embed.weight"][c.tokens[:5]].astype(np.float32))


# ------------------------------------------------------------------------------------------------- the long matrix


@pytest.mark.target
@pytest.mark.parametrize("part", range(6))
def test_every_prefill_length_then_eight_rows_one_by_one(config: str, part: int) -> None:
    """tiny-A takes every length in 1..300, the other configs every sixth, each another sixth."""
    lengths = range(1 + part, 301, 6)
    _eight_rows(config, [n for n in lengths if config == "tiny-A" or (n // 6) % 6 == CONFIGS.index(config)])


@pytest.mark.slow
def test_every_prefill_length_of_every_config_then_eight_rows_one_by_one(config: str) -> None:
    _eight_rows(config, range(1, 301))


def _eight_rows(config: str, lengths: Iterable[int]) -> None:
    c = case(config)
    for n in lengths:
        state = c.prefilled(n)
        c.check(np.concatenate([c.run(state, 1) for _ in range(8)]), n, f"decode after a prefill of {n}")


@pytest.mark.target
def test_blocks_of_every_width_around_every_boundary(config: str) -> None:
    c = case(config)
    for n in cases.boundaries(c.raw, 300):
        state = c.prefilled(n)
        for width in range(1, 9):
            work = state.begin()
            block = c.run(state, width)
            work.abort()
            c.check(block, n, f"block of {width} after a prefill of {n}")


@pytest.mark.target
@pytest.mark.parametrize("chunk", CHUNKS)
def test_prefill_in_chunks_of_every_size(config: str, chunk: int) -> None:
    _in_chunks(case(config), chunk)
