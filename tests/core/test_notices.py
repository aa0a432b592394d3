"""What results say: one warning about a drafter that accepts implausibly little, and why a scheduler did not draft."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from tests.core.engines import GREEDY, V, merged, near, table, toy_engine

from sparkwright.core import costs
from sparkwright.core.cli.generate import summary
from sparkwright.core.contracts import CostCurves, Draft, DrafterFacts, PointMass, Provider, SchedulerFacts, Site
from sparkwright.core.generation import Result, RoundTrace
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.notices import FIRST_ROUNDS, FirstRounds
from sparkwright.core.testing import toys

DENSE = {"verifier": {"use": "stochastic"}, "drafter": {"use": "drafts"}}


def wrong() -> Any:
    """Greedily a walk through all tokens, as the target's, and never the target's next one."""
    logits = np.full((V, V), -9.0, dtype=np.float32)
    logits[np.arange(V), table().argmin(1)] = 9.0
    return logits


def drafter(logits: Any, **facts: Any) -> Provider:
    return toys.table_drafter(logits, name="drafts", block=3, **facts)


def results(settings: dict[str, Any], *providers: Provider, lengths: tuple[int, ...] = (40, 40, 40)) -> list[Result]:
    with toy_engine(merged(DENSE, settings), *providers) as engine:
        made = [engine.complete("abc", max_tokens=n, seed=i) for i, n in enumerate(lengths)]
        assert engine.warnings == tuple(w for r in made for w in r.warnings)
    return made


def test_a_wrong_drafter_raises_one_warning_when_its_engine_has_seen_64_rounds() -> None:
    made = results({}, drafter(wrong()))
    assert [len(r.warnings) for r in made] == [0, 1, 0]  # 39 rounds, then 78: over requests, and once
    (warning,) = made[1].warnings
    assert "drafter 'drafts' accepts implausibly little" in warning
    assert "in 0 of its first 64 rounds, 0 of 1" in warning  # the last round of a request submits fewer than 3
    for part in ("layout flags", "block size (3)", "vocabulary (11 tokens)", "dtype of its heads"):
        assert part in warning
    assert "taps" not in warning  # it reads none


def test_a_drafter_that_often_errs_and_one_that_fits_raise_none() -> None:
    for logits in (table(), near(table())):
        made = results({}, drafter(logits), lengths=(400,))
        assert made[0].stats.drafting_rounds > FIRST_ROUNDS and made[0].warnings == ()


def test_a_wrong_drafter_changes_no_text_by_being_found_out() -> None:
    with toy_engine(GREEDY) as plain:
        expected = plain.complete("abc", max_tokens=120).tokens
    made = results({"verifier": {"use": "greedy"}}, drafter(wrong()), lengths=(120,))
    assert made[0].warnings and made[0].tokens == expected


def test_nothing_is_expected_of_a_drafter_without_a_model() -> None:
    for facts, warns in (({"proposal": "point"}, 0), ({"proposal": "point", "taps": (0,)}, 1), ({}, 1)):
        made = results({}, drafter(wrong(), **facts), lengths=(80,))
        assert len(made[0].warnings) == warns, facts
        assert all("it reads the outputs of layers [0]" in w for w in made[0].warnings if "taps" in facts)


def trace(accepted: int, submitted: int = 3) -> RoundTrace:
    values: dict[str, Any] = {a.name: 0 for a in attrs.fields(RoundTrace)}
    return RoundTrace(**values | {"submitted": submitted, "accepted": accepted})


@pytest.mark.parametrize(("hits", "warns"), [(0, True), (1, True), (2, False)])
def test_the_line_is_drawn_once_and_plain_rounds_do_not_count(hits: int, warns: bool) -> None:
    watch = FirstRounds("x", DrafterFacts(block=3, proposal="dense"))
    said = [watch.add(trace(0, submitted=0)) for _ in range(100)]
    said += [watch.add(trace(int(i < hits))) for i in range(FIRST_ROUNDS)]
    assert [bool(s) for s in said] == [False] * 163 + [warns]
    assert not any(watch.add(trace(0)) for _ in range(200))


# ------------------------------------------------------------------------------------------------- schedulers


def scheduled(settings: dict[str, Any], *providers: Provider) -> Result:
    costly = merged({"scheduler": {"use": "cost_aware"}}, settings)
    return results(costly, *providers, lengths=(300,))[0]


def test_without_measured_curves_the_result_says_so_and_what_to_do() -> None:
    for setting, why in (("none", "engine.costs is 'none'"), ("auto", "none were measured for this model")):
        result = scheduled({"engine": {"costs": setting}}, drafter(table()))
        report = result.slots["scheduler"]
        assert why in report.reason and "sparkwright calibrate" in report.reason
        assert report.requested == report.effective == "cost_aware"
        assert any("sparkwright calibrate" in line for line in summary(result))
    assert scheduled({"scheduler": {"use": "fixed"}}, drafter(table())).slots["scheduler"].reason == ""
    assert scheduled({"drafter": {"use": "none"}}).slots["scheduler"].reason == ""


def curves(folder: Path, verify: float) -> dict[str, Any]:
    path = folder / "costs.json"
    costs.save(path, CostCurves(1.0, tuple(1.0 + verify * i for i in range(8)), 0.1), {})
    return {"engine": {"costs": str(path)}}


def test_a_parked_scheduler_says_how_often_and_why(tmp_path: Path) -> None:
    parked = scheduled(curves(tmp_path, 0.5), drafter(wrong()))
    count, reason = parked.stats.parked_rounds, parked.slots["scheduler"].reason
    assert 100 < count < 299 == parked.stats.rounds
    assert reason.startswith(f"planned no drafts in {count} of 299 rounds: the ")
    depth = round(parked.stats.submitted / parked.stats.drafting_rounds)
    assert reason.endswith(f"drafted gave 1.00 tokens each, for the time of {1.1 + 0.5 * depth:.2f} without")
    assert any(reason in line for line in summary(parked))
    assert json.loads(json.dumps(parked.to_dict()))["slots"]["scheduler"]["reason"] == reason

    hopeless = scheduled(curves(tmp_path, 2.0), drafter(table()))
    said = hopeless.slots["scheduler"].reason
    assert said == "planned no drafts in 298 of 299 rounds: by its costs drafting could not pay"

    paying = scheduled(curves(tmp_path, 0.01), drafter(table()))
    assert paying.stats.parked_rounds == 0 and paying.slots["scheduler"].reason == ""


class NeverDrafts(toys.TableDrafter):
    @hookimpl
    def sparkwright_drafter_draft(self, state: list[int], anchor: int, limit: int, keys: mx.array) -> Draft:
        return Draft(mx.zeros((0,), dtype=mx.int32), PointMass())


def silent() -> Provider:
    def build(options: Any, site: Site) -> NeverDrafts:
        return NeverDrafts(mx.zeros((2, 2)), "point")

    return attrs.evolve(toys.table_drafter(table(), name="silent", proposal="point"), build=build)


def test_a_summary_without_drafts_says_who_gave_none(tmp_path: Path) -> None:
    asked = scheduled({"scheduler": {"use": "fixed"}, "drafter": {"use": "silent"}}, silent())
    assert asked.stats.declined_rounds == 298
    assert "rounds without drafts: the drafter was asked in 298 rounds and gave none" in summary(asked)
    planned = scheduled({"scheduler": {"use": "fixed", "fixed": {"depth": 0}}}, drafter(table()))
    assert "rounds without drafts: the scheduler planned none in 298 rounds" in summary(planned)
    costly = scheduled(curves(tmp_path, 0.1) | {"drafter": {"use": "silent"}}, silent())
    assert "could not pay" not in costly.slots["scheduler"].reason
    assert not any("rounds without drafts" in line for line in summary(scheduled({"drafter": {"use": "none"}})))


def test_who_does_not_decide_by_costs_is_not_made_to_explain_itself() -> None:
    settings = {"scheduler": {"use": "fixed", "fixed": {"depth": 0}}}
    result = scheduled(settings, drafter(table()))
    assert result.stats.parked_rounds == 298 and result.slots["scheduler"].reason == ""
    assert SchedulerFacts().costs is False
