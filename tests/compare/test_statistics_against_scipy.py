"""Our NumPy-only statistics against scipy's, which is a dependency of the tests alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sparkwright.core.compare import distributions as ours
from sparkwright.core.compare import statistics as st


@pytest.mark.parametrize("df", [1, 2, 3, 9, 19, 57, 400])
def test_t_quantiles_and_tails_equal_scipys(df: int) -> None:
    for p in (0.5, 0.500001, 0.6, 0.8, 0.9, 0.975, 0.995, 0.99999, 0.2, 0.025, 1e-6):
        assert ours.t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9, abs=1e-12)
    for t in (0.0, 1e-3, 0.7, 2.0, 5.0, 40.0, 1e4):
        assert ours.t_tail(t, df) == pytest.approx(stats.t.sf(t, df), rel=1e-9)


def test_a_quantile_outside_0_and_1_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.0"):
        ours.t_quantile(1.0, 5)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (2, 7), (40, 3), (300, 900), (1, 1)])
def test_the_incomplete_beta_function_equals_scipys(a: float, b: float) -> None:
    for x in (0.0, 1e-6, 0.05, 0.3, 0.5, 0.9, 0.999999, 1.0):
        assert ours.beta_cdf(a, b, x) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-10, abs=1e-300)
    for p in (0.005, 0.4, 0.99):
        assert ours.beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-10)


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (1, 20), (7, 30), (20, 20), (530, 10_000)])
def test_binomial_intervals_are_clopper_and_pearsons(hits: int, trials: int) -> None:
    want = stats.binomtest(hits, trials).proportion_ci(0.95, method="exact")
    assert ours.binomial_interval(hits, trials) == pytest.approx((want.low, want.high), abs=1e-10)


@pytest.mark.parametrize("n", [2, 5, 12, 19])
def test_the_interval_under_twenty_pairs_is_the_t_test_of_scipy(n: int) -> None:
    x = np.random.default_rng(n).normal(0.02, 0.03, n)
    ours_ = st.estimate(x)
    want = stats.ttest_1samp(x, 0.0)
    low, high = want.confidence_interval(0.95)
    assert ours_.method == "t on log ratios"
    assert (ours_.p, math.log(ours_.low), math.log(ours_.high)) == pytest.approx((want.pvalue, low, high), rel=1e-9)
    assert ours_.ratio == pytest.approx(stats.gmean(np.exp(x)))
    assert ours_.sd == pytest.approx(x.std(ddof=1))


@pytest.mark.parametrize("n", [3, 8, 15, 25, 40])
def test_wilcoxon_is_exact_as_scipys_without_ties(n: int) -> None:
    x = np.random.default_rng(n).normal(0.3, 1.0, n)
    assert st.wilcoxon(x) == pytest.approx(stats.wilcoxon(x, method="exact").pvalue, rel=1e-9)


def test_wilcoxon_with_ties_is_the_permutation_test_over_every_sign_pattern() -> None:
    x = np.array([1.0, 1.0, -1.0, 2.0, 2.0, 3.0, -3.0, 4.0, 0.0, 5.0])
    nonzero = x[x != 0]
    ranks = st.midranks(np.abs(nonzero))
    observed = ranks[nonzero > 0].sum()
    signs = (np.arange(2 ** len(nonzero))[:, None] >> np.arange(len(nonzero))) & 1
    sums = signs @ ranks
    want = min(1.0, 2 * min((sums <= observed).mean(), (sums >= observed).mean()))
    assert st.wilcoxon(x) == pytest.approx(want, rel=1e-12)


def test_wilcoxon_of_many_pairs_is_scipys_corrected_normal_limit() -> None:
    x = np.round(np.random.default_rng(5).normal(0.1, 1.0, 200), 1)
    x = x[x != 0]
    want = stats.wilcoxon(x, method="asymptotic", correction=True).pvalue
    assert st.wilcoxon(x) == pytest.approx(want, rel=1e-9)


def test_wilcoxon_of_nothing_but_ties_is_one() -> None:
    assert st.wilcoxon([0.0, 0.0, 0.0]) == 1.0


def test_midranks_equal_scipys() -> None:
    x = np.random.default_rng(0).integers(0, 5, 50).astype(np.float64)
    assert (st.midranks(x) == stats.rankdata(x)).all()


@pytest.mark.parametrize("n", [2, 3, 10, 40])
@pytest.mark.parametrize("effect", [0.0, 0.01, 0.03, 0.1])
def test_power_is_the_noncentral_t(n: int, effect: float) -> None:
    sd = 0.0283
    ncp, c = effect / sd * math.sqrt(n), stats.t.ppf(0.975, n - 1)
    far_side = np.nan_to_num(stats.nct.cdf(-c, n - 1, ncp))  # scipy gives nan where it is below 1e-300
    want = stats.nct.sf(c, n - 1, ncp) + far_side
    assert st.power(effect, sd, n) == pytest.approx(want, abs=2e-4)


def test_the_detectable_effect_and_the_pairs_needed_invert_the_power() -> None:
    found = st.detectable(0.03, 12)
    assert st.power(found, 0.03, 12) == pytest.approx(0.8, abs=1e-6)
    n = st.pairs_needed(0.02, 0.03)
    assert st.power(0.02, 0.03, n) >= 0.8 > st.power(0.02, 0.03, n - 1)
    assert st.pairs_needed(0.01, 0.0) == 2
    assert st.detectable(0.03, 1) == math.inf


def test_holm_gives_the_adjusted_p_of_the_textbook_and_levels_that_agree_with_the_tests() -> None:
    steps = st.holm([0.01, 0.04, 0.03, 0.005])
    assert [s.adjusted for s in steps] == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [s.rejected for s in steps] == [True, False, False, True]
    assert [s.level for s in steps] == pytest.approx([1 - 0.05 / 3, 1 - 0.05 / 2, 1 - 0.05 / 2, 1 - 0.05 / 4])
    assert st.holm([0.03])[0].level == pytest.approx(0.95)
    assert st.holm([]) == []


def test_after_holm_the_interval_excludes_one_exactly_when_the_test_rejects() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        data = [rng.normal(shift, 0.03, 10) for shift in rng.normal(0, 0.03, 4)]
        steps = st.holm([st.estimate(x).p for x in data])
        for x, step in zip(data, steps, strict=True):
            e = st.estimate(x, step.level)
            assert (not e.low <= 1.0 <= e.high) == step.rejected


def test_pooled_rates_and_means_are_sums_over_sums_and_widen_with_the_spread_between_runs() -> None:
    even = st.pooled_rate([50] * 10, [100] * 10)
    spread = st.pooled_rate([10, 90] * 5, [100] * 10)
    assert even is not None and spread is not None
    assert even.value == spread.value == 0.5
    assert spread.high - spread.low > 5 * (even.high - even.low)
    want = stats.binomtest(500, 1000).proportion_ci(0.95, method="wilson")
    assert (even.low, even.high) == pytest.approx((want.low, want.high), abs=1e-9)
    mean = st.pooled_mean([10.0, 30.0], [5.0, 10.0])
    assert mean is not None and mean.value == pytest.approx(40 / 15)
    assert st.pooled_mean([0.0], [0.0]) is None and st.pooled_rate([], []) is None
    all_hit = st.pooled_rate([8, 8], [8, 8])
    assert all_hit is not None and all_hit.value == all_hit.high == 1.0 and all_hit.low < 0.9


def test_degenerate_data_give_honest_estimates() -> None:
    one = st.estimate([0.1])
    assert (one.low, one.high, one.p) == (0.0, math.inf, 1.0)
    flat = st.estimate([0.1] * 30)
    assert flat.low == flat.high == pytest.approx(math.exp(0.1)) and flat.p < 1e-9
    same = st.estimate([0.0] * 5)
    assert (same.ratio, same.p) == (1.0, 1.0)
    nearly = st.estimate([0.0] * 29 + [0.1])  # most resamples have no spread: the bootstrap has nothing to say
    assert nearly.method == "t on log ratios" and nearly.low < 1.0 < nearly.high
    with pytest.raises(ValueError, match="no pairs"):
        st.estimate([])


def test_the_bootstrap_is_the_t_of_every_resample_computed_one_by_one() -> None:
    x = np.random.default_rng(2).normal(0.01, 0.03, 20)
    counts = st.resample_counts(20, 50, seed=0)
    assert (counts.sum(axis=1) == 20).all() and len(np.unique(counts, axis=0)) == 50
    for t, count in zip(st.bootstrap_t(x, 50, seed=0), counts, strict=True):
        sample = np.repeat(x, count.astype(int))
        assert t == pytest.approx((sample.mean() - x.mean()) / (sample.std(ddof=1) / math.sqrt(20)))
