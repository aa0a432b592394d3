"""`audit_law`: does speculation emit what plain decoding would? A statistical answer on small exact models.

The subject (sampler x drafter x scheduler x verifier) runs on a Markov target of at most a few tokens, whose law under
the sampler is known exactly. The first three tokens after the prompt, over as many rounds as they take, are compared
with that law: jointly, in pairs, alone, and conditionally on every prefix; Holm's correction holds the false-alarm rate
of the whole family at alpha. The sampler's own plain distribution is the truth here: whether the sampler itself is
right is a question for its own tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from sparkwright.core.audit.statistics import (
    Array,
    Test,
    goodness_of_fit,
    holm,
    pool,
    power_at,
    power_from_pilot,
    smallest_bias,
    variation_bound,
)
from sparkwright.core.audit.subjects import Subject
from sparkwright.core.audit.trials import Rounds, Sample
from sparkwright.core.contracts import Promise, RoundReport
from sparkwright.core.hookspecs import hookimpl

TRIALS = 300_000
ALPHA = 1e-4
HORIZON = 3
WORTH = 0.1
"""The joint bias that every audit must be able to see: with less than POWER against it, an audit says nothing."""
POWER = 0.99
BATCH = 1 << 17
"""Trials run together: enough to hide the cost of a call, few enough for memory."""


@attrs.frozen
class LawResult:
    """What an audit of the law found. All of it is a function of the subject, the trials, the seed and alpha.

    failed:          names of the tests whose adjusted p-value is below alpha; empty is a pass
    variation_bound: at 99 %, the total variation between the emitted joint law and the exact one is below this
    smallest_bias:   any bias of the joint law with at least this total variation fails with probability 0.99
    power:           the probability with which any joint bias of total variation WORTH fails
    needed:          trials from which on that is at least POWER
    identical:       trials whose tokens are plain decoding's for the same seed; None where only the law is promised.
                     Rows of these models do not round differently by how many there are, so ties are no excuse
    tau:             mean accepted length over rounds that verified drafts, NaN if none did
    """

    subject: str
    promise: Promise
    trials: int
    seed: int
    alpha: float
    tests: tuple[Test, ...]
    variation_bound: float
    smallest_bias: float
    power: float
    needed: int
    identical: int | None
    tau: float
    rounds: int
    plain_rounds: int
    submitted: int
    accepted: int
    empty_residuals: int
    redone: int

    @property
    def failed(self) -> tuple[str, ...]:
        names = tuple(test.name for test in self.tests if test.adjusted < self.alpha)
        differs = self.identical is not None and self.identical < self.trials
        return (*names, "plain decoding's tokens") if differs else names

    @property
    def undecided(self) -> bool:
        """Nothing was found, and nothing would have been: too few trials."""
        return not self.failed and self.power < POWER

    @property
    def passed(self) -> bool:
        return not self.failed and not self.undecided

    @property
    def joint(self) -> Test:
        return self.tests[0]

    @property
    def meaning(self) -> str:
        """One sentence: what this outcome does and does not prove."""
        if self.undecided:
            return (
                f"Not enough trials to say anything: a joint bias of {WORTH:.0%} would have been seen with a power of "
                f"{self.power:.1%} only; at least {self.needed:,} trials are needed."
            )
        if self.passed:
            return (
                f"A pass says that {self.trials:,} trials on one small exact model show no departure from plain "
                f"decoding's law, and that a joint bias of {self.smallest_bias:.2%} would have shown; it says nothing "
                "about a real target's forward pass, other tables, or biases smaller than that."
            )
        return (
            f"A failure says that the emitted text does not have plain decoding's law (by chance: at most "
            f"{self.alpha:g} for this audit); first look at {self.failed[0]}."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; numbers that do not exist are None."""
        data = attrs.asdict(self)
        data["tests"] = [{k: _plain(v) for k, v in attrs.asdict(t).items()} for t in self.tests]
        data.update(passed=self.passed, undecided=self.undecided, failed=list(self.failed), meaning=self.meaning)
        return {k: _plain(v) for k, v in data.items()}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def audit_law(
    subject: Subject,
    trials: int = TRIALS,
    *,
    seed: int = 0,
    alpha: float = ALPHA,
    prompt: Sequence[int] = (0, 0),
    horizon: int = HORIZON,
    progress: Callable[[str, int, int], None] | None = None,
) -> LawResult:
    """Runs the trials and tests them. The prompt's last token is the first round's anchor, an emitted token.

    progress(what, done, total) is called after each batch of trials.
    """
    if trials < 1 or horizon < 1 or not prompt:
        raise ValueError(
            f"an audit needs at least one trial, one token and an anchor, not {trials}, {horizon} and {list(prompt)}"
        )
    plain = subject.promise in ("identity", "identity-up-to-ties")
    counts, sample = count(subject, trials, seed=seed, prompt=prompt, horizon=horizon, progress=progress, plain=plain)
    law = Rounds(subject, prompt, horizon).law.joint(horizon)
    tests = holm(list(tests_of(counts, law)))
    joint = tests[0]

    def power(trials: int) -> float:
        return _power(trials, law, alpha, plain)

    return LawResult(
        subject=subject.name,
        promise=subject.promise,
        trials=trials,
        seed=seed,
        alpha=alpha,
        tests=tests,
        variation_bound=variation_bound(joint),
        smallest_bias=smallest_bias(joint.samples, joint.df, alpha / len(tests)),
        power=power(trials),
        needed=_least(power, POWER),
        identical=sample.identical if plain else None,
        tau=sample.tau,
        rounds=sample.rounds,
        plain_rounds=sample.plain,
        submitted=sample.submitted,
        accepted=sample.accepted,
        empty_residuals=sample.empty_residuals,
        redone=sample.redone,
    )


def count(
    subject: Subject,
    trials: int,
    *,
    seed: int = 0,
    prompt: Sequence[int] = (0, 0),
    horizon: int = HORIZON,
    progress: Callable[[str, int, int], None] | None = None,
    plain: bool = False,
) -> tuple[Array, Sample]:
    """int64 [V] * horizon: how often each first tokens came, and the sums of all rounds (its tokens are left empty).

    plain: decode every trial plainly too, and count the trials with the same tokens as `identical`.
    """
    rounds = Rounds(subject, prompt, horizon)
    never = Rounds(attrs.evolve(subject, scheduler=_Never(), confidences=False), prompt, horizon)
    counts = np.zeros((subject.vocab,) * horizon, dtype=np.int64)
    total = Sample(np.zeros((0, horizon), dtype=np.int32), np.zeros(subject.block + 1, dtype=np.int64))
    for start in range(0, trials, BATCH):
        size = min(BATCH, trials - start)
        seeds = _seeds(seed, start, size)
        sample = rounds.run(seeds)
        if plain:
            total.identical += int((sample.tokens == never.run(seeds).tokens).all(axis=1).sum())
        flat = np.ravel_multi_index(tuple(sample.tokens.T), counts.shape)
        counts += np.bincount(flat, minlength=counts.size).reshape(counts.shape)
        for field in ("lengths", "rounds", "plain", "submitted", "accepted", "empty_residuals", "redone"):
            setattr(total, field, getattr(total, field) + getattr(sample, field))
        if progress is not None:
            progress("trials", start + size, trials)
    return counts, total


def _power(trials: int, law: Array, alpha: float, identical: bool) -> float:
    """The least power of an audit with so many trials against any joint bias of WORTH.

    Where every trial must give plain decoding's tokens, or only one text is possible, a single other text is a failure,
    and a bias puts at least its own share of trials there. Otherwise it is the joint test's, at the strictest step of
    Holm's correction that a family of this horizon and vocabulary can have.
    """
    if identical or np.count_nonzero(law) == 1:
        return 1.0 - float((1.0 - WORTH) ** trials)
    flat = law[law > 0].ravel()
    cells = int(pool(flat / flat.sum() * trials).max()) + 1
    if cells < 2:
        return 0.0
    horizon, vocabulary = law.ndim, law.shape[0]
    family = 2**horizon + sum(vocabulary**depth for depth in range(1, horizon))
    return power_at(WORTH, trials, cells - 1, alpha / family)


def _least(power: Callable[[int], float], wanted: float) -> int:
    """The least number of trials, to two digits, from which on the power is what is wanted."""
    low, high = 1, 2
    while power(high) < wanted:
        low, high = high, high * 2
    while high - low > max(1, high // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if power(middle) < wanted else (low, middle)
    return high


def _seeds(seed: int, start: int, size: int) -> Array:
    """uint64 [size]; audits with neighbouring seeds are 2^40 trials apart, and share none."""
    return np.arange(start, start + size, dtype=np.uint64) + np.uint64(seed << 40)


@attrs.define(eq=False)
class _Never:
    """The scheduler of plain decoding."""

    @hookimpl
    def sparkwright_scheduler_start(self) -> str:
        return "plain"

    @hookimpl
    def sparkwright_scheduler_plan(self, state: str, limit: int) -> int:
        return 0

    @hookimpl
    def sparkwright_scheduler_learn(self, state: str, report: RoundReport) -> None:
        return None


def tests_of(counts: Array, law: Array) -> Iterator[Test]:
    """The family: the joint law first, then pairs, single tokens, and every token conditionally on its prefix."""
    horizon = counts.ndim
    for size in sorted({horizon, *range(1, min(horizon, 3))}, reverse=True):
        for axes in itertools.combinations(range(horizon), size):
            rest = tuple(axis for axis in range(horizon) if axis not in axes)
            name = "joint" if size == horizon else "tokens " + ",".join(str(axis + 1) for axis in axes)
            test = goodness_of_fit(name, counts.sum(axis=rest).ravel(), law.sum(axis=rest).ravel())
            # a law with a single possible text has nothing to compare, but must stay in first place
            yield from () if test is None and size < horizon else (test or _certain(name, counts, law),)
    for depth in range(1, horizon):
        rest = tuple(range(depth + 1, horizon))
        counted, expected = counts.sum(axis=rest), law.sum(axis=rest)
        for prefix in np.ndindex(*counts.shape[:depth]):
            test = goodness_of_fit(
                f"token {depth + 1} after {list(prefix)}", counted[prefix], _normalised(expected[prefix])
            )
            if test is not None and expected[prefix].sum() > 0:
                yield test


def _certain(name: str, counts: Array, law: Array) -> Test:
    return Test(name, int(counts.sum()), 1, 0.0, 1, 1.0)


def _normalised(law: Array) -> Array:
    total = law.sum()
    return law / total if total > 0 else law


def power_of(
    subject: Subject,
    trials: int = TRIALS,
    *,
    pilot: int | None = None,
    seed: int = 1,
    alpha: float = ALPHA,
    prompt: Sequence[int] = (0, 0),
    horizon: int = HORIZON,
) -> tuple[str, float]:
    """For a subject known to be wrong: the test that finds it best, and its power with `trials` trials.

    From a pilot run with other seeds, at the smallest effect that the pilot leaves plausible (99 %), and at the
    strictest step of Holm's correction; so the audit fails with at least this probability.
    """
    counts, _ = count(subject, pilot or trials, seed=seed, prompt=prompt, horizon=horizon)
    law = Rounds(subject, prompt, horizon).law.joint(horizon)
    tests = list(tests_of(counts, law))
    best = sorted(tests, key=lambda test: (-test.excluded, test.p_value, test.df - test.statistic))[:5]
    powers = [(power_from_pilot(test, _share(test, tests[0], trials), alpha / len(tests)), test.name) for test in best]
    power, name = max(powers)
    return name, power


def _share(test: Test, joint: Test, trials: int) -> int:
    """How many of `trials` a conditional test gets to see."""
    return int(trials * test.samples / joint.samples)
