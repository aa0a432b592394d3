"""Every known-bad plugin is caught by the check that is named for its fault; its good twin passes that check.

What each check must be able to find is here; a check that finds nothing any more fails here.
"""

from __future__ import annotations

import pytest
from tests.kit.bad import drafters, kernels, metadata, observers, samplers, schedulers, targets, verifiers
from tests.kit.bad.twin import Twin

from sparkwright.core.contracts import Provider
from sparkwright.core.testing import Check, checks_for

HOMES = (metadata, drafters, schedulers, verifiers, samplers, targets, observers, kernels)
TWINS: list[Twin] = [twin for home in HOMES for twin in home.TWINS]
LATER = ("q is what is drawn from", "law of the text", "Metal source")


def named(provider: Provider, name: str) -> Check:
    return next(check for check in checks_for(provider) if check.name == name)


def in_tier(later: bool) -> list[Twin]:
    return [twin for twin in TWINS if (twin.check in LATER) == later]


def caught(twin: Twin) -> None:
    outcome = named(twin.bad, twin.check).outcome()
    assert outcome.status == "failed", outcome
    who = f"{twin.bad.kind} '{twin.bad.name}', check '{twin.check}': "
    assert outcome.message.startswith(who) and "\n" not in outcome.message and len(outcome.message) > len(who) + 30
    good = named(twin.good, twin.check).outcome()
    assert good.status == "passed", good


@pytest.mark.parametrize("twin", in_tier(False), ids=str)
def test_a_faulty_plugin_is_caught_by_name(twin: Twin) -> None:
    caught(twin)


@pytest.mark.kit
@pytest.mark.parametrize("twin", in_tier(True), ids=str)
def test_a_faulty_law_or_metal_text_is_caught_by_name(twin: Twin) -> None:
    caught(twin)


def test_the_faults_are_many_and_every_kind_has_some() -> None:
    assert len(TWINS) >= 50 and len({twin.check for twin in TWINS}) >= 25
    assert {twin.bad.kind for twin in TWINS} >= {
        "target", "drafter", "scheduler", "verifier", "sampler", "kernels", "observer",
    }  # fmt: skip


@pytest.mark.kit
@pytest.mark.parametrize(
    "good",
    [home.GOOD for home in HOMES],
    ids=[home.__name__.rpartition(".")[2] for home in HOMES],
)
def test_a_good_twin_passes_everything_but_that_tests_import_mlx(good: Provider) -> None:
    left_out = ("metadata without mlx", "provider")
    ended = [check.outcome() for check in checks_for(good) if not check.slow and check.name not in left_out]
    assert [outcome.message for outcome in ended if outcome.bad] == []
