"""Schedulers with one thing wrong. The good twin goes on while confidences are high, by what was accepted so far."""

from __future__ import annotations

import inspect
import random
import time
from typing import Any

import attrs
from tests.kit.bad.twin import Twin, provider

from sparkwright.core.contracts import Provider, RoundReport, SchedulerFacts
from sparkwright.core.hookspecs import hookimpl


@attrs.define(eq=False)
class State:
    rounds: int = 0
    accepted: int = 0


@attrs.define(eq=False)
class Careful:
    @hookimpl
    def sparkwright_scheduler_start(self) -> State:
        return State()

    @hookimpl
    def sparkwright_scheduler_plan(self, state: State, limit: int) -> int:
        return min(limit, 2 + state.accepted % 4)

    @hookimpl
    def sparkwright_scheduler_more(self, state: State, depth: int, confidence: float) -> bool:
        return confidence > 0.4

    @hookimpl
    def sparkwright_scheduler_learn(self, state: State, report: RoundReport) -> None:
        state.rounds += 1
        state.accepted += report.accepted


class AtLeastOne(Careful):
    @hookimpl
    def sparkwright_scheduler_plan(self, state: State, limit: int) -> int:
        return max(1, min(limit, 3))


class FullBlock(Careful):
    @hookimpl
    def sparkwright_scheduler_plan(self, state: State, limit: int) -> int:
        return 5


class Peeks(Careful):
    """Looks through its caller's window at the confidence behind the one it is given."""

    @hookimpl
    def sparkwright_scheduler_more(self, state: State, depth: int, confidence: float) -> bool:
        frame = inspect.currentframe()
        while frame is not None:
            seen = frame.f_locals.get("confidences")
            if isinstance(seen, tuple):
                return bool(seen[min(depth, len(seen) - 1)] > 0.4)
            frame = frame.f_back
        return True


class Remembers(Careful):
    """What it learnt in one request it knows in the next."""

    def __init__(self) -> None:
        self.whole = State()

    @hookimpl
    def sparkwright_scheduler_start(self) -> State:
        return self.whole


class Clock(Careful):
    @hookimpl
    def sparkwright_scheduler_plan(self, state: State, limit: int) -> int:
        started = time.perf_counter()
        return min(limit, 2 if started > 0 else 1)


class Coin(Careful):
    @hookimpl
    def sparkwright_scheduler_plan(self, state: State, limit: int) -> int:
        return random.randint(0, limit)


class Pauses(Careful):
    """Gives three rounds away after four that were planned."""

    @hookimpl
    def sparkwright_scheduler_plan(self, state: State, limit: int) -> int:
        return min(limit, 3) if state.rounds % 8 < 4 else 0

    @hookimpl
    def sparkwright_scheduler_rests(self, state: State) -> bool:
        return 4 <= state.rounds % 8 < 7


class NeverWakes(Pauses):
    @hookimpl
    def sparkwright_scheduler_rests(self, state: State) -> bool:
        return True


class SleepsFromTheStart(NeverWakes):
    """Whose first plan is nothing, and who never gets to its second."""

    @hookimpl
    def sparkwright_scheduler_plan(self, state: State, limit: int) -> int:
        return min(limit, 3 * bool(state.rounds))


class RestsByWhatIsComing(Pauses):
    """Looks through the window at what the driver will say of this round."""

    @hookimpl
    def sparkwright_scheduler_rests(self, state: State) -> bool:
        frame = inspect.currentframe()
        while frame is not None:
            if "told" in frame.f_locals and "one" in frame.f_locals:
                return bool(frame.f_locals["one"].cut)
            frame = frame.f_back
        return False


def make(kind: type[Careful], **facts: Any) -> Provider:
    return provider("scheduler", lambda site: kind(), SchedulerFacts(confidences=True, **facts))


GOOD = make(Careful)
TWINS = [
    Twin("plans one where there is no room", "limits", make(AtLeastOne), GOOD),
    Twin("plans more than the limit", "limits", make(FullBlock), GOOD),
    Twin("looks at the future", "the future is unknown", make(Peeks), GOOD),
    Twin("remembers across requests", "same rounds, same plans", make(Remembers), GOOD),
    Twin("reads a clock", "no clock", make(Clock), GOOD),
    Twin("rests for ever", "rests end", make(NeverWakes), make(Pauses)),
    Twin("rests from the start", "rests end", make(SleepsFromTheStart), make(Pauses)),
    Twin("rests by the future", "the future is unknown", make(RestsByWhatIsComing), make(Pauses)),
    Twin("throws a coin", "same rounds, same plans", make(Coin), GOOD),
]
