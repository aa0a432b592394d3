"""Checks of schedulers: how many drafts they ask for, and by what. A driver plays rounds to them, changes the future,
and watches the past."""

from __future__ import annotations

import inspect
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from sparkwright.core.contracts import CostCurves, RoundReport
from sparkwright.core.engine import Engine, Parts
from sparkwright.core.errors import AssemblyError, PluginError
from sparkwright.core.roles import Scheduler
from sparkwright.core.testing.check import CheckFailed, Skipped
from sparkwright.core.testing.common import facts_of
from sparkwright.core.testing.ground import PLAIN, SAMPLED, Entry, Ground, same_text, text
from sparkwright.core.testing.laws import law_of, table_subject

CURVES = CostCurves(plain=1.0, verify=(1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7), draft=0.2)
"""Seconds at which drafting pays, for schedulers that decide by costs."""
ROUNDS = 40


@attrs.frozen
class Round:
    """What a round holds for a scheduler: its limit, all confidences, and how many drafts the target would accept."""

    limit: int
    confidences: tuple[float, ...]
    accepts: int
    cut: bool = False


@attrs.frozen
class Decision:
    planned: int
    submitted: int
    rests: bool = False


def rounds(seed: int, count: int = ROUNDS) -> list[Round]:
    rng = np.random.default_rng(seed)
    return [
        Round(
            int(rng.integers(0, 8)), tuple(float(c) for c in rng.random(7)), int(rng.integers(0, 8)), rng.random() < 0.1
        )
        for _ in range(count)
    ]


def play(scheduler: Scheduler, told: Sequence[Round]) -> list[Decision]:
    """The scheduler's decisions over these rounds, in a request of its own, asked in the engine's order."""
    state, out, rests = scheduler.start(), [], False
    for one in told:
        planned = 0 if rests else scheduler.plan(state, one.limit)
        rests = not planned and scheduler.rests(state)
        submitted = planned
        seen: tuple[float, ...] = ()
        if planned and scheduler.facts.confidences:
            seen = one.confidences[:planned]
            submitted = scheduler.submit(state, seen)
        accepted = min(submitted, one.accepts)
        report = RoundReport(planned, planned, submitted, accepted, tuple(seen[: submitted + 1]), one.cut)
        scheduler.learn(state, report)
        out.append(Decision(planned, submitted, rests))
    return out


@contextmanager
def engine(ground: Ground, *changes: dict[str, Any]) -> Iterator[Engine]:
    """The ground's engine, with cost curves at which drafting pays."""
    from sparkwright.core import costs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "costs.json"
        costs.save(path, CURVES, {})
        with ground.engine({"engine": {"costs": str(path)}}, *changes) as made:
            yield made


def driven(ground: Ground, work: Callable[[Scheduler], None]) -> None:
    """`work(scheduler)` in the engine's thread."""
    with engine(ground) as made:
        made.run(lambda parts: work(parts.scheduler))


# ----------------------------------------------------------------------------------------------------------- plans


def _limits(ground: Ground) -> None:
    def work(scheduler: Scheduler) -> None:
        for limit in range(8):
            told = [attrs.evolve(one, limit=limit) for one in rounds(limit)]
            try:
                play(scheduler, told)
            except PluginError as error:
                raise CheckFailed(
                    f"with room for {limit} drafts: {error}; 0 is asked too, and means no drafts"
                ) from None
        try:
            play(scheduler, rounds(77, 200))
        except PluginError as error:
            raise CheckFailed(f"with room that changes from round to round: {error}") from None

    driven(ground, work)


def _repeats(ground: Ground) -> None:
    def work(scheduler: Scheduler) -> None:
        told = rounds(1)
        first = play(scheduler, told)
        play(scheduler, rounds(2))
        random.seed(5)
        np.random.seed(5)
        _same(play(scheduler, told), first, "the same rounds after another request; keep what it learns in its state")
        states = [scheduler.start(), scheduler.start()]
        for one in told:  # two requests at once: the second is told other things
            a = scheduler.plan(states[0], one.limit)
            scheduler.plan(states[1], 7)
            if a and scheduler.facts.confidences:
                scheduler.submit(states[0], one.confidences[:a])
            scheduler.learn(states[1], RoundReport(7, 7, 7, 0, (), False))
            scheduler.learn(states[0], RoundReport(a, a, a, min(a, one.accepts), (), False))

    before = random.getstate(), np.random.get_state()
    try:
        driven(ground, work)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _same(got: Sequence[Decision], wanted: Sequence[Decision], what: str, upto: int | None = None) -> None:
    for i, (a, b) in enumerate(zip(got[:upto], wanted[:upto], strict=True)):
        if a != b:
            raise CheckFailed(
                f"in round {i} it plans {a.planned}, submits {a.submitted} and rests: {a.rests}; before it was "
                f"{b.planned}, {b.submitted} and {b.rests}: {what}"
            )


def _past(ground: Ground) -> None:
    """Change what comes after a moment; nothing decided before it may change."""

    def work(scheduler: Scheduler) -> None:
        told, other = rounds(3), rounds(4)
        base = play(scheduler, told)
        for t in range(0, ROUNDS, 3):
            for depth in range(0, 7, 2):
                now = told[t]
                later = tuple(1 - c if c < 0.5 else c / 3 for c in now.confidences[depth:])
                mixed = attrs.evolve(
                    now, confidences=(*now.confidences[:depth], *later), accepts=other[t].accepts, cut=not now.cut
                )
                seen = play(scheduler, [*told[:t], mixed, *other[t + 1 :]])
                _same(seen, base, f"what comes from round {t} on had changed; decide by past rounds alone", t)
                if seen[t].planned != base[t].planned:
                    raise CheckFailed(
                        f"it plans {seen[t].planned} drafts instead of {base[t].planned} in round {t} because of what "
                        "that round would bring; plan comes before drafting and knows past rounds alone"
                    )
                if seen[t].rests != base[t].rests:
                    raise CheckFailed(
                        f"it {'rests' if seen[t].rests else 'does not rest'} after round {t} because of what that "
                        "round would bring; rests is asked before that is known and goes by past rounds alone"
                    )
                if scheduler.facts.anticipates or not scheduler.facts.confidences:
                    continue
                a, b = (min(x.submitted, depth) for x in (seen[t], base[t]))
                if a != b:
                    raise CheckFailed(
                        f"of the first {depth} drafts of round {t} it submits {a} instead of {b} after the confidences "
                        f"behind them changed; decide draft k by confidences 1..k, or let the facts say anticipates"
                    )
        _same(play(scheduler, told), base, "the same rounds, told again; keep what it learns in the state of a request")

    driven(ground, work)


NEVER = 5_000
"""Rounds given away one after another that count as "for ever"."""


def _wakes(ground: Ground) -> None:
    """Drafts that are never right, so that it gives rounds away if it ever does; from then on they are always right."""

    def work(scheduler: Scheduler) -> None:
        state, drafted, given_away = scheduler.start(), False, 0
        for i in range(2 * NEVER):
            planned = 0 if given_away else scheduler.plan(state, 7)
            given_away = given_away + 1 if not planned and scheduler.rests(state) else 0
            if given_away > NEVER:
                break
            right = i >= 400
            seen: tuple[float, ...] = (0.95 if right else 0.05,) * planned if scheduler.facts.confidences else ()
            submitted = scheduler.submit(state, seen) if seen else planned
            drafted = drafted or planned > 0
            report = RoundReport(
                planned=planned, drafted=planned, submitted=submitted, accepted=submitted if right else 0,
                confidences=seen[: submitted + 1], cut=False,
            )  # fmt: skip
            scheduler.learn(state, report)
        if given_away > NEVER and (drafted or scheduler.plan(state, 7)):
            raise CheckFailed(
                f"its sparkwright_scheduler_rests says True for {NEVER} rounds on end, so plan is not asked and "
                "nothing is drafted any more; expected it to say False when it is time to plan again (it is asked in "
                "every round given away; count them in learn)"
            )

    driven(ground, work)


_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")


def _no_clock(ground: Ground) -> None:
    read: list[str] = []

    def work(parts: Parts) -> None:
        plugin = parts.scheduler._manager.get_plugin(f"scheduler:{parts.scheduler.name}")
        home = sys.modules.get(type(plugin).__module__)
        originals = {n: getattr(time, n) for base in _CLOCKS for n in (base, f"{base}_ns") if hasattr(time, n)}

        def watching(name: str) -> Callable[[], Any]:
            def watched() -> Any:
                frame = inspect.currentframe()
                caller = frame.f_back if frame is not None else None
                if caller is not None and not caller.f_globals.get("__name__", "").startswith(("threading", "logging")):
                    read.append(name)
                return originals[name]()

            return watched

        fakes = {name: watching(name) for name in originals}
        places: list[tuple[Any, str, Any]] = [(time, name, original) for name, original in originals.items()]
        if home is not None:
            places += [(home, k, v) for k, v in vars(home).items() for o in originals.values() if v is o]
        for place, key, original in places:
            setattr(place, key, fakes[next(n for n, o in originals.items() if o is original)])
        try:
            play(parts.scheduler, rounds(6))
        finally:
            for place, key, original in places:
                setattr(place, key, original)

    with engine(ground) as made:
        made.run(work)
    if read:
        raise CheckFailed(
            f"it reads a clock (time.{read[0]}) while it decides; expected decisions by past rounds and frozen cost "
            "curves (Site.costs), so that a seed gives one text"
        )


# ---------------------------------------------------------------------------------------------------------- texts


def _greedy(ground: Ground) -> None:
    with engine(ground) as made, ground.engine({"drafter": {"use": "none"}, "scheduler": {"use": "fixed"}}) as plain:
        for seed in range(2):
            same_text(text(made, seed), text(plain, seed), "greedy text with this scheduler, against plain decoding")


def _coupled(ground: Ground) -> None:
    quiet = {"scheduler": {"use": "fixed"}}
    with engine(ground, SAMPLED) as made, ground.engine(SAMPLED, PLAIN, quiet) as plain:
        for seed in range(2):
            what = "text at temperature 1 under coupled verification, against plain decoding with the same seed"
            same_text(text(made, seed), text(plain, seed), what)


def _law(ground: Ground) -> None:
    facts = facts_of(ground)
    if facts.anticipates:
        try:
            with engine(ground, {"sampler": SAMPLED["sampler"], "verifier": {"use": "stochastic"}}):
                pass
        except AssemblyError:
            raise Skipped("it anticipates, says so, and is refused with verifiers that need causality") from None
        raise CheckFailed("it anticipates and was put together with a verifier that needs causality")
    law_of(table_subject(ground, "dense", scheduler=True))


CHECKS = (
    Entry("limits", "plans are whole numbers from 0 to the room there is, 0 included", _limits),
    Entry("same rounds, same plans", "plans are a function of the request's past rounds", _repeats),
    Entry("the future is unknown", "a driver changes what comes later, and nothing decided before changes", _past),
    Entry("rests end", "a scheduler that gives rounds away comes back and plans again", _wakes),
    Entry("no clock", "decisions never read a clock", _no_clock),
    Entry("greedy text unchanged", "greedy text is that of plain decoding", _greedy),
    Entry(
        "coupled text unchanged", "text at temperature 1 under coupled verification is that of plain decoding", _coupled
    ),
    Entry("law of the text", "under rejection sampling the text keeps the target's law (statistical)", _law, True),
)
