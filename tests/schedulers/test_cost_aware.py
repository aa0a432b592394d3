"""`cost_aware`: what it may know, that it gains where there is something to gain, and that it never costs much."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

import attrs
import pytest
from tests.schedulers.simulation import BLOCK, CURVES, PROFILES, Text, rounds, scheduler, short, steady, write

from sparkwright.core.contracts import CostCurves, DrafterFacts, RoundReport, Site
from sparkwright.core.errors import AssemblyError
from sparkwright.plugins.schedulers import cost_aware, curves, fixed
from sparkwright.plugins.schedulers.evidence import Acceptance, Rate, Reliability

# The whole table is docs/benchmarks/scheduler_simulation.md; these are its hard corners.
CELLS = [
    ("flat", "constant 0.2", "none"),
    ("flat", "constant 0.98", "none"),
    ("linear", "constant 0.0", "none"),
    ("linear", "constant 0.7", "honest"),
    ("flash-bytes", "constant 0.0", "none"),
    ("flash-bytes", "constant 0.6", "none"),
    ("flash-bytes", "constant 0.8", "noisy"),
    ("flash-bytes", "spread 0.7", "honest"),
    ("flash-bytes", "switching up", "none"),
    ("flash-bytes", "switching down", "honest"),
    ("flash-bytes", "drifting", "none"),
    ("flash-bytes", "constant 0.9", "too modest"),
    ("stepped", "constant 0.6", "none"),
    ("stepped", "decaying 0.9", "constant"),
    ("dear-draft", "constant 0.0", "honest"),
    ("free-draft", "rising 0.45", "none"),
]


@pytest.mark.parametrize(("curve", "profile", "claims"), CELLS)
def test_steady_speed_is_that_of_the_better_of_plain_and_the_best_depth(curve: str, profile: str, claims: str) -> None:
    first = 0 if profile.startswith(("switching", "drifting")) else 2000
    outcomes = [steady(curve, profile, claims, 9000, first, seed) for seed in range(2)]
    assert statistics.mean(o.speed / o.best for o in outcomes) >= 0.99


def test_confidences_that_are_far_too_low_are_seen_through() -> None:
    """A tenth of the truth, on a step that pays only when crossed: each of the table's texts, not their mean alone."""
    outcomes = [steady("stepped", "constant 0.6", "too modest", 12_000, 2000, seed) for seed in range(3)]
    assert min(o.speed / o.best for o in outcomes) >= 0.99


@pytest.mark.parametrize("claims", ["none", "honest", "too sure"])
@pytest.mark.parametrize("profile", ["constant 0.0", "constant 0.5", "switching often"])
@pytest.mark.parametrize("curve", list(CURVES))
def test_short_requests_are_never_much_slower_than_plain(curve: str, profile: str, claims: str) -> None:
    assert statistics.mean(short(curve, profile, claims, 12, 500)) >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("claims", ["none", "honest", "noisy", "too sure", "too modest", "constant"])
@pytest.mark.parametrize("curve", list(CURVES))
def test_every_cell_over_200_requests(curve: str, claims: str) -> None:
    for profile in PROFILES:
        assert statistics.mean(short(curve, profile, claims, 200, 500)) >= 0.97, profile


def test_a_hopeless_curve_never_drafts() -> None:
    dear = CostCurves(plain=1.0, verify=tuple(float(n) for n in range(1, 9)), draft=0.1)
    text = write("constant 0.98", "none", 400, 0)
    assert all(
        report.drafted == 0 for _, _, report in rounds(scheduler(dear, "none"), "constant 0.98", text, "none", 400)
    )


def test_parked_drafting_is_probed_with_growing_gaps_and_comes_back() -> None:
    text = write("switching up", "none", 4000, 1)
    plugin = scheduler(CURVES["flash-bytes"], "none")
    seen = list(rounds(plugin, "switching up", text, "none", 4000))
    probes = [anchor for anchor, _, report in seen if report.drafted and anchor < 2000]
    gaps = [b - a for a, b in pairwise(probes)]
    assert 10 <= len(probes) <= 50
    assert gaps[:5] == sorted(gaps[:5]) and gaps[0] <= 20  # they grew
    assert sum(gap >= 100 for gap in gaps) >= 0.8 * len(gaps[6:])  # a probe that paid by luck is repeated at once
    late = [report for anchor, _, report in seen if anchor > 2700]
    assert sum(bool(r.drafted) for r in late) >= 0.9 * len(late)  # and it did not stay parked


def test_a_probe_that_paid_is_repeated_as_it_was() -> None:
    """A draft that its confidence spoke against and that paid: the repeat must submit one too, or it shows nothing."""
    plugin = scheduler(CURVES["stepped"], "too modest")
    state = plugin.sparkwright_scheduler_start()
    probes: list[tuple[int, bool]] = []  # (drafts submitted, the round before was a probe that paid)
    paid, repeats = False, 0
    for _ in range(4000):
        planned = plugin.sparkwright_scheduler_plan(state, BLOCK)
        kept = 0
        while kept < planned and plugin.sparkwright_scheduler_more(state, kept + 1, 0.001):
            kept += 1
        if state.probing:
            repeats = repeats + 1 if paid else 0
            probes.append((kept, paid))
        # The first of them is accepted twice running, then not: too seldom for drafting to pay on the whole.
        hits = 1 if kept and repeats < 2 else 0
        paid = state.probing and hits > 0
        shown = (0.001,) * min(kept + 1, planned)
        plugin.sparkwright_scheduler_learn(state, RoundReport(planned, planned, kept, hits, shown, False))
    again = [kept for kept, after_paid in probes if after_paid]
    assert len(again) >= 4 and all(again)
    assert sum(not kept for kept, _ in probes) >= 4  # and in between the confidences were asked


def test_a_step_in_the_curve_is_crossed() -> None:
    """Rows 2..6 cost the same and the first does not pay for itself: only looking past the step sees that it pays."""
    step = CostCurves(plain=1.0, verify=(1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.5, 3.5), draft=0.1)
    plugin = scheduler(step, "honest")
    state = plugin.sparkwright_scheduler_start()
    for _ in range(30):
        planned = plugin.sparkwright_scheduler_plan(state, BLOCK)
        plugin.sparkwright_scheduler_learn(
            state, RoundReport(planned, planned, planned, planned, (0.9,) * planned, False)
        )
    assert plugin.sparkwright_scheduler_plan(state, BLOCK) == BLOCK
    # One draft brings 0.9 at most and costs 1.0 plain decodes.
    assert plugin.sparkwright_scheduler_more(state, 1, 0.9)


def test_depth_follows_confidence() -> None:
    plugin = scheduler(CURVES["flash-bytes"], "honest")
    state = plugin.sparkwright_scheduler_start()
    for sure, kept in ((0.95, BLOCK), (0.05, 0)):
        assert plugin.sparkwright_scheduler_plan(state, BLOCK) == BLOCK
        depth = 0
        while depth < BLOCK and plugin.sparkwright_scheduler_more(state, depth + 1, sure):
            depth += 1
        assert depth == kept
        plugin.sparkwright_scheduler_learn(state, RoundReport(BLOCK, BLOCK, depth, depth, (sure,) * BLOCK, False))


def decisions(plugin: Any, text: Text, claims: str, tokens: int) -> list[tuple[int, int, int, int]]:
    return [
        (anchor, report.planned, report.submitted, report.accepted)
        for anchor, _, report in rounds(plugin, "constant 0.7", text, claims, tokens)
    ]


@pytest.mark.parametrize("claims", ["none", "honest"])
def test_the_past_does_not_depend_on_the_future(claims: str) -> None:
    """A driver changes every token and confidence from a position on; all decisions before it must stay."""
    text, other = write("constant 0.7", claims, 600, 0), write("constant 0.2", claims, 600, 99)
    plugin = scheduler(CURVES["flash-bytes"], claims)
    whole = decisions(plugin, text, claims, 600)
    changed = 0
    for cut in range(5, 500, 23):
        spliced = Text(*(getattr(text, f)[:cut] + getattr(other, f)[cut:] for f in ("easy", "luck", "claim")))
        again = decisions(plugin, spliced, claims, 600)
        before = next(i for i, d in enumerate(whole) if d[0] + d[1] >= cut)  # rounds that cannot have seen `cut`
        assert again[:before] == whole[:before]
        changed += again != whole
        # Within a round: drafts before the change are submitted or not, whatever later confidences say.
        for ours, theirs in zip(whole, again, strict=False):
            if ours[0] != theirs[0] or ours[0] >= cut:
                break
            assert ours[1] == theirs[1]
            shown = cut - ours[0] - 1  # confidences of this round that are the same
            if min(ours[2], theirs[2]) < shown:
                assert ours[2] == theirs[2]
    assert changed > 10  # the change was one that matters


def test_no_state_survives_a_request() -> None:
    plugin = scheduler(CURVES["flash-bytes"], "honest")
    text, other = write("constant 0.7", "honest", 400, 1), write("constant 0.0", "honest", 400, 2)
    alone = decisions(plugin, text, "honest", 400)
    decisions(plugin, other, "honest", 400)
    assert decisions(plugin, text, "honest", 400) == alone


def test_a_round_that_was_cut_counts_no_rejection() -> None:
    acceptance = Acceptance(5, 1.0, 0.5, 2.0)
    acceptance.add(accepted=2, submitted=5, cut=True)
    assert acceptance.trials == [1, 1, 0, 0, 0] and acceptance.hits == [1, 1, 0, 0, 0]
    acceptance.add(accepted=2, submitted=5, cut=False)
    assert acceptance.trials == [2, 2, 1, 0, 0] and acceptance.hits == [2, 2, 0, 0, 0]
    plugin = scheduler(CURVES["flat"], "none")
    state = plugin.sparkwright_scheduler_start()
    planned = plugin.sparkwright_scheduler_plan(state, 5)
    before = state.rate.rounds
    plugin.sparkwright_scheduler_learn(state, RoundReport(planned, planned, planned, 0, (), True))
    assert state.rate.rounds < before  # aged, not added to
    assert sum(state.acceptance.trials) == 0


def test_a_change_of_the_text_cuts_the_memory() -> None:
    acceptance = Acceptance(1, 1 - 1 / 512, 0.75, 2.0)
    for _ in range(400):
        acceptance.age()
        acceptance.add(1, 1, False)
    for _ in range(25):
        acceptance.age()
        acceptance.add(0, 1, False)
    assert acceptance.means()[0] < 0.5  # without the alarm about 0.92
    rate = Rate(1 - 1 / 512, 3.0, 3.0, 1.0)
    for tokens in [5] * 400 + [1] * 30:
        rate.age()
        rate.add(tokens, 2.0)
    assert rate.value < 1.2


@pytest.mark.parametrize("claim", [0.99, 0.05])
def test_confidences_that_say_nothing_end_as_the_acceptance_rate(claim: float) -> None:
    reliability = Reliability(1, 1 - 1 / 512)
    for i in range(200):
        reliability.add((claim,), i % 2, 1, False)
    assert abs(reliability.corrected(0, claim) - 0.5) < 0.1


def test_limits_and_ends_of_requests_are_kept() -> None:
    plugin = scheduler(CURVES["flat"], "honest")
    state = plugin.sparkwright_scheduler_start()
    assert plugin.sparkwright_scheduler_plan(state, 0) == 0
    assert plugin.sparkwright_scheduler_plan(state, 2) <= 2
    assert not plugin.sparkwright_scheduler_more(state, 3, 1.0)


@pytest.mark.parametrize(
    "broken",
    [
        {"plain": 0.0},
        {"plain": float("nan")},
        {"verify": ()},
        {"verify": (1.0, float("inf"))},
        {"draft": -1.0},
    ],
)
def test_curves_that_make_no_sense_are_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(AssemblyError, match=r"'cost_aware' was given the cost curve .*`sparkwright calibrate`"):
        curves.costs(attrs.evolve(CURVES["flat"], **broken))


def test_without_measurements_the_curve_is_that_of_flash_and_a_lookup_is_nearly_free() -> None:
    (provider,) = cost_aware.sparkwright_register_schedulers()
    spark = provider.build(provider.options(), Site(drafter=DrafterFacts(block=5, taps=(1,), confidence=True)))
    lookup = provider.build(provider.options(), Site(drafter=DrafterFacts(block=5)))
    assert isinstance(spark, cost_aware.CostAware) and isinstance(lookup, cost_aware.CostAware)
    assert not spark.measured and spark.confident and not lookup.confident
    assert spark.costs.drafted[1] == pytest.approx(1.57) and lookup.costs.drafted[1] == pytest.approx(1.32)


def test_a_verify_measured_as_cheaper_than_plain_costs_a_plain_decode() -> None:
    """Noise of the measurement: a draft that is never accepted must not look as if it paid."""
    noisy = CostCurves(plain=2.0, verify=(2.0, 1.9, 2.2, 1.8, 2.6, 2.8, 3.0, 3.2), draft=0.2)
    assert curves.costs(noisy).drafted[:4] == pytest.approx((1.1, 1.1, 1.2, 1.1))
    report = RoundReport(planned=1, drafted=1, submitted=1, accepted=0, confidences=(), cut=False)
    policy = scheduler(noisy, "none")
    state = policy.sparkwright_scheduler_start()
    planned = []
    for _ in range(100):
        planned.append(policy.sparkwright_scheduler_plan(state, 7))
        depth = planned[-1]
        policy.sparkwright_scheduler_learn(state, attrs.evolve(report, planned=depth, drafted=depth, submitted=depth))
    assert planned[0] > 0 and sum(n > 0 for n in planned[50:]) < 5


def test_a_depth_that_is_cheaper_than_a_shallower_one_is_chosen() -> None:
    """OpenBLAS on SmolLM2: tiles of four rows, so that three drafts cost less than two."""
    tiled = CostCurves(plain=1.0, verify=(1.0, 1.07, 1.27, 1.02, 1.23, 1.25, 1.48, 1.22), draft=0.004)
    text = write("constant 0.2", "none", 400, 0)
    seen = [report for _, _, report in rounds(scheduler(tiled, "none"), "constant 0.2", text, "none", 400)]
    depths = [report.submitted for report in seen[50:]]
    assert depths.count(3) > 0.8 * len(depths) and 2 not in depths


def test_a_gap_between_probes_is_given_away_as_a_whole() -> None:
    """Plain rounds know that a plain one follows: but for the last before a probe, and one whose gap then grew."""
    plugin = scheduler(CURVES["flash-bytes"], "none")
    state = plugin.sparkwright_scheduler_start()
    plans: list[int] = []
    rests, known = False, 0
    for _ in range(800):
        known += rests
        planned = 0 if rests else plugin.sparkwright_scheduler_plan(state, BLOCK)
        plans.append(planned)
        rests = not planned and plugin.sparkwright_scheduler_rests(state)
        plugin.sparkwright_scheduler_learn(state, RoundReport(planned, planned, planned, 0, (), False))
    assert 5 < sum(plan > 0 for plan in plans) < 60
    assert known >= sum(not a and not b for a, b in pairwise(plans)) - 2 > 700


def test_a_hopeless_curve_and_a_depth_of_none_rest_for_ever() -> None:
    dear = CostCurves(plain=1.0, verify=tuple(float(n) for n in range(1, 9)), draft=0.1)
    plugin = scheduler(dear, "none")
    state = plugin.sparkwright_scheduler_start()
    assert plugin.sparkwright_scheduler_plan(state, BLOCK) == 0 and plugin.sparkwright_scheduler_rests(state)
    (provider,) = fixed.sparkwright_register_schedulers()
    for depth, rests in ((0, True), (2, False), (None, False)):
        built: Any = provider.build(provider.options(depth=depth), Site())
        assert built.sparkwright_scheduler_rests(state=built.sparkwright_scheduler_start()) is rests


def test_plain_decodes_that_begin_early_are_what_drafting_is_compared_with() -> None:
    """The first decode after a probe waits as a verify of one row does, and the probe pays for that too."""
    costs = curves.costs(CostCurves(plain=0.9, verify=(1.0,) * 8, draft=0.0))
    assert costs.drafted == pytest.approx((1 / 0.9,) * 8) and costs.resume == pytest.approx(1 / 0.9 - 1)
    assert curves.costs(CURVES["flat"]).resume == 0.0
