"""Paired statistics of an A/B run: intervals, tests, power. NumPy only; knows nothing of engines, prompts or files.

What takes log ratios accepts leading batch axes `[..., n]`, so that the tests run the very functions of a real
comparison over tens of thousands of simulated ones. Under `BOOTSTRAP_FROM` pairs the interval is Student's t on the
log ratios (exact for lognormal noise, conservative for heavy tails). From there on it is the symmetric studentised
bootstrap (Hall 1988, "On symmetric bootstrap confidence intervals"). It was chosen by measurement at n = 20, 30,
50: over normal, t3, " "skewed and
two-humped ratios it covers 94.5% to 96.0%, where the percentile bootstrap covers 91% to 94%, the equal-tailed
studentised one down to 92.7% (t3), and Student's t down to 92.6% (skewed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import attrs
import numpy as np

from sparkwright.core.compare.distributions import t_quantile, t_tail

Array = np.ndarray[Any, np.dtype[np.float64]]

BOOTSTRAP_FROM = 20
"""Pairs from which the interval is a bootstrap."""
RESAMPLES = 9999
POWER = 0.8
"""The power that "enough pairs" and the minimum detectable effect stand for."""
_EXACT_WILCOXON = 60
_NORMAL = NormalDist()


# --------------------------------------------------------------------------------------------------------------
# One comparison
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Estimate:
    """A geometric-mean ratio with its interval; p is of the same test as the interval (ratio = 1, two-sided)."""

    ratio: float
    low: float
    high: float
    p: float
    level: float
    n: int
    sd: float  # of the log ratios, one pair
    method: str


def studentised(log_ratios: Array) -> tuple[Array, Array, Array]:
    """mean, standard error, and t over the last axis; a standard error of zero gives t = 0 or +-inf."""
    n = log_ratios.shape[-1]
    mean = log_ratios.mean(axis=-1)
    se = log_ratios.std(axis=-1, ddof=1) / math.sqrt(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(se > 0, mean / se, np.where(mean == 0, 0.0, np.copysign(np.inf, mean)))
    return mean, se, t


def t_interval(log_ratios: Array, level: float = 0.95) -> tuple[Array, Array]:
    """Student's interval of the mean log ratio over the last axis."""
    mean, se, _ = studentised(log_ratios)
    half = t_quantile(0.5 + level / 2, log_ratios.shape[-1] - 1) * se
    return mean - half, mean + half


def resample_counts(n: int, resamples: int, seed: int) -> Array:
    """How often each of n pairs is in each resample, [resamples, n]; integers as float64, ready for a product."""
    draws = np.random.default_rng(seed).integers(0, n, size=(resamples, n))
    flat = draws + np.arange(resamples)[:, None] * n
    return np.bincount(flat.ravel(), minlength=resamples * n).reshape(resamples, n).astype(np.float64)


def bootstrap_t(log_ratios: Array, resamples: int = RESAMPLES, seed: int = 0) -> Array:
    """The studentised bootstrap distribution [..., resamples] of (mean - true mean) / se, unsorted.

    A resample without spread gives +-inf, which widens the interval rather than hide that the data are degenerate.
    """
    n = log_ratios.shape[-1]
    counts = resample_counts(n, resamples, seed)
    centred = log_ratios - log_ratios.mean(axis=-1, keepdims=True)
    mean = centred @ counts.T / n  # [..., resamples], already minus the sample's mean
    square = (centred**2) @ counts.T / n
    variance = np.maximum(square - mean**2, 0.0) * n / (n - 1)
    variance[variance <= 1e-12 * (centred**2).mean(axis=-1, keepdims=True)] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        t = mean / np.sqrt(variance / n)
    t[np.isnan(t)] = 0.0  # neither spread nor a shift
    return np.asarray(t, dtype=np.float64)


def bootstrap_interval(
    log_ratios: Array, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Array, Array]:
    """The studentised bootstrap interval of the mean log ratio over the last axis."""
    mean, se, _ = studentised(log_ratios)
    half = _critical(np.abs(bootstrap_t(log_ratios, resamples, seed)), level) * se
    return mean - half, mean + half


def _critical(size: Array, level: float) -> Array:
    """The quantile of |t*| as an order statistic: the one that (B + 1) (1 - level) of B resamples reach or exceed."""
    resamples = size.shape[-1]
    k = max(1, math.floor((resamples + 1) * (1.0 - level) + 1e-9))
    critical: Array = np.partition(size, resamples - k, axis=-1)[..., resamples - k]
    return critical


def estimate(log_ratios: Sequence[float] | Array, level: float = 0.95, seed: int = 0) -> Estimate:
    """The geometric-mean ratio of paired rates. One pair gives a ratio and an endless interval; none is an error."""
    x = np.asarray(log_ratios, dtype=np.float64)
    n = len(x)
    if n == 0:
        raise ValueError("no pairs: there is nothing to estimate")
    if n == 1:
        return Estimate(math.exp(x[0]), 0.0, math.inf, 1.0, level, 1, math.nan, "none (one pair)")
    mean_, se_, t_ = studentised(x)
    mean, se, t = float(mean_), float(se_), float(t_)
    sd = se * math.sqrt(n)
    if n >= BOOTSTRAP_FROM and se > 0:
        size = np.abs(bootstrap_t(x, seed=seed))
        half = float(_critical(size, level)) * se
        if math.isfinite(half):
            p = (int((size >= abs(t)).sum()) + 1) / (len(size) + 1)
            return Estimate(
                math.exp(mean), _exp(mean - half), _exp(mean + half), p, level, n, sd, "symmetric studentised bootstrap"
            )
    low, high = (float(v) for v in t_interval(x, level))
    return Estimate(math.exp(mean), _exp(low), _exp(high), 2.0 * t_tail(abs(t), n - 1), level, n, sd, "t on log ratios")


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


# --------------------------------------------------------------------------------------------------------------
# Wilcoxon and Holm
# --------------------------------------------------------------------------------------------------------------


def midranks(values: Array) -> Array:
    """Ranks from 1, ties sharing their mean rank."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered, side="left")
    last = np.searchsorted(ordered, ordered, side="right")
    ranks = np.empty(len(values))
    ranks[order] = (first + last + 1) / 2.0
    return ranks


def wilcoxon(log_ratios: Sequence[float] | Array) -> float:
    """Two-sided p of the signed-rank test (Wilcoxon 1945). Zeros are dropped. Up to 60 pairs the null distribution is
    counted exactly, ties included (every sign pattern equally likely); beyond that, the normal limit with tie and
    continuity corrections."""
    x = np.asarray(log_ratios, dtype=np.float64)
    x = x[x != 0]
    n = len(x)
    if n == 0:
        return 1.0
    ranks = midranks(np.abs(x))
    plus = float(ranks[x > 0].sum())
    if n <= _EXACT_WILCOXON:
        doubled = np.rint(2 * ranks).astype(int)  # midranks are multiples of 1/2
        ways = np.zeros(int(doubled.sum()) + 1)
        ways[0] = 1.0
        for r in doubled:
            ways = 0.5 * (ways + np.concatenate([np.zeros(r), ways[:-r]]))
        at = round(2 * plus)
        return min(1.0, 2.0 * min(float(ways[: at + 1].sum()), float(ways[at:].sum())))
    _, ties = np.unique(ranks, return_counts=True)
    mean = n * (n + 1) / 4.0
    variance = n * (n + 1) * (2 * n + 1) / 24.0 - float((ties**3 - ties).sum()) / 48.0
    z = max(0.0, abs(plus - mean) - 0.5) / math.sqrt(variance)
    return min(1.0, 2.0 * _NORMAL.cdf(-z))


@attrs.frozen
class HolmStep:
    """adjusted: Holm's adjusted p. level: of the interval that says the same as the test at this step."""

    adjusted: float
    rejected: bool
    level: float


def holm(p_values: Sequence[float], alpha: float = 0.05) -> list[HolmStep]:
    """Holm's step-down procedure (Holm 1979), in the order given.

    The k-th smallest p of m is tested at alpha / (m - k + 1) until the first failure; that failing step's level
    holds for all the rest, so an interval at `level` excludes 1 exactly when its candidate is rejected.
    """
    m = len(p_values)
    steps: list[HolmStep | None] = [None] * m
    running, open_ = 0.0, True
    share = alpha / m if m else alpha
    for k, i in enumerate(sorted(range(m), key=lambda j: p_values[j])):
        running = max(running, min(1.0, (m - k) * p_values[i]))
        if open_:
            share = alpha / (m - k)
            open_ = p_values[i] <= share
        steps[i] = HolmStep(running, open_, 1.0 - share)
    return [step for step in steps if step is not None]


# --------------------------------------------------------------------------------------------------------------
# Power
# --------------------------------------------------------------------------------------------------------------


def power(effect: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """Power of the two-sided t test on n log ratios of standard deviation sd, when the mean log ratio is `effect`.

    The noncentral t probability, integrated over the sample standard deviation: given s (in units of sd) the test
    rejects with probability Phi(ncp - c s) + Phi(-ncp - c s), and s^2 (n - 1) is chi-square.
    """
    if n < 2:
        return 0.0
    if sd == 0:
        return 1.0 if effect else 0.0
    df = n - 1
    c, ncp = t_quantile(1 - alpha / 2, df), abs(effect) / sd * math.sqrt(n)
    width = 8.0 / math.sqrt(2 * df)
    edges = np.linspace(max(0.0, 1.0 - width), 1.0 + width, 1001)
    s = 0.5 * (edges[1:] + edges[:-1])
    log_density = (df - 1) * np.log(s) - df * s**2 / 2
    weight = np.exp(log_density - log_density.max())
    reject = _phi(ncp - c * s) + _phi(-ncp - c * s)
    return float((weight * reject).sum() / weight.sum())


def _phi(z: Array) -> Array:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in z])


def detectable(sd: float, n: int, alpha: float = 0.05, target: float = POWER) -> float:
    """The smallest mean log ratio found with power `target` at n pairs; inf below two pairs."""
    if n < 2 or math.isnan(sd):
        return math.inf
    if sd == 0:
        return 0.0
    low, high = 0.0, sd
    while power(high, sd, n, alpha) < target:
        low, high = high, 2 * high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if power(middle, sd, n, alpha) < target else (low, middle)
    return high


def pairs_needed(effect: float, sd: float, alpha: float = 0.05, target: float = POWER, most: int = 100_000) -> int:
    """The fewest pairs that find a mean log ratio of `effect` with power `target`; `most` if that is not enough."""
    if sd == 0 or math.isnan(sd):
        return 2
    low, high = 1, 2
    while high < most and power(effect, sd, high, alpha) < target:
        low, high = high, 2 * high
    high = min(high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(effect, sd, middle, alpha) < target else (low, middle)
    return high


# --------------------------------------------------------------------------------------------------------------
# Counts pooled over runs
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Pooled:
    """A ratio of sums over runs with an interval that takes the run, not the token, as its unit."""

    value: float
    low: float
    high: float


def pooled_mean(total: Sequence[float], count: Sequence[float], level: float = 0.95) -> Pooled | None:
    """sum(total) / sum(count) with a linearised t interval over runs; None if nothing was counted."""
    a, s = np.asarray(total, dtype=np.float64), np.asarray(count, dtype=np.float64)
    a, s = a[s > 0], s[s > 0]
    if len(s) == 0:
        return None
    value = float(a.sum() / s.sum())
    if len(s) == 1:
        return Pooled(value, -math.inf, math.inf)
    half = t_quantile(0.5 + level / 2, len(s) - 1) * _ratio_se(a, s, value)
    return Pooled(value, value - half, value + half)


def pooled_rate(hits: Sequence[float], trials: Sequence[float], level: float = 0.95) -> Pooled | None:
    """As `pooled_mean` for a rate in [0, 1]: Wilson's interval (1927) at the effective number of trials, which is what
    the spread between runs leaves of the nominal one."""
    a, s = np.asarray(hits, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    a, s = a[s > 0], s[s > 0]
    if len(s) == 0:
        return None
    rate, size = float(a.sum() / s.sum()), float(s.sum())
    z = _NORMAL.inv_cdf(0.5 + level / 2)
    if len(s) > 1:
        variance = _ratio_se(a, s, rate) ** 2
        if variance > rate * (1 - rate) / size:
            size = rate * (1 - rate) / variance
            z = t_quantile(0.5 + level / 2, len(s) - 1)
    centre = (rate + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * math.sqrt(rate * (1 - rate) / size + z * z / (4 * size * size))
    return Pooled(rate, max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half)))


def _ratio_se(a: Array, s: Array, value: float) -> float:
    n = len(s)
    return math.sqrt(n / (n - 1) * float(((a - value * s) ** 2).sum())) / float(s.sum())
