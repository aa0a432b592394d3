"""Scheduler `my_plugin`: asks for a fixed number of drafts.

That is the template's; say here what yours is, and what it is not.

The contract: `sparkwright_scheduler_*` in sparkwright.core.hookspecs; `SchedulerFacts`, `RoundReport` in
sparkwright.core.contracts. A scheduler decides from past rounds, and from confidences in their order; never from the
drafts themselves, which would change the distribution of the text. One that stops drafting for a while may say so
beforehand with `sparkwright_scheduler_rests(state) -> bool`, which makes those rounds cheaper; the
hookspecs say in which order they are called.
"""

from __future__ import annotations

import attrs
from sparkwright.core.contracts import Provider, RoundReport, SchedulerFacts, Site, option
from sparkwright.core.hookspecs import hookimpl


@attrs.frozen
class Options:
    """Table [scheduler.my_plugin]. Every option needs a default and a help text."""

    drafts: int = option(3, "drafts a round; 0 is plain decoding", attrs.validators.ge(0))


@attrs.define(eq=False)
class State:
    """What is remembered of one request's rounds."""

    accepted: int = 0
    submitted: int = 0


@attrs.define(eq=False)
class Scheduler:
    options: Options

    @hookimpl
    def sparkwright_scheduler_start(self) -> State:
        """A new request: nothing of an earlier one may be seen."""
        return State()

    @hookimpl
    def sparkwright_scheduler_plan(self, state: State, limit: int) -> int:
        """How many drafts to ask for in the next round, 0 (do not draft) to `limit`."""
        return min(limit, self.options.drafts)

    @hookimpl
    def sparkwright_scheduler_learn(self, state: State, report: RoundReport) -> None:
        """After every round. Of a round cut by a stop rule nobody knows what would have been accepted."""
        if not report.cut:
            state.submitted += report.submitted
            state.accepted += report.accepted


def describe(options: Options, site: Site) -> SchedulerFacts:
    """site.drafter says what the drafter can do. With SchedulerFacts(confidences=True) also implement
    `sparkwright_scheduler_more(state, depth, confidence) -> bool`."""
    return SchedulerFacts()


def build(options: Options, site: Site) -> Scheduler:
    return Scheduler(options)


@hookimpl
def sparkwright_register_schedulers() -> list[Provider]:
    return [
        Provider(
            kind="scheduler",
            name="my_plugin",
            summary="a fixed number of drafts a round",
            build=build,
            describe=describe,
            options=Options,
        )
    ]
