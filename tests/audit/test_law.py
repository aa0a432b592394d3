"""Bundled plugins keep the law they promise, planted faults do not; each statement with its false-alarm rate and power.

False alarms: every audit is held at alpha = 1e-4 by Holm's correction, so the whole of this file errs with probability
0.004 at most, once and for all, because seeds are fixed.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest

from sparkwright.core.audit import audit_law, law, power_of
from sparkwright.core.audit.statistics import holm
from sparkwright.core.audit.subjects import TrialKeys
from sparkwright.core.audit.trials import Rounds
from sparkwright.core.contracts import Distribution, Draft, RoundReport, Verdict
from sparkwright.core.draw import draw
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.randomness import Keys
from sparkwright.plugins.verifiers.stochastic import Stochastic

from . import cells, faults

SMOKE = 20_000
PENALISED = {"temperature": 0.8, "top_p": 0.9, "presence_penalty": 0.6, "repetition_penalty": 1.2}
FAULTS = {case.name: case for case in faults.cases()}
QUICK = ["full-block formula on a stopped block", "wrong q", "bonus from the wrong row", "anticipating scheduler"]


# --------------------------------------------------------------------------------------------------------------
# The plugins
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "verifier", "kind", "schedule"),
    [
        ({"temperature": 0.7}, "stochastic", "dense", "threshold"),
        (PENALISED, "block", "sparse", "cost_aware"),
        (PENALISED, "coupled", "dense", "fixed"),
        (PENALISED, "stochastic", "point", "fixed"),
    ],
    ids=str,
)
def test_smoke_the_law_holds(options: dict[str, Any], verifier: str, kind: str, schedule: str) -> None:
    result = audit_law(cells.cell(options, verifier, kind, schedule), SMOKE)
    assert result.passed, result.failed
    assert result.submitted > 0 and result.accepted > 0
    assert result.smallest_bias < 0.06


@pytest.mark.parametrize("verifier", ["greedy", "stochastic", "block", "coupled"])
def test_without_randomness_every_verifier_gives_the_one_text(verifier: str) -> None:
    options = {"temperature": 0.0, "presence_penalty": 1.0}
    result = audit_law(cells.cell(options, verifier, "dense", "threshold"), 2_000)
    assert result.passed and result.identical == result.trials and result.promise == "identity-up-to-ties"


def test_the_cells_cover_every_pair() -> None:
    factors = (tuple(cells.FILTERS), cells.TEMPERATURES, cells.VERIFIERS, cells.KINDS, cells.SCHEDULERS)
    for i, j in itertools.combinations(range(5), 2):
        assert {(c[i], c[j]) for c in cells.PAIRWISE} == set(itertools.product(factors[i], factors[j]))
    assert len(cells.PAIRWISE) == 12


@pytest.mark.law
@pytest.mark.parametrize(("filters", "temperature", "verifier", "kind", "schedule"), cells.PAIRWISE)
def test_the_law_holds_for_every_pair(
    filters: str, temperature: float, verifier: str, kind: str, schedule: str
) -> None:
    """300,000 trials a cell; a joint bias of 1.5 % total variation fails with probability 0.99."""
    options = {"temperature": temperature, **cells.FILTERS[filters]}
    result = audit_law(cells.cell(options, verifier, kind, schedule))
    assert result.passed, result.failed
    assert result.trials == 300_000 and result.smallest_bias < 0.016
    assert result.submitted > 0 and 1 < result.tau < 5


@pytest.mark.law
@pytest.mark.parametrize("kind", cells.KINDS)
def test_stochastic_keeps_the_law_with_temperature_top_p_and_penalties(kind: str) -> None:
    result = audit_law(cells.cell(PENALISED, "stochastic", kind, "threshold", seed=5))
    assert result.passed, result.failed


# --------------------------------------------------------------------------------------------------------------
# The faults
# --------------------------------------------------------------------------------------------------------------


def check(case: faults.Case) -> None:
    name, power = power_of(case.faulty, case.trials, horizon=case.horizon)
    assert power >= 0.99, (name, power)
    assert not audit_law(case.faulty, case.trials, horizon=case.horizon).passed
    healthy = audit_law(case.healthy, case.trials, horizon=case.horizon)
    assert healthy.passed, healthy.failed
    assert healthy.submitted > 0


@pytest.mark.parametrize("name", QUICK)
def test_smoke_a_planted_fault_fails_and_its_healthy_counterpart_passes(name: str) -> None:
    check(FAULTS[name])


@pytest.mark.law
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in QUICK])
def test_a_planted_fault_fails_and_its_healthy_counterpart_passes(name: str) -> None:
    check(FAULTS[name])


def test_at_least_fourteen_faults_are_planted() -> None:
    assert len(FAULTS) == len(faults.cases()) == 16


def test_a_verifier_that_forgets_the_shared_noise_is_not_plain_decoding_though_its_law_is_right() -> None:
    """`stochastic` behind coupled's promise: lawful text, but not the seed's."""
    wrong = attrs.evolve(cells.cell({}, "coupled", "dense", "fixed"), verifier=Stochastic(), noise="draft")
    result = audit_law(wrong, SMOKE)
    assert result.failed == ("plain decoding's tokens",)


# --------------------------------------------------------------------------------------------------------------
# Too few trials
# --------------------------------------------------------------------------------------------------------------


def test_too_few_trials_say_nothing_and_pass_nothing() -> None:
    subject = cells.cell({}, "stochastic", "dense", "fixed")
    few = audit_law(subject, 5)
    assert few.undecided and not few.passed and not few.failed and few.power < 1e-3
    assert f"a joint bias of 10% would have been seen with a power of {few.power:.1%} only" in few.meaning
    assert f"at least {few.needed:,} trials are needed" in few.meaning
    below, enough = audit_law(subject, few.needed * 9 // 10), audit_law(subject, few.needed)
    assert below.undecided and below.power < 0.99 <= enough.power
    assert enough.passed and enough.smallest_bias <= 0.101
    assert enough.needed == few.needed, "what is needed does not depend on what was run"


def test_a_bias_of_the_promised_size_is_found_with_the_promised_power() -> None:
    """Tokens drawn from a law that is off by exactly the bias, evenly: 200 audits' joint tests, at most 6 missed where
    1 % is promised (probability of more: 0.004)."""
    rng = np.random.default_rng(4)
    exact = np.full((4, 4, 4), 1 / 64)
    biased = exact + np.where(np.arange(64).reshape(4, 4, 4) % 2, 1, -1) * 2 * law.WORTH / 64
    trials = law._least(lambda n: law._power(n, exact, law.ALPHA, False), law.POWER)
    found = 0
    for counts in rng.multinomial(trials, biased.ravel(), size=200):
        tests = holm(list(law.tests_of(counts.reshape(4, 4, 4), exact)))
        found += any(test.adjusted < law.ALPHA for test in tests)
    assert found >= 194


def test_one_other_text_is_enough_where_only_one_is_right() -> None:
    greedy = cells.cell({"temperature": 0.0}, "greedy", "dense", "fixed")
    assert audit_law(greedy, 20).undecided and audit_law(greedy, 60).passed
    coupled = cells.cell({}, "coupled", "dense", "fixed")
    assert audit_law(coupled, 20).undecided and audit_law(coupled, 60).passed


def test_a_fault_that_shows_is_a_failure_however_few_trials() -> None:
    wrong = attrs.evolve(cells.cell({}, "coupled", "dense", "fixed"), verifier=Stochastic(), noise="draft")
    few = audit_law(wrong, 20)
    assert few.failed and not few.undecided and not few.passed


# --------------------------------------------------------------------------------------------------------------
# The audit itself
# --------------------------------------------------------------------------------------------------------------


def test_trial_keys_are_the_engines_keys() -> None:
    seeds = np.array([0, 1, 2**63 + 5], dtype=np.uint64)
    for purpose in ("target", "draft", "accept", "residual"):
        many = TrialKeys(seeds, 17).array(purpose, 3, first=2)
        for i, seed in enumerate(seeds):
            assert mx.array_equal(many[i], Keys(int(seed), 0, 17).array(purpose, 3, first=2))


def test_a_plain_round_draws_what_the_engine_draws() -> None:
    subject = attrs.evolve(cells.cell({"top_p": 0.9}, "stochastic", "dense", "fixed"), scheduler=law._Never())
    seeds = np.arange(40, dtype=np.uint64)
    tokens = Rounds(subject, (0, 0), 2).run(seeds).tokens
    for seed in seeds:
        last, sampler = 0, subject.sampler
        for step in range(2):
            p = sampler.sparkwright_sampler_distribution(subject.target[last][None], None, False)  # type: ignore[attr-defined]
            last = int(draw(p, Keys(int(seed), 0, 1 + step))[1])
            assert tokens[int(seed), step] == last


def test_the_result_does_not_depend_on_how_trials_are_batched(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = cells.cell(PENALISED, "block", "dense", "cost_aware", vocab=4)
    whole = audit_law(subject, 3_000)
    monkeypatch.setattr(law, "BATCH", 700)
    assert audit_law(subject, 3_000) == whole
    assert audit_law(subject, 3_000, seed=1).tests != whole.tests


@attrs.define(eq=False)
class OneBlock:
    """A third party's verifier that knows nothing of leading axes, and leaves out what it does not need."""

    inner: Any

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        assert draft.tokens.ndim == 1 and p.log_p.ndim == 2
        verdict: Verdict = self.inner.sparkwright_verifier_verify(draft, p, keys)
        return verdict


@attrs.define(eq=False)
class OneRow:
    """The same for a sampler."""

    inner: Any

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Any) -> Any:
        return self.inner.sparkwright_sampler_start(prompt)

    @hookimpl
    def sparkwright_sampler_advance(self, state: Any, tokens: Any) -> Any:
        return self.inner.sparkwright_sampler_advance(state, tokens)

    @hookimpl
    def sparkwright_sampler_rows(self, state: Any, drafts: mx.array) -> Any:
        assert drafts.ndim == 1
        return self.inner.sparkwright_sampler_rows(state, drafts)

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: Any, full: bool) -> Distribution:
        assert logits.ndim == 2
        p: Distribution = self.inner.sparkwright_sampler_distribution(logits, context, full)
        return p


def test_plugins_without_leading_axes_are_audited_one_trial_at_a_time() -> None:
    subject = cells.cell(PENALISED, "stochastic", "sparse", "threshold", vocab=4)
    single = attrs.evolve(subject, verifier=OneBlock(subject.verifier), sampler=OneRow(subject.sampler))
    many, one = (attrs.asdict(audit_law(s, 150)) for s in (subject, single))
    assert many == one


@attrs.define(eq=False)
class Remembers:
    """A scheduler whose state is a list: what it was told must reach the right trial, and only that one."""

    @hookimpl
    def sparkwright_scheduler_start(self) -> list[RoundReport]:
        return []

    @hookimpl
    def sparkwright_scheduler_plan(self, state: list[RoundReport], limit: int) -> int:
        return 1 if all(report.accepted == 0 for report in state) else 2 + len(state)

    @hookimpl
    def sparkwright_scheduler_learn(self, state: list[RoundReport], report: RoundReport) -> None:
        assert report.submitted == report.planned == self.sparkwright_scheduler_plan(state, 4)
        state.append(report)


def test_every_trial_has_its_own_scheduler_history() -> None:
    subject = attrs.evolve(cells.cell({}, "stochastic", "dense", "fixed"), scheduler=Remembers(), confidences=False)
    result = audit_law(subject, SMOKE, horizon=4)
    assert result.passed and result.rounds < result.submitted < 3 * result.rounds


def test_the_result_is_plain_data() -> None:
    data = json.loads(json.dumps(audit_law(cells.cell({}, "coupled", "point", "fixed", vocab=3), 500).to_json()))
    assert data["passed"] is True and data["identical"] == data["trials"] == 500 and data["failed"] == []
    assert {"name", "statistic", "df", "p_value", "adjusted", "samples"} <= set(data["tests"][0])
    assert data["tests"][0]["name"] == "joint" and "says nothing" in data["meaning"]


def test_progress_is_told_and_nonsense_is_refused() -> None:
    told: list[tuple[str, int, int]] = []
    subject = cells.cell({}, "stochastic", "point", "fixed", vocab=3)
    audit_law(subject, 100, progress=lambda *step: told.append(step))
    assert told == [("trials", 100, 100)]
    with pytest.raises(ValueError, match="at least one trial"):
        audit_law(subject, 0)
