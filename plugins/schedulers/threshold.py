"""The scheduler that trusts the drafter: a block ends at the first draft it is not confident enough of.

It knows no costs and learns nothing; `cost_aware` is the one that asks whether drafting pays. A confidence is looked at
before its own draft exists and never together with later ones, so any verifier may follow.
"""

from __future__ import annotations

import attrs

from sparkwright.core.contracts import Provider, RoundReport, SchedulerFacts, Site, option
from sparkwright.core.errors import AssemblyError
from sparkwright.core.hookspecs import hookimpl

_unit = attrs.validators.and_(attrs.validators.ge(0.0), attrs.validators.le(1.0))


@attrs.frozen
class ThresholdOptions:
    confidence: float = option(0.5, "stop at the first confidence below this; 0 never stops", _unit)
    survival: float = option(
        0.0,
        "stop where the chance that all drafts so far are accepted falls below this; 0 never stops",
        _unit,
    )


@attrs.define(eq=False)
class Survival:
    """The running product of this round's confidences."""

    value: float = 1.0


@attrs.define(eq=False)
class Threshold:
    options: ThresholdOptions

    @hookimpl
    def sparkwright_scheduler_start(self) -> Survival:
        return Survival()

    @hookimpl
    def sparkwright_scheduler_plan(self, state: Survival, limit: int) -> int:
        state.value = 1.0
        return limit

    @hookimpl
    def sparkwright_scheduler_more(self, state: Survival, depth: int, confidence: float) -> bool:
        state.value *= confidence
        return confidence >= self.options.confidence and state.value >= self.options.survival

    @hookimpl
    def sparkwright_scheduler_learn(self, state: Survival, report: RoundReport) -> None:
        return None


def _describe(options: ThresholdOptions, site: Site) -> SchedulerFacts:
    if site.drafter is not None and site.drafter.block and not site.drafter.confidence:
        raise AssemblyError(
            "scheduler 'threshold' stops at confidences and the drafter gives none: expected a drafter with a "
            "confidence head; use scheduler 'cost_aware' or 'fixed' with this one"
        )
    return SchedulerFacts(confidences=True)


@hookimpl
def sparkwright_register_schedulers() -> list[Provider]:
    return [
        Provider(
            kind="scheduler",
            name="threshold",
            summary="submits drafts up to the first one of low confidence or survival",
            build=lambda options, site: Threshold(options),
            describe=_describe,
            options=ThresholdOptions,
        )
    ]
