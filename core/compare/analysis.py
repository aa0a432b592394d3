"""What the measurements of a comparison say: from entries on disk to the numbers of a result. A pure function."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import numpy as np

from sparkwright.core.compare import statistics as st
from sparkwright.core.compare.distributions import binomial_interval, t_quantile
from sparkwright.core.compare.plan import orders
from sparkwright.core.compare.records import ArmSpec, RunRecord
from sparkwright.core.compare.runner import GateCheck, gate_checks
from sparkwright.core.compare.store import Entry
from sparkwright.core.compare.verdict import Verdict, decide, percent

TIE = 0.005
"""Rates within half a percent of each other are a tie in the count of wins and losses (the test uses every ratio)."""
DRIFT_WORTH_A_NOTE = 0.01


@attrs.frozen
class Quartiles:
    low: float
    median: float
    high: float


@attrs.frozen
class Stages:
    """Mean milliseconds per round. apart: whether the engine waited between the stages, so that draft and verify are
    really apart; if not, verify holds the device's work of both."""

    draft: float
    verify: float
    rest: float
    apart: bool


@attrs.frozen
class ArmSummary:
    """One arm over all pairs, with 95% intervals whose unit is the run.

    acceptance[k]: share of submitted drafts k + 1 that were accepted. tau_at[k]: the mean accepted length that the
    first k + 1 drafts of the block account for; the last entry is tau.
    """

    name: str
    label: str
    config_sha256: str
    promise: str
    decode_rate: Quartiles | None
    prefill_rate: Quartiles | None
    tau: st.Pooled | None
    acceptance: tuple[st.Pooled | None, ...]
    tau_at: tuple[st.Pooled | None, ...]
    rounds: int
    rounds_without_drafts: int
    stages: Stages | None
    notes: tuple[str, ...]


@attrs.frozen
class PairRatio:
    """A candidate's decode rate over the base's on one prompt."""

    index: int
    prompt: str
    ratio: float
    base_rate: float
    rate: float
    same_text: bool


@attrs.frozen
class PromptRatio:
    """Geometric mean of a prompt's pairs. low and high: an interval from the spread of all pairs, narrower where a
    prompt has several (a reading aid: what so many pairs are worth)."""

    prompt: str
    ratio: float
    low: float
    high: float
    pairs: int


@attrs.frozen
class Comparison:
    """A candidate against the base. `decode` decides; `prefill` is for information. p values are two-sided."""

    name: str
    label: str
    decode: st.Estimate
    prefill: st.Estimate | None
    p_adjusted: float
    wilcoxon: float
    wins: int
    losses: int
    ties: int
    detectable: float  # smallest change found with power 80%, as a fraction
    verdict: Verdict
    pairs: tuple[PairRatio, ...]
    prompts: tuple[PromptRatio, ...]
    same_texts: int
    texts_owed: bool


@attrs.frozen
class Drift:
    """Change of speed over the whole run, in logs, from the order of the runs (prompts and arms taken out)."""

    total: float
    low: float
    high: float
    noted: bool
    words: str


@attrs.frozen
class SelfTest:
    """A against A in `repeats` independent stretches of `pairs` pairs: how often a difference was claimed, with the
    exact interval of that rate. redrawn: the rate when the same runs are dealt to comparisons again and again,
    under new coins: it has less Monte-Carlo error, and knows this machine's noise."""

    repeats: int
    pairs: int
    alarms: int
    rate: float
    low: float
    high: float
    redrawn: float
    redrawn_draws: int
    nominal: float
    words: str


def usable(entry: Entry) -> bool:
    return all(run.decode_rate is not None for run in entry.runs.values())


def summarise(spec: ArmSpec, pairs: Sequence[Entry], profile: Sequence[Entry]) -> ArmSummary:
    runs = [entry.runs[spec.name] for entry in pairs]
    block = max((len(run.submitted_at) for run in runs), default=0)

    def at(run: RunRecord, field: str, k: int) -> float:
        values: tuple[int, ...] = getattr(run, field)
        return values[k] if k < len(values) else 0

    acceptance = [
        st.pooled_rate([at(run, "accepted_at", k) for run in runs], [at(run, "submitted_at", k) for run in runs])
        for k in range(block)
    ]
    while acceptance and acceptance[-1] is None:
        acceptance.pop()
    profiled = [entry.runs[spec.name] for entry in profile if spec.name in entry.runs]
    return ArmSummary(
        spec.name,
        spec.label,
        spec.sha256,
        runs[0].promise if runs else "",
        _quartiles([run.decode_rate for run in runs]),
        _quartiles([run.prefill_rate for run in runs]),
        _tau(runs, block),
        tuple(acceptance),
        tuple(_tau(runs, k + 1) for k in range(len(acceptance))),
        sum(run.rounds for run in runs),
        sum(run.rounds - run.drafting_rounds for run in runs),
        _stages(profiled, True) or _stages(runs, bool(spec.config.get("engine.stage_times"))),
        tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )


def _tau(runs: Sequence[RunRecord], depth: int) -> st.Pooled | None:
    """1 + accepted drafts among the first `depth` / rounds; tau is never below 1, so neither is its interval."""
    tau = st.pooled_mean([r.tau_rounds + sum(r.accepted_at[:depth]) for r in runs], [r.tau_rounds for r in runs])
    return tau if tau is None or not math.isfinite(tau.low) else attrs.evolve(tau, low=max(1.0, tau.low))


def _quartiles(values: Sequence[float | None]) -> Quartiles | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    low, median, high = (float(v) for v in np.quantile(known, [0.25, 0.5, 0.75]))
    return Quartiles(low, median, high)


def _stages(runs: Sequence[RunRecord], apart: bool) -> Stages | None:
    rounds = sum(run.rounds for run in runs)
    if not rounds:
        return None
    draft, verify, rest = (
        1000 * sum(getattr(run, f"{stage}_seconds") for run in runs) / rounds for stage in ("draft", "verify", "rest")
    )
    return Stages(draft, verify, rest, apart)


def compare_arms(
    specs: Sequence[ArmSpec], entries: Sequence[Entry], margin: float, alpha: float
) -> tuple[Comparison, ...]:
    """Every candidate against the base, corrected by Holm for their number. Empty without a usable pair."""
    pairs = [entry for entry in entries if usable(entry)]
    if not pairs:
        return ()
    base, candidates = specs[0], specs[1:]
    rows = [[_pair(entry, base.name, spec.name) for entry in pairs] for spec in candidates]
    logs = [np.log([pair.ratio for pair in row]) for row in rows]
    steps = st.holm([st.estimate(x).p for x in logs], alpha)
    checks = [[check for entry in pairs for check in gate_checks((base, spec), entry)] for spec in candidates]
    return tuple(
        _comparison(base, spec, row, x, step, check, pairs, margin, alpha)
        for spec, row, x, step, check in zip(candidates, rows, logs, steps, checks, strict=True)
    )


def _pair(entry: Entry, base: str, candidate: str) -> PairRatio:
    a, b = entry.runs[base], entry.runs[candidate]
    assert a.decode_rate is not None and b.decode_rate is not None
    return PairRatio(
        entry.index, entry.prompt, b.decode_rate / a.decode_rate, a.decode_rate, b.decode_rate, a.tokens == b.tokens
    )


def _comparison(
    base: ArmSpec, spec: ArmSpec, row: Sequence[PairRatio], x: st.Array, step: st.HolmStep,
    checks: Sequence[GateCheck], entries: Sequence[Entry], margin: float, alpha: float,
) -> Comparison:  # fmt: skip
    found = st.estimate(x, step.level)
    prefill = [
        math.log(b / a)
        for entry in entries
        if (a := entry.runs[base.name].prefill_rate) and (b := entry.runs[spec.name].prefill_rate)
    ]
    return Comparison(
        name=spec.name,
        label=spec.label,
        decode=found,
        prefill=st.estimate(prefill, step.level) if prefill else None,
        p_adjusted=step.adjusted,
        wilcoxon=st.wilcoxon(x),
        wins=int((x > TIE).sum()),
        losses=int((x < -TIE).sum()),
        ties=int((np.abs(x) <= TIE).sum()),
        detectable=math.expm1(min(st.detectable(found.sd, found.n, 1 - step.level), 700.0)),
        verdict=decide(spec.label, found, step, margin, 1 - step.level, sum(check.failed for check in checks)),
        pairs=tuple(row),
        prompts=_by_prompt(row, found.sd, step.level),
        same_texts=sum(pair.same_text for pair in row),
        texts_owed=any(check.owed for check in checks),
    )


def _by_prompt(row: Sequence[PairRatio], sd: float, level: float) -> tuple[PromptRatio, ...]:
    groups: dict[str, list[float]] = {}
    for pair in row:
        groups.setdefault(pair.prompt, []).append(math.log(pair.ratio))
    result = []
    for prompt, logs in groups.items():
        mean = sum(logs) / len(logs)
        half = t_quantile(0.5 + level / 2, len(row) - 1) * sd / math.sqrt(len(logs)) if len(row) > 1 else math.inf
        low, high = math.exp(max(mean - half, -700.0)), math.exp(min(mean + half, 700.0))
        result.append(PromptRatio(prompt, math.exp(mean), low, high, len(logs)))
    return tuple(result)


def drift(entries: Sequence[Entry]) -> Drift | None:
    """Least squares of the log decode rate on prompt, arm and the order of the runs; None if there is too little
    data."""
    rows: list[tuple[str, str, float]] = []
    for entry in entries:
        if entry.kind in ("pair", "reference"):
            rows += [
                (entry.prompt, name, math.log(run.decode_rate))
                for name, run in entry.runs.items()
                if run.decode_rate is not None
            ]
    prompts, arms = sorted({row[0] for row in rows}), sorted({row[1] for row in rows})
    free = len(rows) - len(prompts) - len(arms)
    if free < 3:
        return None
    order = np.arange(len(rows)) / (len(rows) - 1) - 0.5
    columns = [order, *([float(row[0] == p) for row in rows] for p in prompts)]
    columns += [[float(row[1] == a) for row in rows] for a in arms[1:]]
    design, y = np.array(columns).T, np.array([row[2] for row in rows])
    solution, _, rank, _ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ solution
    sigma = math.sqrt(float(residual @ residual) / max(1, len(rows) - int(rank)))
    se = sigma * math.sqrt(float(np.linalg.pinv(design.T @ design)[0, 0]))
    slope = float(solution[0])
    half = t_quantile(0.975, max(1, len(rows) - int(rank))) * se
    low, high = slope - half, slope + half
    noted = not low <= 0 <= high and abs(slope) >= DRIFT_WORTH_A_NOTE
    change = f"{percent(math.exp(slope))} over the run (interval {percent(math.exp(low))} to {percent(math.exp(high))})"
    words = (
        f"the machine drifted: {change}. The order of the arms cancels a steady drift; a cool-down (--cooldown) or "
        f"fewer "
        "other programs would make the pairs tighter"
        if noted
        else f"no drift can be told from the noise: {change}"
        if low <= 0 <= high
        else f"no drift worth a note: {change}"
    )
    return Drift(slope, low, high, noted, words)


def self_test(entries: Sequence[Entry], base: str, other: str, pairs: int, alpha: float, seed: int) -> SelfTest | None:
    """False alarms of A against A: each stretch of `pairs` pairs is one comparison; unfinished stretches are left
    out."""
    good = [entry for entry in entries if usable(entry)]
    repeats = len(good) // pairs
    if not repeats or pairs < 2:
        return None
    used = good[: repeats * pairs]
    rates = np.array([[run.decode_rate for run in entry.runs.values()] for entry in used])
    ratio = np.log(rates[:, 1] / rates[:, 0])  # second run over first, whoever they were
    first_is_base = np.array([next(iter(entry.runs)) == base for entry in used])
    observed = np.where(first_is_base, ratio, -ratio).reshape(repeats, pairs)
    alarms = int(_claims(observed, alpha).sum())
    draws = math.ceil(2000 / repeats)
    shuffle = np.random.default_rng(seed)
    again_sum = 0
    for draw in range(draws):  # the same runs, dealt to other comparisons, under other coins
        mixed = shuffle.permutation(ratio).reshape(repeats, pairs)
        coins = [orders((base, other), pairs, seed + 1 + draw * repeats + block) for block in range(repeats)]
        signs = np.array([[1.0 if order[0] == base else -1.0 for order in coin] for coin in coins])
        again_sum += int(_claims(signs * mixed, alpha).sum())
    low, high = binomial_interval(alarms, repeats)
    rate, again = alarms / repeats, again_sum / (draws * repeats)
    words = (
        f"A against A, {repeats} times {pairs} pairs: {alarms} false alarms, {rate:.1%} (95% interval {low:.1%} to "
        f"{high:.1%}) "
        f"where {alpha:.0%} is nominal; with the same runs dealt anew {draws * repeats} times {again:.1%}"
    )
    if low > alpha:
        words += ". More than nominal: this machine is too unsteady for these settings"
    return SelfTest(repeats, pairs, alarms, rate, low, high, again, draws * repeats, alpha, words)


def _claims(log_ratios: st.Array, alpha: float) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Which experiments [..., pairs] would be called faster or slower."""
    if log_ratios.shape[-1] >= st.BOOTSTRAP_FROM:
        low, high = st.bootstrap_interval(log_ratios, 1 - alpha, resamples=1999)
    else:
        low, high = st.t_interval(log_ratios, 1 - alpha)
    return np.asarray((low > 0) | (high < 0))
