"""my_plugin keeps an observer's contract, and says what it should."""

from __future__ import annotations

import pytest
from sparkwright.core.generation import RoundTrace
from sparkwright.core.testing import Check, parametrize_with_checks

from sparkwright_my_plugin import Observer, Options, sparkwright_register_observers


@parametrize_with_checks(sparkwright_register_observers())
def test_conformance(check: Check) -> None:
    check.run()


@pytest.mark.parametrize("rounds", [True, False])
def test_rounds_are_told_if_asked_for(rounds: bool, capsys: pytest.CaptureFixture[str]) -> None:
    trace = RoundTrace(
        index=4, position=20, planned=3, drafted=3, submitted=3, accepted=2, tokens=(5, 6, 7), confidences=(), flags=0,
        repeated=False, cut=False, transfers=1, draft_seconds=0.0, verify_seconds=0.0, rest_seconds=0.0,
    )  # fmt: skip
    Observer(Options(rounds=rounds)).sparkwright_round_finished(trace)
    assert ("round 4: 2 of 3 drafts accepted" in capsys.readouterr().err) == rounds
