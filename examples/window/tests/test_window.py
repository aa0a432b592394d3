"""The scheduler keeps its contract, and its blocks follow what was accepted."""

from __future__ import annotations

from sparkwright.core.contracts import RoundReport
from sparkwright.core.testing import Check, parametrize_with_checks
from sparkwright_window import Options, Scheduler, Window, sparkwright_register_schedulers


@parametrize_with_checks(sparkwright_register_schedulers())
def test_conformance(check: Check) -> None:
    check.run()


def plans_after(accepted: list[int], cut: bool = False) -> list[int]:
    """What is planned before each of these rounds and after the last, with room for seven drafts."""
    scheduler = Scheduler(Options(memory=0.5, start=3.0))
    state: Window = scheduler.sparkwright_scheduler_start()
    plans = [scheduler.sparkwright_scheduler_plan(state, 7)]
    for got in accepted:
        drafted = plans[-1]
        scheduler.sparkwright_scheduler_learn(state, RoundReport(drafted, drafted, drafted, min(got, drafted), (), cut))
        plans.append(scheduler.sparkwright_scheduler_plan(state, 7))
    return plans


def test_blocks_grow_while_everything_is_accepted_and_shrink_while_nothing_is() -> None:
    grown = plans_after([7] * 12)
    assert grown == sorted(grown) and grown[0] == 4 and grown[-1] == 7
    shrunk = plans_after([0] * 12)
    assert shrunk == sorted(shrunk, reverse=True) and shrunk[-1] == 1


def test_a_round_cut_by_a_stop_rule_teaches_nothing() -> None:
    assert plans_after([0, 0, 0], cut=True) == [4, 4, 4, 4]
