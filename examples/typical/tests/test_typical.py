"""The verifier keeps its contract, accepts by Medusa's formula, and every result says that it is lossy."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
from sparkwright import assemble
from sparkwright.core.config import load_config
from sparkwright.core.contracts import Distribution, Draft, PointMass
from sparkwright.core.plugins import discover
from sparkwright.core.randomness import Keys
from sparkwright.core.testing import Check, parametrize_with_checks, toys
from sparkwright_typical import Options, Verifier, sparkwright_register_verifiers, typical


@parametrize_with_checks(sparkwright_register_verifiers())
def test_conformance(check: Check) -> None:
    check.run()


def test_a_draft_passes_by_the_formula() -> None:
    rows = [[0.85, 0.15, *[0.0] * 10], [1 / 12] * 12, [0.5, 0.3, 0.08, 0.08, 0.04, *[0.0] * 7]]
    options = Options(epsilon=0.09, delta=0.3)
    log_p = mx.log(mx.array(rows))
    for token in range(12):
        passed = np.array(typical(log_p, mx.full((3,), token, dtype=mx.int32), options))
        for row, got in zip(rows, passed, strict=True):
            entropy = -sum(p * math.log(p) for p in row if p > 0)
            assert got == (row[token] > min(0.09, 0.3 * math.exp(-entropy))), (row, token)


def test_only_rows_that_were_looked_at_raise_flags() -> None:
    log_p = mx.log(mx.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]))
    for draft, accepted in (([1, 1], 0), ([0, 0], 1), ([0, 1], 2)):
        for row in range(3):
            flags = mx.array([5 * (i == row) for i in range(3)], dtype=mx.int32)
            block = Draft(mx.array(draft, dtype=mx.int32), PointMass())
            verdict = Verifier(Options()).sparkwright_verifier_verify(block, Distribution(log_p, flags), Keys(0, 0, 7))
            assert np.array(verdict.array).tolist()[::2][:2] == [accepted, 5 if row <= accepted else 0]


def test_the_result_says_that_it_is_lossy_unless_the_sampler_has_no_randomness() -> None:
    table = [[0.0, 1.0, 2.0], [2.0, 0.0, 1.0], [1.0, 2.0, 0.0]]
    plugins = [toys.markov_target(table), toys.table_drafter(table), *sparkwright_register_verifiers()]
    catalogue = discover().with_providers(*plugins)
    for temperature, promise in ((1.0, "lossy"), (0.0, "identity-up-to-ties")):
        settings = {
            "target": {"use": "markov"},
            "drafter": {"use": "table"},
            "verifier": {"use": "typical"},
            "scheduler": {"use": "fixed"},
            "sampler": {"chain": {"temperature": temperature}},
        }
        with assemble(load_config(settings, environ={}, catalogue=catalogue)) as engine:
            result = engine.complete([0, 1], max_tokens=30)
        assert result.promise == promise and result.stats.accepted > 5
