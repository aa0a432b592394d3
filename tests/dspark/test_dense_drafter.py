"""The dense drafter against its float64 definition, all heads and both packagings; in the engine on mlx-lm targets."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.core.engines import rounds_observer
from tests.dspark.dense_cases import (
    DEEPSPEC,
    REDUCED,
    SPECULATORS,
    V,
    drafter,
    fed,
    inner,
    lent,
    made,
    random_taps,
)
from tests.dspark.folders import engine
from tests.dspark.tiny import no_keys
from tests.mlx_lm_target import tiny as mlx_lm_tiny
from tests.oracles.dense_dspark_numpy import Array, Weights, draft_block

from sparkwright.core.contracts import Dense, DrafterFacts, Site
from sparkwright.core.plugins import discover
from sparkwright.core.randomness import Keys
from sparkwright.plugins.drafters import dspark
from sparkwright.plugins.drafters.dspark.dense import GROW, DenseDrafter
from sparkwright.plugins.drafters.dspark.dense_config import HEADS

SLIDING = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 6}


def agrees(model: DenseDrafter, taps: Array, appends: list[int], weights: Weights, raw: dict[str, Any]) -> None:
    """Tokens, logits and confidences of one block are the definition's, after this context in these appends."""
    anchor, seen = (5 + 31 * len(taps)) % V, []

    def shape(logits: mx.array) -> mx.array:
        seen.append(logits)
        return logits

    state = fed(model, taps, appends)
    state.shape, state.drawn = shape, True
    draft = model.draft(state, anchor, 7, no_keys(7))
    tokens, logits, confidence = draft_block(anchor, taps, weights, raw)
    assert draft.tokens.tolist() == tokens
    got = np.array(mx.concatenate(seen))
    finite = np.isfinite(logits)
    assert np.array_equal(np.isfinite(got), finite)
    assert np.abs(got[finite] - logits[finite]).max() <= 1e-4 * np.abs(logits[finite]).max()
    np.testing.assert_allclose(np.array(draft.confidence), confidence, atol=1e-4)
    assert state.position == len(taps)


@pytest.mark.parametrize("with_markov", [True, False])
@pytest.mark.parametrize("appends", [[400], [1], [5, 1, 6, 2], [7]])
def test_tokens_logits_and_confidences_are_those_of_the_definition(
    tmp_path: Path, with_markov: bool, appends: list[int]
) -> None:
    raw, weights = made(tmp_path, seed=1, confidence_head_with_markov=with_markov)
    model = drafter(tmp_path)
    for count in (1, 9, 25, GROW + 3) if len(appends) == 1 and appends[0] > 1 else (1, 9, 25):
        agrees(model, random_taps(count), appends, weights, raw)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("vocabulary", [V, REDUCED])
@pytest.mark.parametrize("kinds", [{}, SLIDING], ids=["full", "sliding"])
@pytest.mark.parametrize("causal", [True, False])
def test_every_head_in_the_speculators_packaging(
    tmp_path: Path, head: str, vocabulary: int, kinds: dict[str, Any], causal: bool
) -> None:
    """What the checkpoint leaves out comes from the target; windows of 6 rows, contexts shorter, equal and longer."""
    keys = {"markov_head_type": head, "draft_vocab_size": vocabulary, "sliding_window_non_causal": not causal}
    raw, weights = made(tmp_path, SPECULATORS, 2, **keys, **inner(**kinds))
    model = drafter(tmp_path, lent(weights))
    for count in (1, 6, 25):
        agrees(model, random_taps(count), [4], weights, raw)


@pytest.mark.parametrize("head", HEADS)
def test_every_head_in_the_packaging_of_deepspec(tmp_path: Path, head: str) -> None:
    raw, weights = made(tmp_path, seed=3, markov_head_type=head)
    for count in (1, 25):
        agrees(drafter(tmp_path), random_taps(count), [5, 1], weights, raw)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("with_markov", [True, False])
def test_a_confidence_never_depends_on_its_own_draft_or_later_noise(
    tmp_path: Path, head: str, with_markov: bool
) -> None:
    """With the noise redrawn from draft k on, c_1 .. c_k stay bit for bit; what follows draft k moves."""
    made(tmp_path, seed=4, markov_head_type=head, confidence_head_with_markov=with_markov)
    model = drafter(tmp_path)
    state = fed(model, random_taps(11), [11])
    state.shape, state.drawn, state.noisy = lambda x: x - mx.logsumexp(x, axis=-1, keepdims=True), True, True
    keys, others = (Keys(seed, 0, 11).array("draft", 7) for seed in (1, 2))
    before = model.draft(state, 9, 7, keys)
    moved = 0
    for k in range(1, 8):
        after = model.draft(state, 9, 7, mx.concatenate([keys[: k - 1], others[k - 1 :]]))
        assert np.array_equal(np.array(after.confidence)[:k], np.array(before.confidence)[:k])
        moved += not np.array_equal(np.array(after.confidence), np.array(before.confidence))
    assert moved >= 4 if with_markov else moved == 0  # without the Markov embedding nothing reads the drafts


def test_drafts_of_a_reduced_vocabulary_are_the_targets_tokens_and_q_covers_all_of_it(tmp_path: Path) -> None:
    _, weights = made(tmp_path, SPECULATORS, 5, draft_vocab_size=REDUCED)
    model = drafter(tmp_path, lent(weights))
    state = fed(model, random_taps(9), [9])
    state.shape, state.drawn, state.noisy = lambda x: x - mx.logsumexp(x, axis=-1, keepdims=True), True, True
    ids = set((np.arange(REDUCED) + weights["d2t"]).astype(int).tolist())
    for seed in range(20):
        draft = model.draft(state, 7, 7, Keys(seed, 0, 9).array("draft", 7))
        assert isinstance(draft.proposal, Dense) and draft.proposal.log_q.shape == (7, V)
        q = np.exp(np.array(draft.proposal.log_q))
        np.testing.assert_allclose(q.sum(-1), 1, atol=1e-5)
        assert set(np.flatnonzero(q.max(0)).tolist()) <= ids and set(draft.tokens.tolist()) <= ids  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------------- the engine


def run(target: Path, settings: dict[str, Any]) -> tuple[tuple[int, ...], list[Any]]:
    observer, seen = rounds_observer()
    base: dict[str, Any] = {"target": {"use": "mlx_lm", "model": str(target)}, "observers": {"use": ["rounds"]}}
    base["generation"] = {"max_tokens": 24}
    with engine(target, base | settings, discover().with_providers(observer)) as running:
        return tuple(running.complete([9, 4, 7, 7, 2, 8], seed=1).tokens), seen


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mlx_lm_tiny.make(tmp_path_factory.mktemp("qwen3") / "target", "qwen3")


CHECKPOINTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepspec": (DEEPSPEC, {}),
    "speculators": (SPECULATORS, {"markov_head_type": "gated", **inner(**SLIDING)}),
    "reduced": (SPECULATORS, {"markov_head_type": "rnn", "draft_vocab_size": REDUCED}),
}


@pytest.mark.parametrize("name", list(CHECKPOINTS))
def test_in_the_engine_greedy_text_is_that_of_plain_decoding(target: Path, tmp_path: Path, name: str) -> None:
    assert not hasattr(ctypes.CDLL(None), "openblas_get_config")
    base, keys = CHECKPOINTS[name]
    made(tmp_path, base, **keys)
    plain, _ = run(target, {"drafter": {"use": "none"}})
    mine = {"use": "dspark", "model": str(tmp_path)}
    for scheduler in ("fixed", "cost_aware") if name == "deepspec" else ("fixed",):
        text, seen = run(target, {"drafter": mine, "scheduler": {"use": scheduler}})
        assert text == plain
        assert any(r.drafted for r in seen)


@pytest.mark.parametrize("name", list(CHECKPOINTS))
def test_coupled_text_with_filters_is_that_of_plain_decoding(target: Path, tmp_path: Path, name: str) -> None:
    base, keys = CHECKPOINTS[name]
    made(tmp_path, base, **keys)
    filters = {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.01}
    sampled: dict[str, Any] = {"sampler": {"use": "chain", "chain": filters}, "verifier": {"use": "coupled"}}
    plain, _ = run(target, sampled | {"drafter": {"use": "none"}})
    text, seen = run(target, sampled | {"drafter": {"use": "dspark", "model": str(tmp_path)}})
    assert text == plain and any(r.drafted for r in seen)


def test_facts_come_from_the_config(tmp_path: Path) -> None:
    for name, (base, keys) in CHECKPOINTS.items():
        made(tmp_path / name, base, **keys)
        assert dspark.describe(dspark.Options(), Site(model=tmp_path / name)) == DrafterFacts(
            block=7, proposal="dense", vocab_size=V, taps=(-1, 1, 2), confidence=True, context=512, target_noise=True
        )
