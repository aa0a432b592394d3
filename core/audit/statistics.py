"""The audit's statistics: chi-square tests with pooled cells, Holm's correction, power and confidence bounds.

Written on NumPy and `math` alone, because the audit ships with the engine and SciPy does not. It knows counts and
probabilities, not tokens or rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]

SMALLEST_CELL = 20.0
"""Cells are pooled until each expects this many counts, where the chi-square approximation is good at small alphas."""

NEARLY_NORMAL = 5000.0
"""Noncentralities beyond this are taken as normal."""

# --------------------------------------------------------------------------------------------------------------
# Chi-square distributions
# --------------------------------------------------------------------------------------------------------------


def _gamma_lower(a: float, x: float) -> float:
    """The regularised lower incomplete gamma P(a, x) by its power series; for x < a + 1."""
    term = total = 1.0 / a
    n = a
    while term > total * 1e-16:
        n += 1.0
        term *= x / n
        total += term
    return total * math.exp(a * math.log(x) - x - math.lgamma(a))


def _gamma_upper(a: float, x: float) -> float:
    """The regularised upper incomplete gamma Q(a, x) by Lentz's continued fraction; for x >= a + 1."""
    b = x + 1.0 - a
    c, d = 1e300, 1.0 / b
    h = d
    for i in range(1, 100_000):
        an = -i * (i - a)
        b += 2.0
        d = 1.0 / (an * d + b)
        c = b + an / c
        h *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return h * math.exp(a * math.log(x) - x - math.lgamma(a))


def chi2_tail(x: float, df: float) -> float:
    """P(chi-square with df degrees of freedom > x)."""
    if x <= 0:
        return 1.0
    if math.isinf(x):
        return 0.0
    a, half = df / 2, x / 2
    return 1.0 - _gamma_lower(a, half) if half < a + 1 else _gamma_upper(a, half)


def chi2_critical(alpha: float, df: float) -> float:
    """The value that a chi-square variable exceeds with probability alpha."""
    return _root(lambda x: alpha - chi2_tail(x, df), 0.0, df + 10.0)


def noncentral_tail(x: float, df: float, noncentrality: float) -> float:
    """P(noncentral chi-square > x), as a Poisson mixture of central ones with df, df + 2, df + 4, ... degrees; far out,
    where no audit decides anything, by its mean and variance."""
    half = noncentrality / 2
    if half <= 0 or x <= 0:
        return chi2_tail(x, df)
    if noncentrality > NEARLY_NORMAL:
        return 0.5 * math.erfc((x - df - noncentrality) / math.sqrt(4 * (df + 2 * noncentrality)))
    spread = 12 * math.sqrt(half) + 30
    first = max(0, int(half - spread))
    a, y = df / 2 + first, x / 2
    tail = chi2_tail(x, 2 * a)
    total = 0.0
    for j in range(first, int(half + spread) + 1):
        total += math.exp(-half + j * math.log(half) - math.lgamma(j + 1)) * tail
        tail += math.exp(a * math.log(y) - y - math.lgamma(a + 1))  # Q(a + 1, y) = Q(a, y) + y^a e^-y / Gamma(a + 1)
        a += 1
    return min(total, 1.0)


def noncentrality_for(tail: float, x: float, df: float) -> float:
    """The noncentrality at which x is exceeded with probability `tail`; 0 where even none does that."""
    if chi2_tail(x, df) >= tail:
        return 0.0
    return _root(lambda value: noncentral_tail(x, df, value) - tail, 0.0, 10.0)


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """The root of a rising function above `low`, by bisection."""
    while rising(high) < 0:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


# --------------------------------------------------------------------------------------------------------------
# Tests
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Test:
    """A goodness-of-fit test.

    excluded: counts in cells the law gives no probability; one of them is a failure by itself, and p_value is then 0.
    adjusted: the p-value after Holm's correction over the family it belongs to.
    """

    __test__ = False  # not a test class for pytest

    name: str
    samples: int
    cells: int
    statistic: float
    df: int
    p_value: float
    excluded: int = 0
    adjusted: float = math.nan


def pool(expected: Array) -> Array:
    """A group number for each cell, so that every group expects SMALLEST_CELL at least: cells ascending, greedily."""
    order = np.argsort(expected, kind="stable")
    group = np.zeros(len(expected), dtype=np.int64)
    current, filled = 0, 0.0
    for cell in order:
        if filled >= SMALLEST_CELL:
            current, filled = current + 1, 0.0
        group[cell] = current
        filled += expected[cell]
    if filled < SMALLEST_CELL and current > 0:
        group[group == current] = current - 1
    return group


def goodness_of_fit(name: str, counts: Array, law: Array) -> Test | None:
    """Chi-square of counts [cells] against probabilities [cells]; None if pooling leaves a single cell.

    A single cell can still fail: counts that the law excludes are always reported.
    """
    samples = int(counts.sum())
    possible = law > 0
    excluded = int(counts[~possible].sum())
    counts, expected = counts[possible].astype(np.float64), law[possible] / law.sum() * samples
    if len(expected) == 0 or samples == 0:
        return None
    group = pool(expected)
    cells = int(group.max()) + 1
    if cells < 2 and not excluded:
        return None
    seen = np.bincount(group, weights=counts, minlength=cells)
    wanted = np.bincount(group, weights=expected, minlength=cells)
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    df = max(cells - 1, 1)
    p_value = 0.0 if excluded else chi2_tail(statistic, df)
    return Test(name, samples, cells, statistic, df, p_value, excluded)


def holm(tests: Sequence[Test]) -> tuple[Test, ...]:
    """The tests with Holm-adjusted p-values: rejecting those below alpha errs at all with probability alpha at most."""
    order = sorted(range(len(tests)), key=lambda i: tests[i].p_value)
    adjusted = [1.0] * len(tests)
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(tests) - rank) * tests[i].p_value))
        adjusted[i] = highest
    return tuple(attrs.evolve(test, adjusted=value) for test, value in zip(tests, adjusted, strict=True))


def smallest_bias(samples: int, df: int, alpha: float, power: float = 0.99) -> float:
    """The total variation from which on *every* bias fails a test at alpha with at least this power.

    A bias of total variation t has noncentrality N sum(delta^2 / p) >= N (sum |delta|)^2 = 4 N t^2 (Cauchy-Schwarz),
    so t = sqrt(noncentrality / 4N) suffices; biases in few cells are found much earlier.
    """
    return min(1.0, math.sqrt(noncentrality_for(power, chi2_critical(alpha, df), df) / (4 * samples)))


def power_at(bias: float, samples: int, df: int, alpha: float) -> float:
    """The least power of a test at alpha against any bias of this total variation (by the same inequality)."""
    return noncentral_tail(chi2_critical(alpha, df), df, 4 * samples * bias * bias)


def variation_bound(test: Test, confidence: float = 0.99) -> float:
    """An upper confidence bound for the total variation between the sampled law and the exact one, over pooled cells.

    From the largest noncentrality that a statistic this small leaves plausible, by the inequality of `smallest_bias`. A
    statistic below its mean is taken as its mean: luck is not evidence of a smaller bias.
    """
    if test.excluded:
        return 1.0
    statistic = max(test.statistic, float(test.df))
    noncentrality = noncentrality_for(confidence, statistic, test.df)
    return min(1.0, math.sqrt(noncentrality / (4 * test.samples)))


def power_from_pilot(pilot: Test, samples: int, alpha: float, confidence: float = 0.99) -> float:
    """Power of the same test with `samples` samples at alpha, at the smallest noncentrality the pilot leaves plausible.

    With excluded counts in the pilot the test fails as soon as one more comes: the same bound for a Poisson rate.
    """
    if pilot.excluded:
        rate = _poisson_lower(pilot.excluded, 1 - confidence) / pilot.samples
        return 1.0 - math.exp(-rate * samples)
    # tail(statistic; low) = 1 - confidence: anything smaller would hardly have given this statistic
    low = noncentrality_for(1 - confidence, pilot.statistic, pilot.df)
    return noncentral_tail(chi2_critical(alpha, pilot.df), pilot.df, low * samples / pilot.samples)


def _poisson_lower(count: int, tail: float) -> float:
    """The rate at which `count` or more is seen with probability `tail`: P(count, rate) of the gamma function."""
    return _root(lambda rate: 1.0 - chi2_tail(2 * rate, 2 * count) - tail, 0.0, float(count))
