"""Cost curves are what a clock says, whatever else moves; temperatures bring confidences back to what came true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest

from sparkwright.core import costs
from sparkwright.core.calibrate import (
    LEAST_REACHED,
    LEAST_ROUNDS,
    chance_error,
    expected_calibration_error,
    fit_sts,
    measure_curves,
    whole_blocks,
)
from sparkwright.core.contracts import CostCurves, Draft, DrafterFacts, Forward, PointMass, TargetFacts
from sparkwright.core.errors import RequestError
from sparkwright.core.generation import RoundTrace

COST = (0.0, 1.0, 1.3, 1.6, 1.9, 2.2, 2.4, 2.7, 3.0)


def now_and_then(seconds: float, run: int) -> float:
    """The first runs compile kernels, and now and then something else takes the machine."""
    return seconds + (50.0 if run < 12 else 7.0 if run % 29 == 0 else 0.0)


def most_of_the_time(seconds: float, run: int) -> float:
    """A loaded machine: some part of three forwards in five is taken away."""
    rng = np.random.default_rng(run)
    return seconds * (1.0 + float(rng.random() < 0.6) * float(rng.exponential(0.4)))


def boosted_once(seconds: float, run: int) -> float:
    return seconds * (0.7 if run in (40, 77) else 1.0)


@attrs.define
class Clock:
    disturbed: Callable[[float, int], float] = now_and_then
    now: float = 0.0
    runs: int = 0

    def spend(self, seconds: float) -> None:
        self.runs += 1
        self.now += self.disturbed(seconds, self.runs)


@attrs.define
class State:
    position: int = 0


class SlowTarget:
    """A target whose forward costs what COST says of its rows, on a clock of the test's own."""

    def __init__(self, clock: Clock, context: int = 500) -> None:
        self.clock = clock
        self.facts = TargetFacts(7, context, 4, 2, (0,), "toy", "length")
        self.aborted = 0

    def new_state(self) -> State:
        return State()

    def begin(self, state: State) -> int:
        return state.position

    def abort(self, transaction: int) -> None:
        self.aborted += 1

    def forward(self, tokens: mx.array, state: State, logits: str) -> Forward:
        n = int(tokens.shape[0])
        if logits == "none":
            state.position += n
            return Forward(None, mx.zeros((n, 4)))
        self.clock.spend(COST[n])
        return Forward(mx.zeros((n, 7)), None)


class SlowDrafter:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.facts = DrafterFacts(block=5, taps=(1,), confidence=True)
        self.observed = 0
        self.confident = mx.full((5,), 0.5)

    def start(self, prompt: Sequence[int], shape: Any) -> str:
        return "state"

    def observe(self, state: str, tokens: Sequence[int], taps: mx.array | None) -> None:
        assert taps is not None and taps.shape[0] == len(tokens)
        self.observed += len(tokens)

    def draft(self, state: str, anchor: int, limit: int, keys: mx.array) -> Draft:
        assert keys.shape == (limit, 2)
        self.clock.spend(0.27)
        return Draft(mx.zeros((limit,), dtype=mx.int32), PointMass(), self.confident)


def measured(
    context: int = 500,
    prompt: int = 300,
    drafter: bool = True,
    disturbed: Callable[[float, int], float] = now_and_then,
    repeats: int = 9,
) -> tuple[CostCurves, SlowTarget, SlowDrafter]:
    clock = Clock(disturbed)
    target, slow = SlowTarget(clock, context), SlowDrafter(clock)
    made: Any = slow if drafter else None
    curves = measure_curves(
        target,  # type: ignore[arg-type]
        made,
        [1, 2, 3] * (prompt // 3),
        repeats=repeats,
        clock=lambda: clock.now,
    )
    return curves, target, slow


def test_curves_are_the_costs_of_each_width_and_of_the_block() -> None:
    curves, target, slow = measured()
    assert curves.verify == pytest.approx(COST[1:]) and curves.plain == pytest.approx(1.0)
    assert curves.draft == pytest.approx(0.27)
    assert slow.observed == 300
    assert target.aborted == 9 * 11  # nothing that was measured stays in the state


def test_a_machine_that_others_use_too_gives_the_curves_of_an_idle_one() -> None:
    curves, _, _ = measured(disturbed=most_of_the_time, repeats=25)  # medians would be off by a tenth
    assert curves.verify == pytest.approx(COST[1:], rel=0.02)
    assert curves.draft == pytest.approx(0.27, rel=0.02)


def test_a_clock_that_was_boosted_once_does_not_decide() -> None:
    curves, _, _ = measured(disturbed=boosted_once)
    assert curves.verify == pytest.approx(COST[1:]) and curves.plain == pytest.approx(1.0)


def test_a_plain_decode_is_what_one_more_of_a_row_of_them_takes() -> None:
    """Each begins before the token before it is read: what the host does for it meanwhile is not part of its time."""

    class Device(SlowTarget):
        def begin(self, state: State) -> int:
            self.clock.now += 0.4  # what the first of a row of forwards waits for
            return state.position

    clock = Clock()
    target: Any = Device(clock)
    curves = measure_curves(target, None, [1, 2, 3], clock=lambda: clock.now)
    assert curves.plain == pytest.approx(1.0)
    assert curves.verify == pytest.approx([1.4, *(c + 0.4 for c in COST[2:])])


def test_without_a_drafter_drafting_is_free_and_a_context_without_room_is_refused() -> None:
    assert measured(drafter=False)[0].draft == 0.0
    with pytest.raises(RequestError, match="300 tokens and 8 rows do not fit a context of 305"):
        measured(context=305)


def test_curves_come_back_from_their_file(tmp_path: Path) -> None:
    curves = attrs.evolve(measured()[0], temperatures=(1.0, 2.0, 1.5, 1.0, 0.5))
    file = tmp_path / "deeper" / "costs.json"
    costs.save(file, curves, {"device": "cpu"})
    assert costs.load(file) == curves
    assert [p.name for p in file.parent.iterdir()] == ["costs.json"]


def outcomes(temperature: float, rounds: int = 4000) -> tuple[Any, Any, Any]:
    """Logits that are too large by a factor, how many drafts were accepted, and the true chances."""
    rng = np.random.default_rng(11)
    true = rng.normal(0.8, 1.2, (rounds, 5))
    hits = rng.random((rounds, 5)) < 1 / (1 + np.exp(-true))
    return true * temperature, np.cumprod(hits, axis=1).sum(axis=1), true


@pytest.mark.parametrize("temperature", [0.5, 2.0, 3.0])
def test_temperatures_undo_what_made_confidences_wrong(temperature: float) -> None:
    logits, accepted, _ = outcomes(temperature)
    fit = fit_sts(logits, accepted)
    assert fit.rounds == 4000 and len(fit.temperatures) == 5
    # The first positions have all rounds to go by: 4000 of them put the error at 0.02 by chance alone.
    assert fit.temperatures[0] == pytest.approx(temperature, rel=0.15)
    for before, after in zip(fit.before, fit.after, strict=True):
        assert after < 0.5 * before and after < 0.035


def test_no_position_gets_worse_and_right_confidences_stay_nearly_as_they_are() -> None:
    logits, accepted, _ = outcomes(1.0)
    fit = fit_sts(logits, accepted)
    assert all(after <= before + 0.003 for before, after in zip(fit.before, fit.after, strict=True))
    assert fit.temperatures[0] == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("rounds", [200, 400, 1000])
def test_few_rounds_do_not_make_extreme_temperatures(rounds: int) -> None:
    """Confidences that are right: whatever else is fitted is noise, and there is more of it the fewer the rounds."""
    fitted = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        true = rng.normal(0.0, 1.5, (rounds, 5))
        accepted = np.cumprod(rng.random((rounds, 5)) < 1 / (1 + np.exp(-true)), axis=1).sum(axis=1)
        fitted.append(fit_sts(true, accepted).temperatures)
    distance = np.abs(np.log(np.array(fitted)))
    assert distance.max() < np.log(1.8) and np.median(distance) < np.log(1.1)


def test_a_position_that_few_rounds_reached_keeps_the_drafters_word_and_says_so() -> None:
    rng = np.random.default_rng(3)
    logits = rng.normal(0.0, 1.0, (400, 3)) * 3.0
    accepted = np.where(rng.random(400) < 0.5, (rng.random(400) < 0.1).astype(int), 0)
    accepted[:20] = 3
    fit = fit_sts(logits, accepted)
    few = int((accepted >= 1).sum())
    assert fit.reached == (400, few, int((accepted >= 2).sum())) and few < LEAST_REACHED
    assert fit.enough == (True, False, False) and fit.temperatures[1:] == (1.0, 1.0)


def test_what_chance_makes_of_right_claims() -> None:
    rng = np.random.default_rng(0)
    claims = rng.random(500)
    errors = [expected_calibration_error(claims, (rng.random(500) < claims).astype(float)) for _ in range(2000)]
    assert chance_error(claims) == pytest.approx((np.mean(errors), np.std(errors)), rel=0.05)


def test_the_error_is_that_of_its_definition() -> None:
    claimed = np.array([0.1, 0.1, 0.9, 0.9, 1.0])
    came = np.array([0.0, 1.0, 1.0, 1.0, 1.0])
    # Bins [.1,.15): mean claim .1 against .5; [.9,.95): .9 against 1; the last holds 1.0 against 1.
    assert expected_calibration_error(claimed, came) == pytest.approx(2 / 5 * 0.4 + 2 / 5 * 0.1)


def test_too_few_or_broken_rounds_are_refused() -> None:
    logits, accepted, _ = outcomes(1.0, LEAST_ROUNDS)
    fit_sts(logits, accepted)
    with pytest.raises(RequestError, match=f"needs {LEAST_ROUNDS}"):
        fit_sts(logits[:-1], accepted[:-1])
    with pytest.raises(RequestError, match="not finite"):
        fit_sts(np.where(logits == logits[0, 0], np.nan, logits), accepted)
    with pytest.raises(RequestError, match=r"expected \[rounds, block\]"):
        fit_sts(logits, accepted[:-1])


def trace(submitted: int, accepted: int, cut: bool) -> RoundTrace:
    fields: dict[str, Any] = {a.name: 0 for a in attrs.fields(RoundTrace)}
    fields |= {
        "submitted": submitted, "accepted": accepted, "cut": cut, "tokens": (), "confidences": (0.5,) * submitted,
    }  # fmt: skip
    return RoundTrace(**fields)


def test_only_whole_blocks_that_were_not_cut_count() -> None:
    logits, accepted = whole_blocks([trace(5, 2, False), trace(4, 4, False), trace(5, 1, True), trace(5, 5, False)], 5)
    assert logits.shape == (2, 5) and accepted == [2, 5]
    assert np.abs(logits).max() == 0.0
    assert whole_blocks([], 5)[0].shape == (0, 5)
