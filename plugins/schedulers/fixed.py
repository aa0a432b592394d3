"""The scheduler that always asks for the same depth. It looks at nothing and learns nothing."""

from __future__ import annotations

import attrs

from sparkwright.core.contracts import WIDEST_VERIFY, Provider, RoundReport, SchedulerFacts, Site, option
from sparkwright.core.hookspecs import hookimpl


@attrs.frozen
class FixedOptions:
    depth: int | None = option(
        None,
        "drafts in every round; unset: the drafter's whole block; 0: plain decoding",
        attrs.validators.optional(attrs.validators.in_(range(WIDEST_VERIFY))),
    )


@attrs.define(eq=False)
class Fixed:
    options: FixedOptions

    @hookimpl
    def sparkwright_scheduler_start(self) -> str:
        return "fixed"  # not None, which a first-result hook reads as "no answer"

    @hookimpl
    def sparkwright_scheduler_plan(self, state: str, limit: int) -> int:
        return limit if self.options.depth is None else min(self.options.depth, limit)

    @hookimpl
    def sparkwright_scheduler_rests(self, state: str) -> bool:
        return self.options.depth == 0

    @hookimpl
    def sparkwright_scheduler_more(self, state: str, depth: int, confidence: float) -> bool:
        return True

    @hookimpl
    def sparkwright_scheduler_learn(self, state: str, report: RoundReport) -> None:
        return None


def _describe(options: FixedOptions, site: Site) -> SchedulerFacts:
    return SchedulerFacts()


@hookimpl
def sparkwright_register_schedulers() -> list[Provider]:
    return [
        Provider(
            kind="scheduler",
            name="fixed",
            summary="the same number of drafts in every round",
            build=lambda options, site: Fixed(options),
            describe=_describe,
            options=FixedOptions,
        )
    ]
