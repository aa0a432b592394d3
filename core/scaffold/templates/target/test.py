"""my_plugin keeps a target's contract, and says what it should."""

from __future__ import annotations

from sparkwright import assemble
from sparkwright.core.config import load_config
from sparkwright.core.plugins import discover
from sparkwright.core.testing import Check, parametrize_with_checks

from sparkwright_my_plugin import sparkwright_register_targets


@parametrize_with_checks(sparkwright_register_targets())
def test_conformance(check: Check) -> None:
    check.run()


def test_it_counts_on() -> None:
    catalogue = discover().with_providers(*sparkwright_register_targets())
    settings = {
        "target": {"use": "my_plugin"},
        "drafter": {"use": "lookup"},
        "sampler": {"use": "greedy"},
        "verifier": {"use": "greedy"},
    }
    with assemble(load_config(settings, environ={}, catalogue=catalogue)) as engine:
        assert engine.complete("abc", max_tokens=5).text == "defgh"
