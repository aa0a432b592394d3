"""The audit's own statistics against SciPy's, and their claims against simulation."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from sparkwright.core.audit import statistics as st


@pytest.mark.parametrize("df", [1, 2, 7, 60, 511])
def test_chi_square_tails_and_critical_values_are_scipys(df: int) -> None:
    for x in (1e-9, 0.3, df / 2, df, df + 1.0, 2.0 * df, 10.0 * df + 40):
        np.testing.assert_allclose(st.chi2_tail(x, df), scipy.stats.chi2.sf(x, df), rtol=1e-9, atol=1e-300)
    for alpha in (0.3, 1e-2, 1e-4, 1e-8):
        np.testing.assert_allclose(st.chi2_critical(alpha, df), scipy.stats.chi2.isf(alpha, df), rtol=1e-8)


@pytest.mark.parametrize("df", [1, 7, 511])
@pytest.mark.parametrize("noncentrality", [0.0, 0.5, 20.0, 300.0, 4000.0])
def test_noncentral_tails_are_scipys(df: int, noncentrality: float) -> None:
    for x in (0.5 * df, df + noncentrality, df + 1.3 * noncentrality + 10):
        wanted = scipy.stats.ncx2.sf(x, df, noncentrality) if noncentrality else scipy.stats.chi2.sf(x, df)
        np.testing.assert_allclose(st.noncentral_tail(x, df, noncentrality), wanted, rtol=1e-6, atol=1e-9)


def test_far_out_noncentral_tails_join_up_with_the_exact_ones() -> None:
    for shift in (-2.0, 0.0, 2.0):
        x = 20 + 6000 + shift * (4 * (20 + 2 * 6000)) ** 0.5 / 2**0.5
        assert abs(st.noncentral_tail(x, 20, 6000.0) - scipy.stats.ncx2.sf(x, 20, 6000.0)) < 5e-3


def test_noncentrality_is_the_inverse_of_the_tail() -> None:
    for tail, df in ((0.99, 7), (0.01, 60), (0.5, 400)):
        x = st.chi2_critical(1e-4, df)
        if tail > 1e-4:
            assert abs(st.noncentral_tail(x, df, st.noncentrality_for(tail, x, df)) - tail) < 1e-6
    assert st.noncentrality_for(0.5, 1.0, 10) == 0.0


def test_pooling_leaves_no_cell_below_the_smallest_and_loses_no_count() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        expected = rng.exponential(size=rng.integers(1, 200)) ** 3 * 30
        group = st.pool(expected)
        sums = np.bincount(group, weights=expected)
        assert len(sums) == group.max() + 1
        assert len(sums) == 1 or sums.min() >= st.SMALLEST_CELL


def test_counts_that_the_law_excludes_fail_by_themselves() -> None:
    test = st.goodness_of_fit("x", np.array([1000, 999, 1]), np.array([0.5, 0.5, 0.0]))
    assert test is not None and test.excluded == 1 and test.p_value == 0.0
    alone = st.goodness_of_fit("x", np.array([1000, 1]), np.array([1.0, 0.0]))
    assert alone is not None and alone.p_value == 0.0
    assert st.goodness_of_fit("x", np.array([1000, 0]), np.array([1.0, 0.0])) is None
    assert st.goodness_of_fit("x", np.array([3, 4]), np.array([0.5, 0.5])) is None


def test_holm_is_the_step_down_rule() -> None:
    tests = [st.Test(str(p), 100, 2, 1.0, 1, p) for p in (0.03, 0.01, 0.02, 0.9)]
    assert [round(t.adjusted, 6) for t in st.holm(tests)] == [0.06, 0.04, 0.06, 0.9]


def test_the_goodness_of_fit_p_value_is_uniform_under_the_law() -> None:
    """2,000 samples of 3,000: p < 0.05 in 100 +- 10; 5 sigma are allowed (false alarm 6e-7)."""
    rng = np.random.default_rng(1)
    law = rng.dirichlet(np.ones(40))
    values = []
    for counts in rng.multinomial(3000, law, size=2000):
        test = st.goodness_of_fit("x", counts, law)
        assert test is not None
        values.append(test.p_value)
    assert 50 < sum(p < 0.05 for p in values) < 150
    assert abs(np.mean(values) - 0.5) < 5 / np.sqrt(12 * 2000)


def test_bias_of_the_promised_size_is_found_and_the_variation_bound_covers_it() -> None:
    """The least visible bias of that size, spread evenly: 300 samples, at most 3 % missed where 1 % is promised."""
    cells, samples, alpha = 20, 20_000, 1e-3
    bias = st.smallest_bias(samples, cells - 1, alpha)
    law = np.full(cells, 1 / cells)
    other = law + np.tile([1, -1], cells // 2) * 2 * bias / cells
    assert np.isclose(np.abs(other - law).sum() / 2, bias)
    rng = np.random.default_rng(2)
    found = covered = 0
    for counts in rng.multinomial(samples, other, size=300):
        test = st.goodness_of_fit("x", counts, law)
        assert test is not None
        found += test.p_value < alpha
        covered += st.variation_bound(test) >= bias
    assert found >= 291 and covered >= 291


def test_power_from_a_pilot_is_not_above_the_power_there_is() -> None:
    """The bound holds in 99 % of pilots; of 200, at most 8 may overstate (probability of more: 5e-4)."""
    cells, samples, alpha = 10, 5_000, 1e-4
    law = np.full(cells, 1 / cells)
    other = law + np.tile([1, -1], 5) * 0.006
    noncentrality = samples * ((other - law) ** 2 / law).sum()
    power = scipy.stats.ncx2.sf(scipy.stats.chi2.isf(alpha, cells - 1), cells - 1, noncentrality)
    rng = np.random.default_rng(3)
    over = 0
    for counts in rng.multinomial(samples, other, size=200):
        pilot = st.goodness_of_fit("x", counts, law)
        assert pilot is not None
        over += st.power_from_pilot(pilot, samples, alpha) > power
    assert over <= 8


def test_power_from_excluded_counts_is_a_poisson_bound() -> None:
    pilot = st.Test("x", 1000, 2, 1.0, 1, 0.0, excluded=20)
    rate = scipy.stats.chi2.ppf(0.01, 40) / 2 / 1000
    assert np.isclose(st.power_from_pilot(pilot, 100, 1e-4), 1 - np.exp(-rate * 100), rtol=1e-6)
