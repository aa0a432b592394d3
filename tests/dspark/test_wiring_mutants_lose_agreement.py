"""Wiring that is off by one accepts little (spec 16.5 item 10): a constructed target, and mutants of the drafter.

The constructed target continues every anchor with what the float64 definition drafts from the taps of the positions
before it, so right wiring has all of its drafts accepted and nothing but wiring is measured.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4.tiny import sizes
from tests.dspark.tiny import SPARK, TAPS, WINDOW, fed, no_keys, spark_weights, tiny_drafter
from tests.oracles import deepseek_v4_numpy as v4
from tests.oracles.deepseek_v4_numpy import Array
from tests.oracles.dspark_numpy import draft_block

from sparkwright.core.contracts import Draft
from sparkwright.plugins.deepseek_v4.reference import rms_norm
from sparkwright.plugins.drafters.dspark.v4 import DraftState, V4Drafter

ANCHORS = range(WINDOW + 4, WINDOW + 28, 2)
WEIGHTS = spark_weights(SPARK, 5)
IDS = np.random.default_rng(17).integers(0, 256, max(ANCHORS) + 2)
TAPS_OUT = v4.forward(IDS, WEIGHTS, sizes(SPARK), TAPS)[1]
TAPS_IN = v4.forward(IDS, WEIGHTS, sizes(SPARK), tuple(t - 1 for t in TAPS))[1]


@pytest.fixture(scope="module")
def drafter() -> V4Drafter:
    return tiny_drafter(SPARK, WEIGHTS)


def continuation(at: int) -> tuple[list[int], Array]:
    assert TAPS_OUT is not None
    tokens, _, claims = draft_block(int(IDS[at]), TAPS_OUT[:at], WEIGHTS, sizes(SPARK), 3, 5, 256)
    return tokens, 1 / (1 + np.exp(-claims))


Wiring = Callable[[V4Drafter, int], Draft]


def drafted(drafter: V4Drafter, state: DraftState, at: int) -> Draft:
    return drafter.draft(state, int(IDS[at]), 5, no_keys(5))


def right(drafter: V4Drafter, at: int) -> Draft:
    assert TAPS_OUT is not None
    return drafted(drafter, fed(drafter, TAPS_OUT[:at], [6]), at)


def anchor_in_context(drafter: V4Drafter, at: int) -> Draft:
    assert TAPS_OUT is not None
    state = fed(drafter, TAPS_OUT[: at + 1], [6])
    for ring in state.rings:
        ring.end = at  # the block stays where it belongs
    return drafted(drafter, state, at)


def block_shifted(drafter: V4Drafter, at: int) -> Draft:
    assert TAPS_OUT is not None
    state = fed(drafter, TAPS_OUT[:at], [6])
    for ring in state.rings:
        ring.end = at + 1  # the context stays where it belongs
    return drafted(drafter, state, at)


def taps_of_inputs(drafter: V4Drafter, at: int) -> Draft:
    assert TAPS_IN is not None
    return drafted(drafter, fed(drafter, TAPS_IN[:at], [6]), at)


def agreement(drafter: V4Drafter, wiring: Wiring) -> float:
    """Accepted drafts of 5, on average over the anchors."""
    accepted = []
    for at in ANCHORS:
        want, _ = continuation(at)
        got = wiring(drafter, at).tokens.tolist()
        accepted.append(next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), 5))  # type: ignore[arg-type]
    return float(np.mean(accepted))


def test_right_wiring_has_every_draft_accepted(drafter: V4Drafter) -> None:
    assert agreement(drafter, right) == 5.0


@pytest.mark.parametrize("wiring", [anchor_in_context, block_shifted, taps_of_inputs])
def test_a_mutant_loses_agreement(drafter: V4Drafter, wiring: Wiring) -> None:
    assert agreement(drafter, wiring) < 4.0


def test_confidence_reads_what_comes_before_the_norm(drafter: V4Drafter) -> None:
    def off(wiring: V4Drafter) -> float:
        gaps = []
        for at in ANCHORS:
            confidence = right(wiring, at).confidence
            assert confidence is not None
            gaps.append(np.abs(np.array(confidence) - continuation(at)[1]).max())
        return float(max(gaps))

    chain = drafter._chain

    def after_the_norm(base: mx.array, hidden: mx.array, *rest: object) -> object:
        return chain(base, rms_norm(hidden, drafter.norm, drafter.config.rms_eps), *rest)

    assert off(drafter) < 1e-4
    assert off(attrs.evolve(drafter, chain=after_the_norm)) > 0.05
