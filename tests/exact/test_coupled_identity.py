"""Coupled text is plain decoding's text for the same seed at temperatures above 0, whatever drafts and schedules.

Every drafter x scheduler that fit together, on a tiny DeepSeek-V4 and a tiny dense model: at each of T = 0.5, 1, 1.5,
20 seeds of 128 tokens are dealt out to the pairs in turn (all seeds for all pairs: docs/benchmarks/coupled_product.py).
With MLX's bundled BLAS rows are bit-equal for any number of rows (conftest sets SPARKWRIGHT_OPENBLAS=0), so equality is
exact here, not up to ties.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from tests.exact import coupled
from tests.exact.coupled import SCHEDULERS, SEEDS, TEMPERATURES, World

pytestmark = pytest.mark.exact


@pytest.fixture(scope="module", params=["tiny V4", "tiny Qwen3"])
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> World:
    assert not hasattr(ctypes.CDLL(None), "openblas_get_config"), "this test needs MLX's bundled BLAS"
    make = {"tiny V4": coupled.tiny_v4, "tiny Qwen3": coupled.tiny_qwen3}[request.param]
    return make(tmp_path_factory.mktemp("coupled"))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_coupled_text_is_plain_text(world: World, temperature: float) -> None:
    plain = coupled.plainly(world, temperature)
    assert len(set(plain)) == SEEDS, "texts must differ from seed to seed"
    turn = 7 * TEMPERATURES.index(temperature)  # other seeds for a pair at another temperature
    totals = np.zeros(2, dtype=int)
    for number, (drafter, scheduler) in enumerate(world.pairs):
        seeds = range((number + turn) % SEEDS, SEEDS, len(world.pairs))
        settings = {"drafter": world.drafters[drafter], "scheduler": SCHEDULERS[scheduler]}
        got = coupled.texts(world, temperature, settings, seeds, plain)
        assert got.tokens == [plain[seed] for seed in seeds], f"{drafter} with {scheduler} changed a text"
        totals += got.submitted, got.accepted
    assert totals[0] > 1000 and totals[1] > 250, f"{totals} drafts submitted and accepted: too few to prove anything"
