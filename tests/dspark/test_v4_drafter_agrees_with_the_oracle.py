"""The V4-native drafter against its float64 definition, whatever the history of its context."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4.tiny import sizes
from tests.dspark.tiny import SPARK, TAPS, WINDOW, fed, greedy_state, no_keys, spark_weights, tiny_drafter
from tests.oracles import deepseek_v4_numpy as v4
from tests.oracles.deepseek_v4_numpy import Array, Weights
from tests.oracles.dspark_numpy import draft_block

from sparkwright.core.contracts import Dense, PointMass
from sparkwright.core.randomness import Keys
from sparkwright.plugins.drafters.dspark.v4 import DraftState, V4Drafter

TOLERANCE = 1e-4  # relative to the largest value; float32 against float64 over three stages


@pytest.fixture(scope="module")
def weights() -> Weights:
    return spark_weights(SPARK, 3)


@pytest.fixture(scope="module")
def drafter(weights: Weights) -> V4Drafter:
    return tiny_drafter(SPARK, weights)


def random_taps(count: int, seed: int) -> Array:
    rows: Array = np.random.default_rng(seed).standard_normal((count, len(TAPS) * SPARK["hidden_size"]))
    return rows.astype(np.float32).astype(np.float64)


def oracle(anchor: int, taps: Array, weights: Weights, sample: Any = None) -> tuple[list[int], Array, Array]:
    return draft_block(anchor, taps, weights, sizes(SPARK), 3, 5, 256, sample)


def compare(drafter: V4Drafter, state: DraftState, anchor: int, taps: Array, weights: Weights) -> None:
    tokens, _, claims = oracle(anchor, taps, weights)
    draft = drafter.draft(state, anchor, 5, no_keys(5))
    assert draft.tokens.tolist() == tokens
    assert isinstance(draft.proposal, PointMass) and draft.confidence is not None
    want = v4.sigmoid(claims) if hasattr(v4, "sigmoid") else 1 / (1 + np.exp(-claims))
    np.testing.assert_allclose(np.array(draft.confidence), want, atol=TOLERANCE)


@pytest.mark.parametrize("count", [1, 7, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3, 46])
@pytest.mark.parametrize("appends", [[46], [1], [2], [3], [4], [5], [6], [5, 1, 6, 2]])
def test_tokens_and_confidences_for_every_context_and_append(
    drafter: V4Drafter, weights: Weights, count: int, appends: list[int]
) -> None:
    taps = random_taps(count, count)
    compare(drafter, fed(drafter, taps, appends), (37 * count) % 256, taps, weights)


def test_logits_agree_with_the_bias_of_each_token_before(drafter: V4Drafter, weights: Weights) -> None:
    taps = random_taps(29, 1)
    seen: list[mx.array] = []

    def shape(logits: mx.array) -> mx.array:
        seen.append(logits)
        return logits - mx.logsumexp(logits, axis=-1, keepdims=True)

    state = fed(drafter, taps, [4])
    state.shape, state.drawn = shape, True
    draft = drafter.draft(state, 11, 5, no_keys(5))
    tokens, logits, _ = oracle(11, taps, weights)
    assert draft.tokens.tolist() == tokens
    got = np.array(mx.concatenate(seen))
    assert np.abs(got - logits).max() <= TOLERANCE * np.abs(logits).max()
    assert isinstance(draft.proposal, Dense)
    log_q = np.array(draft.proposal.log_q)
    want = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert np.abs(log_q - want).max() <= TOLERANCE * np.abs(want).max()


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_a_shorter_draft_is_the_beginning_of_the_whole_block(drafter: V4Drafter, weights: Weights, limit: int) -> None:
    taps = random_taps(20, 2)
    tokens, _, _ = oracle(5, taps, weights)
    draft = drafter.draft(fed(drafter, taps, [3]), 5, limit, no_keys(limit))
    assert draft.tokens.tolist() == tokens[:limit]
    assert draft.confidence is not None and draft.confidence.shape == (limit,)


def test_rounds_with_partial_commits_of_every_size(drafter: V4Drafter, weights: Weights) -> None:
    """Prompt, then rounds that commit 1..6 rows, some without a draft; every block is that of a fresh context."""
    taps = random_taps(90, 5)
    state = greedy_state(drafter)
    at = 0
    for turn, m in enumerate([9, 6, 5, 4, 3, 2, 1, 6, 1, 5, 2, 4, 3, 6, 6]):
        drafter.observe(state, mx.array(taps[at : at + m].astype(np.float32)))
        at += m
        assert state.position == at
        if turn % 3 != 1:
            compare(drafter, state, (at * 13) % 256, taps[:at], weights)


def test_a_draft_leaves_the_state_as_it_was(drafter: V4Drafter) -> None:
    state = fed(drafter, random_taps(21, 6), [21])
    first = drafter.draft(state, 9, 5, no_keys(5))
    before = [np.array(ring.rows) for ring in state.rings]
    again = drafter.draft(state, 9, 5, no_keys(5))
    assert first.tokens.tolist() == again.tokens.tolist() and state.position == 21
    for ring, rows in zip(state.rings, before, strict=True):
        assert np.array_equal(np.array(ring.rows), rows)


def test_nothing_before_the_window_matters_and_everything_in_it_does(drafter: V4Drafter) -> None:
    taps = random_taps(40, 8)

    def hidden(changed: int | None) -> Array:
        rows = taps.copy()
        if changed is not None:
            rows[changed] += 1.0
        return np.array(drafter.block(fed(drafter, rows, [5]), 3))

    plain = hidden(None)
    assert np.array_equal(hidden(40 - WINDOW - 1), plain)
    for changed in (40 - WINDOW, 39):
        assert np.abs(hidden(changed) - plain).max() > 1e-3


def test_a_confidence_never_depends_on_its_own_draft_or_later_noise(drafter: V4Drafter) -> None:
    """With the noise redrawn from draft k on, c_1 .. c_k stay bit for bit; what follows draft k moves."""
    state = fed(drafter, random_taps(21, 9), [21])
    state.shape, state.drawn, state.noisy = lambda x: x - mx.logsumexp(x, axis=-1, keepdims=True), True, True
    keys, others = (Keys(seed, 0, 21).array("draft", 5) for seed in (1, 2))
    before = np.array(drafter.draft(state, 9, 5, keys).confidence)
    moved = 0
    for k in range(1, 6):
        after = np.array(drafter.draft(state, 9, 5, mx.concatenate([keys[: k - 1], others[k - 1 :]])).confidence)
        assert np.array_equal(after[:k], before[:k])
        moved += not np.array_equal(after, before)
    assert moved >= 3
