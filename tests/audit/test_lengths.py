"""Expected accepted lengths: block >= stochastic >= coupled on every table; measured ones are the exact ones."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import attrs
import numpy as np
import pytest

from sparkwright.core.audit import lengths
from sparkwright.core.audit.law import count
from sparkwright.core.audit.statistics import goodness_of_fit

from . import cells


def tables(seed: int) -> tuple[Any, Any, int, int]:
    """Random p, q [V, V], anchor and depth; from nearly equal to far apart, from flat to peaked."""
    rng = np.random.default_rng(seed)
    vocab, n = int(rng.integers(2, 6)), int(rng.integers(1, 5))
    logits = rng.normal(size=(vocab, vocab)) * rng.uniform(0.2, 4)
    other = logits + rng.normal(size=logits.shape) * rng.choice([0.01, 0.3, 1.0, 4.0])
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (logits, other))
    return p, q, int(rng.integers(vocab)), n


def test_block_accepts_at_least_what_stochastic_does_and_that_what_coupled_does() -> None:
    strictly = 0
    for seed in range(1000):
        p, q, anchor, n = tables(seed)
        block, stochastic, coupled = (
            lengths.RULES[r](p, q, anchor, n).sum() for r in ("block", "stochastic", "coupled")
        )
        assert block >= stochastic - 1e-12 and stochastic >= coupled - 1e-12, seed
        strictly += block > stochastic + 1e-6 and stochastic > coupled + 1e-6
    assert strictly > 400


def test_one_draft_is_the_same_for_block_and_stochastic() -> None:
    for seed in range(100):
        p, q, anchor, _ = tables(seed)
        np.testing.assert_allclose(lengths.block(p, q, anchor, 1), lengths.stochastic(p, q, anchor, 1), atol=1e-12)


@pytest.mark.parametrize("rule", list(lengths.RULES))
@pytest.mark.parametrize("seed", [1, 2])
def test_measured_lengths_have_the_exact_distribution(rule: str, seed: int) -> None:
    """40,000 rounds of three drafts against the exact law of the accepted length, chi-square at 1e-4."""
    subject = cells.cell({}, rule, "dense", "fixed", seed=seed, vocab=5)
    module = import_module("sparkwright.core.audit.models")
    target = module.target_logits(seed, 5)
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (target, module.draft_logits(target, seed)))
    survival = lengths.RULES[rule](p, q, 0, 3)
    _, sample = count(attrs.evolve(subject, block=3), 40_000, horizon=1)
    test = goodness_of_fit("accepted drafts", sample.lengths, -np.diff([*survival, 0.0]))
    assert test is not None and test.p_value > 1e-4 and test.cells == 4
    assert abs(sample.tau - survival.sum()) < 5 * 1.5 / 200
