"""my_plugin keeps a verifier's contract, and accepts what it should."""

from __future__ import annotations

import mlx.core as mx
from sparkwright.core.contracts import Distribution, Draft, PointMass
from sparkwright.core.randomness import Keys
from sparkwright.core.testing import Check, parametrize_with_checks

from sparkwright_my_plugin import Verifier, sparkwright_register_verifiers


@parametrize_with_checks(sparkwright_register_verifiers())
def test_conformance(check: Check) -> None:
    check.run()


def test_drafts_that_the_target_is_sure_of_are_accepted() -> None:
    sure = mx.array([3, 1, 2, 0])  # the only possible token of each row
    log_p = mx.where(mx.arange(4) == sure[:, None], 0.0, -mx.inf)
    p = Distribution(log_p, mx.zeros((4,), dtype=mx.int32))
    draft = Draft(mx.array([3, 1, 0], dtype=mx.int32), PointMass())
    verdict = Verifier().sparkwright_verifier_verify(draft, p, Keys(seed=0, choice=0, anchor=9))
    assert verdict.array.tolist() == [2, 2, 0, 3, 1, 0]  # accepted, next token, flags, the drafts
