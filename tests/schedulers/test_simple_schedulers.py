"""`fixed` and `threshold`."""

from __future__ import annotations

import pytest

from sparkwright.core.contracts import DrafterFacts, RoundReport, SchedulerFacts, Site
from sparkwright.core.errors import AssemblyError
from sparkwright.plugins.schedulers import fixed, threshold


@pytest.mark.parametrize(("depth", "limit", "planned"), [(None, 5, 5), (3, 5, 3), (3, 2, 2), (0, 5, 0)])
def test_fixed_asks_for_its_depth_within_the_limit(depth: int | None, limit: int, planned: int) -> None:
    plugin = fixed.Fixed(fixed.FixedOptions(depth=depth))
    state = plugin.sparkwright_scheduler_start()
    for _ in range(3):
        assert plugin.sparkwright_scheduler_plan(state, limit) == planned
        plugin.sparkwright_scheduler_learn(state, RoundReport(planned, planned, planned, 0, (), False))
    assert state is not None
    with pytest.raises(ValueError):
        fixed.FixedOptions(depth=8)


def submitted(options: threshold.ThresholdOptions, confidences: list[float]) -> int:
    plugin = threshold.Threshold(options)
    state = plugin.sparkwright_scheduler_start()
    kept = 0
    for _ in range(2):  # the second round must not remember the first one's survival
        assert plugin.sparkwright_scheduler_plan(state, len(confidences)) == len(confidences)
        kept = 0
        for depth, confidence in enumerate(confidences, 1):
            if not plugin.sparkwright_scheduler_more(state, depth, confidence):
                break
            kept += 1
    return kept


@pytest.mark.parametrize(
    ("confidence", "survival", "kept"),
    [
        (0.0, 0.0, 5),
        (0.5, 0.0, 3),
        (0.85, 0.0, 1),
        (0.95, 0.0, 0),
        (0.4, 0.0, 5),
        (0.0, 0.6, 2),
        (0.5, 0.7, 2),
        (0.0, 1.0, 0),
    ],
)
def test_threshold_stops_at_the_first_low_confidence_or_survival(confidence: float, survival: float, kept: int) -> None:
    options = threshold.ThresholdOptions(confidence=confidence, survival=survival)
    assert submitted(options, [0.9, 0.8, 0.8, 0.4, 0.9]) == kept


def test_threshold_is_refused_with_a_drafter_without_confidences() -> None:
    (provider,) = threshold.sparkwright_register_schedulers()
    assert provider.describe is not None
    assert provider.describe(provider.options(), Site()) == SchedulerFacts(confidences=True)
    with pytest.raises(AssemblyError, match=r"'threshold'.*drafter gives none"):
        provider.describe(provider.options(), Site(drafter=DrafterFacts(block=5)))
    with pytest.raises(ValueError):
        threshold.ThresholdOptions(confidence=1.5)
