"""Coupled text is plain decoding's text for the same seed: tiny V4 at temperature above 0, whatever drafts.

Every drafter x scheduler that fit together: at each of T = 0.5, 1 and 1.5, 20 seeds of 128 tokens are dealt out to the
pairs in turn (all seeds for all pairs under `slow`). With MLX's bundled BLAS rows are bit-equal for any number of rows
(conftest sets SPARKWRIGHT_OPENBLAS=0), so equality is exact here, not up to ties.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tests.deepseek_v4.tiny import TINY_A
from tests.dspark.folders import engine, write_folder
from tests.dspark.tiny import spark_weights

from sparkwright.core import costs
from sparkwright.core.contracts import CostCurves, Draft, DrafterFacts, PointMass, Provider
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.plugins import discover
from sparkwright.core.testing.toys import random_drafter

SEEDS, TOKENS = 20, 128
TEMPERATURES = (0.5, 1.0, 1.5)
RAW: dict[str, Any] = TINY_A | {
    "vocab_size": 67,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "compress_ratios": [4, 128, 0, 0],
    "num_hash_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 16,
    "q_lora_rank": 16,
    "sliding_window": 12,
    "index_n_heads": 4,
    "index_topk": 6,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 2,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 66,
    "dspark_target_layer_ids": [0, 1],
    "dspark_markov_rank": 8,
}
"""Window, both ratios and the indexer's choice all turn within the texts."""
DRAFTERS: dict[str, dict[str, Any]] = {
    "dspark": {"use": "dspark"},
    "dspark, point": {"use": "dspark", "dspark": {"proposal": "point"}},
    "lookup": {"use": "lookup", "lookup": {"min_n": 1}},
    "random": {"use": "random"},
    "knowing": {"use": "knowing"},
}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "fixed": {"use": "fixed"},
    "threshold": {"use": "threshold", "threshold": {"confidence": 0.4, "survival": 0.1}},
    "cost_aware": {"use": "cost_aware"},
}
PAIRS = [(d, s) for d in DRAFTERS for s in SCHEDULERS if s != "threshold" or d.startswith("dspark")]
CHEAP = CostCurves(plain=1.0, verify=(1.0, 1.02, 1.04, 1.06, 1.3, 1.32, 1.34, 1.36), draft=0.02)
"""Costs under which drafting pays also for poor drafters, with a step in them."""


@attrs.define(eq=False)
class Knowing:
    """Drafts the very text, with every fourth token wrong: long blocks are accepted, and cut at every length."""

    known: dict[tuple[int, ...], list[int]]

    @hookimpl
    def sparkwright_drafter_start(self, prompt: Sequence[int]) -> list[int]:
        """The whole sequence, its first element being how many tokens of it the target has."""
        return [0, *prompt, *self.known[tuple(prompt)]]

    @hookimpl
    def sparkwright_drafter_draft(self, state: list[int], limit: int) -> Draft:
        import mlx.core as mx

        at = state[0] + 1
        drafts = [(t + (at + i) % 4 // 3) % 67 for i, t in enumerate(state[1 + at : 1 + at + limit])]
        return Draft(mx.array(drafts, dtype=mx.int32), PointMass())

    @hookimpl
    def sparkwright_drafter_observe(self, state: list[int], tokens: Sequence[int]) -> None:
        state[0] += len(tokens)


def knowing(known: dict[tuple[int, ...], list[int]]) -> Provider:
    return Provider(
        kind="drafter", name="knowing", summary="toy: knows the text", build=lambda options, site: Knowing(known),
        describe=lambda options, site: DrafterFacts(block=7),
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert not hasattr(ctypes.CDLL(None), "openblas_get_config"), "this test needs MLX's bundled BLAS"
    return write_folder(tmp_path_factory.mktemp("coupled"), RAW, spark_weights(RAW, 2))


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("costs") / "cheap.json"
    costs.save(path, CHEAP, {})
    return path


def prompt(seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [int(t) for t in rng.integers(2, 66, size=1 + seed % 20)]


def texts(
    model: Path, temperature: float, settings: dict[str, Any], seeds: Sequence[int], known: Any = None
) -> tuple[list[Any], int, int]:
    """The texts, and how many drafts were submitted and accepted."""
    base: dict[str, Any] = {
        "sampler": {"use": "chain", "chain": {"temperature": temperature, "top_p": 0.95, "repetition_penalty": 1.1}},
        "verifier": {"use": "coupled"},
        "generation": {"max_tokens": TOKENS, "ignore_eos": True},
    }
    catalogue = discover().with_providers(random_drafter(), knowing(known or {}))
    with engine(model, base | settings, catalogue) as running:
        results = [running.complete(prompt(seed), seed=seed) for seed in seeds]
    submitted, accepted = (sum(getattr(r.stats, name) for r in results) for name in ("submitted", "accepted"))
    return [r.tokens for r in results], submitted, accepted


@cache
def plain(model: Path, temperature: float) -> list[Any]:
    return texts(model, temperature, {"drafter": {"use": "none"}}, range(SEEDS))[0]


def check(model: Path, curves: Path, pair: int, temperature: float, seeds: Sequence[int]) -> tuple[int, int]:
    drafter, scheduler = PAIRS[pair]
    settings = {"drafter": DRAFTERS[drafter], "scheduler": SCHEDULERS[scheduler], "engine": {"costs": str(curves)}}
    expected = plain(model, temperature)
    known = {tuple(prompt(seed)): list(text) for seed, text in enumerate(expected)}
    got, submitted, accepted = texts(model, temperature, settings, seeds, known)
    assert got == [expected[seed] for seed in seeds], f"{drafter} with {scheduler} changed a text"
    return submitted, accepted


@pytest.mark.exact
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_coupled_text_is_plain_text(model: Path, curves: Path, temperature: float) -> None:
    assert len(set(plain(model, temperature))) == SEEDS, "texts must differ from seed to seed"
    turn = 5 * TEMPERATURES.index(temperature)  # other seeds for a pair at another temperature
    totals = np.zeros(2, dtype=int)
    for pair in range(len(PAIRS)):
        mine = range((pair + turn) % len(PAIRS), SEEDS, len(PAIRS))
        totals += check(model, curves, pair, temperature, mine)
    assert totals[0] > 1000 and totals[1] > 250, f"{totals} drafts submitted and accepted: too few to prove anything"


@pytest.mark.slow
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("pair", range(len(PAIRS)), ids=[f"{d} {s}" for d, s in PAIRS])
def test_every_seed_for_every_pair(model: Path, curves: Path, pair: int, temperature: float) -> None:
    submitted, _ = check(model, curves, pair, temperature, range(SEEDS))
    assert submitted > 20
