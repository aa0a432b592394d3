"""Student's t and the beta distribution, as far as a comparison needs them; the standard library only.

Not a general library: real arguments, one value at a time, accurate to about 1e-12 (the tests hold it against scipy).
"""

from __future__ import annotations

import math


def _beta_fraction(a: float, b: float, x: float) -> float:
    """Continued fraction of the incomplete beta function (DLMF 8.17.22), evaluated by Lentz's method."""
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    h = d
    for m in range(1, 2000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1.0 + step * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + step / c
            c = c if abs(c) > tiny else tiny
            h *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return h


def beta_cdf(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(log_front)
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _beta_fraction(a, b, x) / a
    return 1.0 - front * _beta_fraction(b, a, 1.0 - x) / b


def beta_quantile(p: float, a: float, b: float) -> float:
    """x with I_x(a, b) = p, by bisection to the last bit of a double."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if beta_cdf(a, b, middle) < p:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def t_tail(t: float, df: float) -> float:
    """P(T > t) for t >= 0, Student's t with `df` degrees of freedom; accurate far into the tail."""
    if math.isinf(t):
        return 0.0
    if t * t < df:  # near the middle the other form of the same identity keeps the digits
        return 0.5 - 0.5 * beta_cdf(0.5, 0.5 * df, t * t / (df + t * t))
    return 0.5 * beta_cdf(0.5 * df, 0.5, df / (df + t * t))


def t_quantile(p: float, df: float) -> float:
    """The quantile of Student's t for 0 < p < 1: a bracket, then bisection and Newton's method."""
    if not 0.0 < p < 1.0:
        raise ValueError(f"a quantile needs a probability between 0 and 1, got {p}")
    if p < 0.5:
        return -t_quantile(1.0 - p, df)
    if p == 0.5:
        return 0.0
    tail = 1.0 - p
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, 2.0 * high
    log_density = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    x = 0.5 * (low + high)
    for _ in range(200):
        error = t_tail(x, df) - tail
        if error > 0:
            low = x
        else:
            high = x
        step = x + error / math.exp(log_density - (df + 1) / 2 * math.log1p(x * x / df))
        following = step if low < step < high else 0.5 * (low + high)
        if abs(following - x) <= 1e-14 * max(1.0, abs(x)):
            return following
        x = following
    return x


def binomial_interval(hits: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper-Pearson: the exact interval of a rate (Clopper & Pearson 1934)."""
    if trials == 0:
        return 0.0, 1.0
    tail = (1.0 - level) / 2.0
    low = 0.0 if hits == 0 else beta_quantile(tail, hits, trials - hits + 1)
    high = 1.0 if hits == trials else beta_quantile(1.0 - tail, hits + 1, trials - hits)
    return low, high
