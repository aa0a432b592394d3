"""A scheduler whose module imports nothing that it should not."""

from __future__ import annotations

from sparkwright.core.contracts import Provider, SchedulerFacts, Site
from sparkwright.core.hookspecs import hookimpl


class Two:
    @hookimpl
    def sparkwright_scheduler_start(self) -> None:
        return None

    @hookimpl
    def sparkwright_scheduler_plan(self, limit: int) -> int:
        return min(2, limit)

    @hookimpl
    def sparkwright_scheduler_learn(self) -> None:
        return None


def build(options: object, site: Site) -> Two:
    return Two()


def describe(options: object, site: Site) -> SchedulerFacts:
    return SchedulerFacts()


@hookimpl
def sparkwright_register_schedulers() -> list[Provider]:
    return [Provider(kind="scheduler", name="two", summary="two drafts a round", build=build, describe=describe)]
