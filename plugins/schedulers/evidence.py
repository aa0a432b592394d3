"""What past rounds say about the next one: acceptance per position, reliability of confidences, tokens for their cost.

Everything here is discounted counting on plain floats, one object a request. Nothing decides anything: `cost_aware`
does. Counts age with every round, plain ones included, so that old evidence loses its weight while drafting is parked.
A sudden change (the text turns from prose to code) is found by comparing the last rounds with what the long memory
expected of them; the long memory is then cut back to those last rounds.
"""

from __future__ import annotations

import math

import attrs

_RECENT = 1.0 - 1.0 / 24.0  # the short memory: about 24 rounds
_ALARM = 4.0  # standard deviations between the two memories before the text is taken to have changed
_SHIFT_PRIOR, _SLOPE_PRIOR = 3.0, 12.0
_OFFSET_PRIOR = 6.0  # curvature: how little a single position is believed to differ from the others
_MEANS = 1.0 - 1.0 / 64.0  # memory of the mean confidences
_ALARM_FLOOR = 0.25  # keeps one lucky draft among impossible ones from being an alarm


def logit(p: float) -> float:
    p = min(max(p, 1e-4), 1.0 - 1e-4)
    return math.log(p / (1.0 - p))


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


@attrs.define(eq=False)
class Acceptance:
    """How often draft k was accepted when all before it were: discounted trials and successes, position by position."""

    depth: int
    keep: float  # factor of a round on the long memory
    first: float  # what is believed of position 1 before anything was seen
    weight: float  # rounds that belief counts for; each deeper position starts from its shallower neighbour
    trials: list[float] = attrs.field(init=False)
    hits: list[float] = attrs.field(init=False)
    recent_trials: list[float] = attrs.field(init=False)
    recent_hits: list[float] = attrs.field(init=False)
    surprise: float = 0.0
    variance: float = 0.0

    def __attrs_post_init__(self) -> None:
        self.trials, self.hits = [0.0] * self.depth, [0.0] * self.depth
        self.recent_trials, self.recent_hits = [0.0] * self.depth, [0.0] * self.depth

    def age(self) -> None:
        self.trials = [n * self.keep for n in self.trials]
        self.hits = [n * self.keep for n in self.hits]

    def means(self, hope: float = 0.0) -> list[float]:
        """Estimated acceptance of each position; `hope` imagined successes are added beyond position 1."""
        out: list[float] = []
        belief, extra = self.first, 0.0
        for hits, trials in zip(self.hits, self.trials, strict=True):
            belief = (hits + self.weight * belief + extra) / (trials + self.weight + extra)
            out.append(belief)
            extra = hope
        return out

    def add(self, accepted: int, submitted: int, cut: bool) -> None:
        """A round's outcome. What a stop rule cut off is unknown, neither accepted nor rejected."""
        tried = min(submitted, accepted + (0 if cut else 1), self.depth)
        if tried == 0:
            return
        expected = self.means()
        self.recent_trials = [n * _RECENT for n in self.recent_trials]
        self.recent_hits = [n * _RECENT for n in self.recent_hits]
        self.surprise *= _RECENT
        self.variance *= _RECENT * _RECENT
        for k in range(tried):
            hit = 1.0 if k < accepted else 0.0
            self.trials[k] += 1.0
            self.hits[k] += hit
            self.recent_trials[k] += 1.0
            self.recent_hits[k] += hit
            self.surprise += hit - expected[k]
            self.variance += expected[k] * (1.0 - expected[k])
        if abs(self.surprise) > _ALARM * math.sqrt(self.variance + _ALARM_FLOOR):
            self.trials, self.hits = list(self.recent_trials), list(self.recent_hits)
            self.surprise = self.variance = 0.0


@attrs.define(eq=False)
class Reliability:
    """Corrects confidences by what became of them: logit c -> slope * logit c + shift + a shift of the position.

    Logistic regression, updated draft by draft with Newton steps whose curvature is discounted. A calibrated drafter is
    left alone; one whose confidences say nothing ends with slope 0, which is its acceptance rate.
    """

    depth: int
    keep: float
    shift: float = 0.0
    slope: float = 1.0
    # Curvature: the prior's, of 1/variance of each parameter, plus that of the data
    h00: float = _SHIFT_PRIOR
    h01: float = 0.0
    h11: float = _SLOPE_PRIOR
    offsets: list[float] = attrs.field(init=False)
    curvature: list[float] = attrs.field(init=False)
    seen: list[float] = attrs.field(init=False)
    total: list[float] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.offsets, self.curvature = [0.0] * self.depth, [_OFFSET_PRIOR] * self.depth
        self.seen, self.total = [0.0] * self.depth, [0.0] * self.depth

    def corrected(self, k: int, confidence: float) -> float:
        return sigmoid(self.slope * logit(confidence) + self.shift + self.offsets[k])

    def mean(self, k: int, otherwise: float) -> float:
        """The mean corrected confidence of position k in past rounds."""
        return self.total[k] / self.seen[k] if self.seen[k] > 0.5 else otherwise

    def add(self, confidences: tuple[float, ...], accepted: int, submitted: int, cut: bool) -> None:
        for k, confidence in enumerate(confidences[: self.depth]):
            self.seen[k] = self.seen[k] * _MEANS + 1.0
            self.total[k] = self.total[k] * _MEANS + self.corrected(k, confidence)
        tried = min(submitted, accepted + (0 if cut else 1), self.depth, len(confidences))
        for k in range(tried):
            self._step(k, logit(confidences[k]), 1.0 if k < accepted else 0.0)

    def _step(self, k: int, x: float, hit: float) -> None:
        p = sigmoid(self.slope * x + self.shift + self.offsets[k])
        weight, residual = p * (1.0 - p), hit - p
        fade = 1.0 - self.keep
        self.h00 = self.keep * self.h00 + fade * _SHIFT_PRIOR + weight
        self.h01 = self.keep * self.h01 + weight * x
        self.h11 = self.keep * self.h11 + fade * _SLOPE_PRIOR + weight * x * x
        determinant = self.h00 * self.h11 - self.h01 * self.h01
        shift = residual * (self.h11 - self.h01 * x) / determinant
        slope = residual * (self.h00 * x - self.h01) / determinant
        self.shift = min(max(self.shift + min(max(shift, -1.0), 1.0), -8.0), 8.0)
        self.slope = min(max(self.slope + min(max(slope, -0.3), 0.3), 0.0), 2.0)
        self.curvature[k] = self.keep * self.curvature[k] + fade * _OFFSET_PRIOR + weight
        self.offsets[k] = min(max(self.offsets[k] + residual / self.curvature[k], -4.0), 4.0)


@attrs.define(eq=False)
class Rate:
    """Tokens for their cost over the rounds that drafted, in tokens a plain decode; starts at a belief."""

    keep: float
    tokens: float
    cost: float
    rounds: float
    recent_tokens: float = 0.0
    recent_cost: float = 0.0
    recent_rounds: float = 0.0
    surprise: float = 0.0
    variance: float = 0.0

    @property
    def value(self) -> float:
        return self.tokens / self.cost

    @property
    def loss(self) -> float:
        """Plain decodes that a round that drafts is expected to lose."""
        return (self.cost - self.tokens) / self.rounds

    def age(self) -> None:
        self.rounds *= self.keep
        self.tokens *= self.keep
        self.cost *= self.keep

    def add(self, tokens: int, cost: float) -> None:
        residual = tokens - self.value * cost
        self.tokens += tokens
        self.cost += cost
        self.rounds += 1.0
        self.recent_rounds = self.recent_rounds * _RECENT + 1.0
        self.recent_tokens = self.recent_tokens * _RECENT + tokens
        self.recent_cost = self.recent_cost * _RECENT + cost
        self.surprise = self.surprise * _RECENT + residual
        self.variance = self.variance * _RECENT * _RECENT + max(residual * residual, 0.25)
        if abs(self.surprise) > _ALARM * math.sqrt(self.variance + 4 * _ALARM_FLOOR):
            self.tokens, self.cost, self.rounds = self.recent_tokens, self.recent_cost, self.recent_rounds
            self.surprise = self.variance = 0.0
