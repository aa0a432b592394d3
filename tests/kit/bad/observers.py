"""Observers with one thing wrong. The good twin counts."""

from __future__ import annotations

import attrs
from tests.kit.bad.twin import Twin, provider

from sparkwright.core.contracts import Provider
from sparkwright.core.generation import RequestInfo, Result, RoundTrace
from sparkwright.core.hookspecs import hookimpl


@attrs.define(eq=False)
class Counts:
    requests: int = 0
    rounds: int = 0
    tokens: int = 0

    @hookimpl
    def sparkwright_request_started(self, request: RequestInfo) -> None:
        self.requests += 1

    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        self.rounds += 1

    @hookimpl
    def sparkwright_request_finished(self, result: Result) -> None:
        self.tokens += len(result.tokens)


class Divides(Counts):
    """A rate of a request that had no rounds."""

    @hookimpl
    def sparkwright_request_finished(self, result: Result) -> None:
        self.tokens += len(result.tokens) // result.stats.rounds


class Edits(Counts):
    @hookimpl
    def sparkwright_request_finished(self, result: Result) -> None:
        result.slots.clear()


class Forces(Counts):
    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        object.__setattr__(trace, "accepted", trace.submitted)


def make(kind: type[Counts]) -> Provider:
    return provider("observer", lambda site: kind(), None)


GOOD = make(Counts)
TWINS = [
    Twin("raises on a request of one token", "takes every event", make(Divides), GOOD),
    Twin("edits the result", "changes nothing", make(Edits), GOOD),
    Twin("edits a round", "changes nothing", make(Forces), GOOD),
]
