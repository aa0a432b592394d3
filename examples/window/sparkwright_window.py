"""Scheduler `window`: asks for as many drafts as were accepted lately, and one more.

It is not a cost model: it keeps a block from being much longer than what gets through, and does not ask whether
drafting pays at all (`cost_aware` does). It looks at past rounds only, so any verifier may follow.
"""

from __future__ import annotations

import attrs
from sparkwright.core.contracts import Provider, RoundReport, SchedulerFacts, Site, option
from sparkwright.core.hookspecs import hookimpl


@attrs.frozen
class Options:
    memory: float = option(
        0.8,
        "share of the average that a new round leaves standing: 0 is the last round only",
        attrs.validators.and_(attrs.validators.ge(0.0), attrs.validators.lt(1.0)),
    )
    start: float = option(3.0, "accepted drafts a round that are supposed at first", attrs.validators.ge(0.0))


@attrs.define(eq=False)
class Window:
    """Accepted drafts a round: an exponential moving average over this request's rounds."""

    accepted: float


@attrs.define(eq=False)
class Scheduler:
    options: Options

    @hookimpl
    def sparkwright_scheduler_start(self) -> Window:
        return Window(self.options.start)  # a fresh one for every request: what an earlier one did must not be seen

    @hookimpl
    def sparkwright_scheduler_plan(self, state: Window, limit: int) -> int:
        return min(limit, round(state.accepted) + 1)  # one more than expected, or the average could never grow

    @hookimpl
    def sparkwright_scheduler_learn(self, state: Window, report: RoundReport) -> None:
        if report.submitted and not report.cut:  # of a round cut by a stop rule nobody knows what would have passed
            state.accepted += (1.0 - self.options.memory) * (report.accepted - state.accepted)


def describe(options: Options, site: Site) -> SchedulerFacts:
    return SchedulerFacts()  # wants no confidences, anticipates nothing, knows no costs


@hookimpl
def sparkwright_register_schedulers() -> list[Provider]:
    return [
        Provider(
            kind="scheduler",
            name="window",
            summary="as many drafts as a moving average of accepted ones, and one more",
            build=lambda options, site: Scheduler(options),
            describe=describe,
            options=Options,
        )
    ]
