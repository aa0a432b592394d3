"""my_plugin keeps a scheduler's contract, and plans what it should."""

from __future__ import annotations

from sparkwright.core.testing import Check, parametrize_with_checks

from sparkwright_my_plugin import Options, Scheduler, sparkwright_register_schedulers


@parametrize_with_checks(sparkwright_register_schedulers())
def test_conformance(check: Check) -> None:
    check.run()


def test_it_plans_as_many_as_there_is_room_for() -> None:
    scheduler = Scheduler(Options(drafts=3))
    state = scheduler.sparkwright_scheduler_start()
    assert [scheduler.sparkwright_scheduler_plan(state, limit) for limit in (1, 3, 7)] == [1, 3, 3]
