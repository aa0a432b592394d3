"""Measuring what `cost_aware` decides by: seconds of a verify of 1..8 rows and of a drafter's block, and the fit of
confidences to what became of them. Where results are kept is `core.costs`' business, the command line another's.

Only here is a clock read: what is measured is frozen before an engine is assembled, so decisions stay repeatable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from sparkwright.core.contracts import WIDEST_VERIFY, CostCurves
from sparkwright.core.errors import RequestError
from sparkwright.core.generation import RoundTrace
from sparkwright.core.randomness import Keys
from sparkwright.core.roles import Drafter, Target

if TYPE_CHECKING:
    import mlx.core as mx

Floats = np.ndarray[Any, np.dtype[np.float64]]

BINS = 20
"""Bins of the expected calibration error, as in the DSpark evaluation."""
LEAST_ROUNDS = 200
"""Fewer rounds than this fit noise: a bin of 20 then holds about ten of them."""
LEAST_REACHED = 50
"""Rounds that must have accepted all drafts before a position. A draft tells p (1 - p) logit(p)^2 of the logarithm of
its temperature, some 0.3 where p is around 0.8 or 0.2: after 50 of them it is known to one part in four at best."""
_GRID = np.exp(np.linspace(np.log(0.2), np.log(5.0), 121))  # holds 1.0 in its middle
_PRIOR = float(np.log(2.0))  # temperatures are believed to lie within a factor of two of 1, two times out of three
_QUANTILE = 0.25
"""Of a job's times. What disturbs a time on a shared machine adds to it, so a median is wrong as soon as half of the
times were disturbed; the least of them is right then, but is an outlier's where a clock is now and then boosted. In
simulation (tests/core/test_calibrate.py) the lower quartile loses next to nothing to the median on symmetric noise."""
_WARM = 2  # runs whose time is thrown away: kernels are compiled, caches filled


def measure_curves(
    target: Target,
    drafter: Drafter | None,
    prompt: Sequence[int],
    *,
    repeats: int = 9,
    temperatures: tuple[float, ...] = (),
    progress: Callable[[int, int], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> CostCurves:
    """Seconds on this machine, after a context of `prompt`; runs in the thread that owns the target.

    Every repeat measures each width and the drafter once, so that a machine that slows down slows all of them; lower
    quartiles are kept. A time ends when the block's result has reached the host, as a round's does. A plain decode is
    the same forward as a verify of one row, but the engine begins it before the token before it has reached the host:
    it is what each further one of a row of them takes. temperatures are passed through. RequestError if the context
    has no room.
    """
    import mlx.core as mx

    room = target.facts.context if drafter is None or drafter.facts.context is None else drafter.facts.context
    room = min(room, target.facts.context)
    if not prompt or len(prompt) + WIDEST_VERIFY > room:
        raise RequestError(
            f"calibration: a prompt of {len(prompt)} tokens and {WIDEST_VERIFY} rows do not fit a context of {room}; "
            "give a prompt of at least one token that fits"
        )
    state = target.new_state()
    taps = drafter is not None and bool(drafter.facts.taps)
    drafter_state = drafter.start(prompt, _shape) if drafter is not None else None
    for start in range(0, len(prompt), 256):
        rows = list(prompt[start : start + 256])
        forward = target.forward(mx.array(rows, dtype=mx.int32), state, "none")
        if drafter is not None:
            drafter.observe(drafter_state, rows, forward.taps if taps else None)
        mx.eval([a for a in (forward.logits, forward.taps) if a is not None])

    def verify(width: int) -> float:
        tokens = mx.array([prompt[i % len(prompt)] for i in range(width)], dtype=mx.int32)
        began = clock()
        transaction = target.begin(state)
        logits = target.forward(tokens, state, "all").logits
        assert logits is not None
        mx.argmax(logits, axis=-1).tolist()
        took = clock() - began
        target.abort(transaction)
        return took

    def plain(steps: int) -> float:
        began = clock()
        transaction = target.begin(state)
        logits = target.forward(mx.array([prompt[0]], dtype=mx.int32), state, "all").logits
        for step in range(steps):
            assert logits is not None
            drawn = mx.argmax(logits, axis=-1).astype(mx.int32)
            mx.async_eval(drawn)  # type: ignore[no-untyped-call]
            if step + 1 < steps:
                logits = target.forward(drawn, state, "all").logits
                mx.async_eval(logits)  # type: ignore[no-untyped-call]
            drawn.tolist()
        took = clock() - began
        target.abort(transaction)
        return took

    block = min(drafter.facts.block, WIDEST_VERIFY - 1) if drafter is not None else 0

    def draft() -> float:
        assert drafter is not None
        keys = Keys(0, 0, len(prompt)).array("draft", block)
        began = clock()
        made = drafter.draft(drafter_state, prompt[-1], block, keys)
        mx.eval(made.tokens)
        if made.confidence is not None:
            made.confidence.tolist()
        return clock() - began

    jobs: list[Callable[[], float]] = [lambda w=w: verify(w) for w in range(1, WIDEST_VERIFY + 1)]  # type: ignore[misc]
    jobs.append(lambda: plain(WIDEST_VERIFY))
    if block:
        jobs.append(draft)
    times: list[list[float]] = [[] for _ in jobs]
    for turn in range(_WARM + repeats):
        for job, kept in zip(jobs, times, strict=True):
            took = job()
            if turn >= _WARM:
                kept.append(took)
        if progress is not None:
            progress(turn + 1, _WARM + repeats)
    typical = [float(np.quantile(kept, _QUANTILE)) for kept in times]
    widths, row = tuple(typical[:WIDEST_VERIFY]), typical[WIDEST_VERIFY]
    each = (row - widths[0]) / (WIDEST_VERIFY - 1)  # without the first, which waited for nothing
    return CostCurves(
        plain=min(each, widths[0]) if each > 0 else widths[0],
        verify=widths,
        draft=typical[-1] if block else 0.0,
        temperatures=temperatures,
    )


def _shape(logits: mx.array) -> mx.array:
    """A request at temperature 1 without filters."""
    import mlx.core as mx

    x = logits.astype(mx.float32)
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


# ------------------------------------------------------------------------------------------ confidences (spec 11)


@attrs.frozen
class Fit:
    """Sequential Temperature Scaling: one temperature a position; before and after: the error of the chance that at
    least k drafts are accepted, k = 1 .. block. reached: rounds that accepted all drafts before position k; enough:
    whether those were enough, the temperature being 1 where they were not."""

    temperatures: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    rounds: int
    reached: tuple[int, ...]
    enough: tuple[bool, ...]


def expected_calibration_error(claimed: Floats, came_true: Floats, bins: int = BINS) -> float:
    """Mean distance of claimed chance and outcome over equal bins of [0, 1], weighted by how many fall into each."""
    place = np.minimum((claimed * bins).astype(int), bins - 1)
    gap = np.bincount(place, claimed - came_true, minlength=bins)
    return float(np.abs(gap).sum() / len(claimed))


def chance_error(claimed: Floats, bins: int = BINS) -> tuple[float, float]:
    """Mean and standard deviation of that error if every claim is right: what so few outcomes make of it alone.

    A bin's gap is then a sum of n_b independent deviations of variance c (1 - c): about normal, |gap| half-normal.
    """
    place = np.minimum((claimed * bins).astype(int), bins - 1)
    variance = np.bincount(place, claimed * (1.0 - claimed), minlength=bins)
    mean = np.sqrt(2.0 / np.pi * variance).sum() / len(claimed)
    return float(mean), float(np.sqrt((1.0 - 2.0 / np.pi) * variance.sum()) / len(claimed))


def fit_sts(confidence_logits: Any, accepted: Any) -> Fit:
    """Temperatures for confidence logits [rounds, block] of rounds that submitted whole blocks, and accepted [rounds].

    Position after position, the temperature on a grid around 1 under which the product of confidences up to it is
    calibrated, earlier ones kept: it minimises the error's excess over what chance explains, in standard deviations of
    chance, squared, plus the squared distance of its logarithm from 0 in widths of the prior. So many rounds decide by
    themselves, and few leave the drafter's word alone; a position that under LEAST_REACHED rounds reached keeps it.
    RequestError where there are too few rounds, or values that are not finite.
    """
    logits = np.asarray(confidence_logits, dtype=np.float64)
    counts = np.asarray(accepted)
    if logits.ndim != 2 or counts.shape != logits.shape[:1]:
        raise RequestError(
            f"calibration: confidence logits of shape {logits.shape} for {counts.shape} accepted counts; expected "
            "[rounds, block] and [rounds]"
        )
    if len(counts) < LEAST_ROUNDS:
        raise RequestError(
            f"calibration: {len(counts)} rounds with a whole block were seen, fitting confidences needs "
            f"{LEAST_ROUNDS}; give more prompts or longer answers"
        )
    if not np.isfinite(logits).all():
        raise RequestError("calibration: the drafter gave confidences that are not finite; its checkpoint is damaged")
    survival, plain = np.ones(len(counts)), np.ones(len(counts))
    temperatures, before, after = [], [], []
    reached = [int((counts >= k).sum()) for k in range(logits.shape[1])]
    for k in range(logits.shape[1]):
        came_true = (counts > k).astype(np.float64)
        plain = plain * _sigmoid(logits[:, k])
        before.append(expected_calibration_error(plain, came_true))
        claims = survival * _sigmoid(logits[:, k] / _GRID[:, None])  # [grid, rounds]
        errors = np.array([expected_calibration_error(claim, came_true) for claim in claims])
        best = len(_GRID) // 2
        if reached[k] >= LEAST_REACHED:
            means, deviations = np.array([chance_error(claim) for claim in claims]).T
            excess = np.maximum(errors - means, 0.0) / np.maximum(deviations, 1e-9)
            best = int(np.argmin(excess**2 + (np.log(_GRID) / _PRIOR) ** 2))
        temperatures.append(float(_GRID[best]))
        after.append(float(errors[best]))
        survival = claims[best]
    enough = tuple(rounds >= LEAST_REACHED for rounds in reached)
    return Fit(tuple(temperatures), tuple(before), tuple(after), len(counts), tuple(reached), enough)


def confidence_logits(confidences: Any) -> Floats:
    """Logits of confidences as a drafter gave them (without temperatures); 0 and 1 become the nearest float32."""
    c = np.clip(np.asarray(confidences, dtype=np.float64), 2.0**-24, 1.0 - 2.0**-24)
    made: Floats = np.log(c / (1.0 - c))
    return made


def whole_blocks(rounds: Sequence[RoundTrace], block: int) -> tuple[Floats, list[int]]:
    """(confidence logits [rounds, block], accepted) of the rounds that submitted a whole block and were not cut short.

    Rounds come from an engine with scheduler `threshold` at confidence 0 and survival 0, and without temperatures.
    """
    kept = [r for r in rounds if r.submitted == block and len(r.confidences) == block and not r.cut]
    logits = confidence_logits([r.confidences for r in kept]).reshape(len(kept), block)
    return logits, [r.accepted for r in kept]


def _sigmoid(x: Floats) -> Floats:
    made: Floats = 1.0 / (1.0 + np.exp(-np.clip(x, -60.0, 60.0)))
    return made
