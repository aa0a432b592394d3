"""A simulated request: a text of tokens easy or hard to draft, a cost curve, and a scheduler driven as the engine
drives it. No model, no MLX, no clock. Used by the tests and by docs/benchmarks/scheduler_simulation.py.

Whether a draft is accepted belongs to the text, not to the round: token t falls if its own uniform number is below its
acceptance, so every depth and every scheduler meets the same text.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from sparkwright.core.contracts import CostCurves, DrafterFacts, RoundReport, Site
from sparkwright.plugins.schedulers import cost_aware

BLOCK = 5
CURVES: dict[str, CostCurves] = {
    "flat": CostCurves(plain=1.0, verify=(1.0,) * 8, draft=0.25),
    "linear": CostCurves(plain=1.0, verify=tuple(1.0 + 0.45 * i for i in range(8)), draft=0.1),
    "flash-bytes": CostCurves(plain=1.0, verify=(1.00, 1.30, 1.59, 1.88, 2.16, 2.43, 2.70, 2.96), draft=0.27),
    "stepped": CostCurves(plain=1.0, verify=(1.0, 1.7, 1.7, 1.7, 2.1, 2.1, 3.0, 3.0), draft=0.2),
    "free-draft": CostCurves(plain=1.0, verify=(1.0, 1.12, 1.2, 1.32, 1.35, 1.38, 1.4, 1.41), draft=0.01),
    "dear-draft": CostCurves(plain=1.0, verify=(1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7), draft=1.2),
}


@attrs.frozen
class Text:
    """easy[t]: chance that token t is accepted as the first draft; luck[t]: its uniform number."""

    easy: list[float]
    luck: list[float]
    claim: list[float]  # the drafter's confidence before any correction


Level = Callable[[float], float]  # share of the text passed -> acceptance


def _logit(p: float) -> float:
    p = min(max(p, 1e-6), 1 - 1e-6)
    return math.log(p / (1 - p))


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def _level(a: float) -> Level:
    return lambda share: a


PROFILES: dict[str, tuple[Level, float, float]] = {
    # name: (level over the text, spread of the logit between tokens, factor of each deeper position)
    **{f"constant {a}": (_level(a), 0.0, 1.0) for a in (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.98)},
    **{f"spread {a}": (_level(a), 2.0, 1.0) for a in (0.3, 0.5, 0.7, 0.9)},
    "decaying 0.9": (lambda share: 0.9, 0.0, 0.75),
    "rising 0.45": (lambda share: 0.45, 0.0, 1.18),
    "drifting": (lambda share: 0.5 + 0.45 * math.cos(6 * math.pi * share), 0.5, 1.0),
    "switching up": (lambda share: 0.05 if share < 0.5 else 0.9, 0.0, 1.0),
    "switching down": (lambda share: 0.9 if share < 0.5 else 0.05, 0.0, 1.0),
    "switching often": (lambda share: 0.9 if int(share * 8) % 2 else 0.1, 0.3, 1.0),
}

CLAIMS: dict[str, Callable[[float, random.Random], float] | None] = {
    "none": None,
    "honest": lambda p, rng: p,
    "noisy": lambda p, rng: _sigmoid(_logit(min(max(p, 0.02), 0.98)) + rng.gauss(0, 1)),
    "too sure": lambda p, rng: _sigmoid(1.5 * _logit(min(max(p, 0.02), 0.98)) + 2),
    "too modest": lambda p, rng: 0.1 * p,
    "constant": lambda p, rng: 0.99,
}


def write(profile: str, claims: str, tokens: int, seed: int) -> Text:
    level, spread, _ = PROFILES[profile]
    claim = CLAIMS[claims]
    rng = random.Random(f"{profile}/{seed}")
    shaky = random.Random(f"{profile}/{claims}/{seed}")
    easy, wave = [], 0.0
    for t in range(tokens + BLOCK + 2):
        wave = 0.6 * wave + 0.8 * rng.gauss(0, 1)
        a = level(min(t / tokens, 1.0))
        easy.append(_sigmoid(_logit(a) + spread * wave) if spread and 0 < a < 1 else a)
    luck = [rng.random() for _ in easy]
    return Text(easy, luck, [claim(p, shaky) if claim else 0.0 for p in easy])


def accepted(profile: str, text: Text, anchor: int, n: int) -> int:
    factor = PROFILES[profile][2]
    for k in range(1, n + 1):
        if text.luck[anchor + k] >= min(text.easy[anchor + k] * factor ** (k - 1), 1.0):
            return k - 1
    return n


def fixed_seconds(profile: str, text: Text, curves: CostCurves, depth: int, first: int, last: int) -> float:
    """Seconds for the tokens first..last at a fixed depth, 0 being plain decoding."""
    if depth == 0:
        return curves.plain * (last - first)
    anchor, seconds = first, 0.0
    while anchor < last:
        anchor += 1 + accepted(profile, text, anchor, depth)
        seconds += curves.draft + curves.verify[depth]
    return seconds * (last - first) / (anchor - first)


def scheduler(curves: CostCurves | None, claims: str, **options: Any) -> cost_aware.CostAware:
    (provider,) = cost_aware.sparkwright_register_schedulers()
    drafter = DrafterFacts(block=BLOCK, confidence=claims != "none", proposal="dense", taps=(1,))
    built = provider.build(provider.options(**options), Site(costs=curves, drafter=drafter))
    assert isinstance(built, cost_aware.CostAware)
    return built


def rounds(plugin: Any, profile: str, text: Text, claims: str, tokens: int) -> Iterator[tuple[int, int, RoundReport]]:
    """(anchor before, tokens emitted, report) of each round of one request of `tokens` tokens."""
    state = plugin.sparkwright_scheduler_start()
    anchor, rests = 0, False
    while anchor < tokens:
        limit = min(BLOCK, tokens - anchor - 1)
        planned = plugin.sparkwright_scheduler_plan(state, limit) if limit and not rests else 0
        rests = not planned and (not limit or plugin.sparkwright_scheduler_rests(state))
        seen = tuple(text.claim[anchor + 1 : anchor + 1 + planned]) if claims != "none" else ()
        kept = planned
        for depth, confidence in enumerate(seen, 1):
            if not plugin.sparkwright_scheduler_more(state, depth, confidence):
                kept = depth - 1
                break
        hits = accepted(profile, text, anchor, kept)
        report = RoundReport(planned, planned, kept, hits, seen[: kept + 1], anchor + hits + 1 >= tokens)
        yield anchor, 1 + hits, report
        plugin.sparkwright_scheduler_learn(state, report)
        anchor += 1 + hits


def seconds(curves: CostCurves, report: RoundReport) -> float:
    return curves.draft + curves.verify[report.submitted] if report.drafted else curves.plain


@attrs.frozen
class Outcome:
    """Speeds over plain decoding, past a warm-up of `first` tokens."""

    speed: float
    best: float  # of plain decoding and every fixed depth
    depth: int


def steady(curve: str, profile: str, claims: str, tokens: int, first: int, seed: int = 0, **options: Any) -> Outcome:
    """One long request after its first tokens, against the best that a fixed depth could do on the same text."""
    curves = CURVES[curve]
    text = write(profile, claims, tokens, seed)
    spent, emitted, start = 0.0, 0, None
    for anchor, n, report in rounds(scheduler(curves, claims, **options), profile, text, claims, tokens):
        if anchor >= first:
            start = anchor if start is None else start
            spent += seconds(curves, report)
            emitted += n
    assert start is not None
    fixed = [fixed_seconds(profile, text, curves, d, start, start + emitted) for d in range(BLOCK + 1)]
    plain = fixed[0]
    best = min(range(BLOCK + 1), key=lambda d: fixed[d])
    return Outcome(plain / spent, plain / fixed[best], best)


def short(curve: str, profile: str, claims: str, requests: int, tokens: int, **options: Any) -> list[float]:
    """Speeds over plain decoding of many requests, each from scratch."""
    curves, out = CURVES[curve], []
    plugin = scheduler(curves, claims, **options)
    for seed in range(requests):
        text = write(profile, claims, tokens, seed)
        spent, emitted = 0.0, 0
        for _, n, report in rounds(plugin, profile, text, claims, tokens):
            spent += seconds(curves, report)
            emitted += n
        out.append(curves.plain * emitted / spent)
    return out
