"""my_plugin keeps a drafter's contract, and drafts what it should."""

from __future__ import annotations

import mlx.core as mx
from sparkwright.core.testing import Check, parametrize_with_checks

from sparkwright_my_plugin import Drafter, Options, State, sparkwright_register_drafters


@parametrize_with_checks(sparkwright_register_drafters())
def test_conformance(check: Check) -> None:
    check.run()


def test_what_followed_last_time_is_drafted() -> None:
    drafter, state = Drafter(Options(block=3)), State()
    drafter.sparkwright_drafter_observe(state, [1, 2, 3, 1, 4, 5], None)
    draft = drafter.sparkwright_drafter_draft(state, 3, 7, mx.zeros((7, 2), dtype=mx.uint32))
    assert draft.tokens.tolist() == [1, 4, 5]
