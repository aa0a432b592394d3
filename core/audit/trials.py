"""Many trials at once: keys of trials, drafters that are tables, and rounds run through a plugin's own hook methods.

The engine's loop in numbers only: no tokenizer, no caches, no stop rules. What it shares with the engine is everything
that decides the law: the plugins' hook methods, called through pluggy as the engine calls them, the keys, the draw of
plain rounds, and the order draft, confidences, schedule, distribution, verify.

A plugin takes part if its methods accept **leading axes**, which a class attribute `leading_axes = True` says:
- sampler:  `rows(state, drafts [..., n])` and `distribution(logits [..., r, V], context, full)`; `start` and `advance`
  stay on the host, one state for all trials with one history;
- verifier: `verify(draft, p, keys)` with every array of draft and p led by `...`, `keys.array(...)` giving uint32
  [..., n, 2], and the Verdict's array [..., 3 + n].
Plugins without it are run one trial at a time: the same statement, hundreds of times slower.

Schedulers stay per-trial on the host. Trials whose scheduler has seen the same reports share one state, which is copied
(`copy.deepcopy`) when their histories part; a scheduler is a function of what it is told, so this is the same as one
state a trial.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import mlx.core as mx
import numpy as np

from sparkwright.core.audit.subjects import Array, Hooks, Subject
from sparkwright.core.contracts import (
    EMPTY_RESIDUAL,
    INCOMPLETE,
    NON_FINITE,
    Dense,
    Distribution,
    Draft,
    RoundReport,
    Sparse,
    Verdict,
)
from sparkwright.core.draw import gumbel_argmax
from sparkwright.core.errors import NumericError, PluginError
from sparkwright.core.randomness import Purpose

if TYPE_CHECKING:
    from sparkwright.core.randomness import Keys


@attrs.define(eq=False)
class Sample:
    """tokens int32 [N, horizon]: the first tokens after the prompt; lengths int64 [block + 1]: rounds by accepted
    drafts. The rest are sums over rounds that drafted (plain: rounds that did not)."""

    tokens: Array
    lengths: Array
    rounds: int = 0
    plain: int = 0
    submitted: int = 0
    accepted: int = 0
    empty_residuals: int = 0
    redone: int = 0
    identical: int = 0

    @property
    def tau(self) -> float:
        """Mean accepted length: tokens emitted per round that verified drafts."""
        return 1 + self.accepted / self.rounds if self.rounds else float("nan")


class _Schedules:
    """The scheduler states of all trials, one for each history of what a scheduler was told. A call that may change a
    state is made on a copy, so that trials whose histories part later still find the state they share."""

    def __init__(self, subject: Subject) -> None:
        hooks = subject.hooks("scheduler")
        self._name, self._hook = hooks.name, hooks.hook
        self._block, self._wants, self._anticipates = subject.block, subject.confidences, subject.anticipates
        self._states: list[Any] = [self._hook.sparkwright_scheduler_start()]
        self._planned: dict[int, tuple[Any, int]] = {}
        self._chosen: dict[tuple[int, tuple[float, ...]], tuple[Any, int]] = {}
        self._after: dict[tuple[int, tuple[float, ...], RoundReport], int] = {}

    def plan(self, state: int) -> int:
        """How many drafts to ask for."""
        if state not in self._planned:
            kept = copy.deepcopy(self._states[state])
            plan = self._hook.sparkwright_scheduler_plan(state=kept, limit=self._block)
            self._planned[state] = kept, self._within("planned", plan, self._block)
        return self._planned[state][1]

    def depth(self, state: int, confidences: tuple[float, ...], drafted: int) -> int:
        """How many of the drafts are submitted."""
        if not self._wants or not confidences:
            return drafted
        known = (state, confidences)
        if known not in self._chosen:
            kept = copy.deepcopy(self._planned[state][0])
            if self._anticipates:
                chosen = self._hook.sparkwright_scheduler_choose(state=kept, confidences=confidences)
                depth = self._within("chose", chosen, drafted)
            else:
                depth = 0
                while depth < drafted and self._hook.sparkwright_scheduler_more(
                    state=kept, depth=depth + 1, confidence=confidences[depth]
                ):
                    depth += 1
            self._chosen[known] = kept, depth
        return self._chosen[known][1]

    def _within(self, did: str, number: Any, most: int) -> int:
        if not isinstance(number, int) or not 0 <= number <= most:
            raise PluginError(f"scheduler plugin '{self._name}' {did} {number!r}, expected 0..{most}")
        return number

    def learn(self, state: int, confidences: tuple[float, ...], report: RoundReport) -> int:
        """The number of the state after the report; confidences are all of the round's."""
        known = (state, confidences, report)
        if known not in self._after:
            before = self._chosen.get((state, confidences), self._planned[state])[0]
            kept = copy.deepcopy(before)
            self._hook.sparkwright_scheduler_learn(state=kept, report=report)
            self._after[known] = len(self._states)
            self._states.append(kept)
        return self._after[known]


# --------------------------------------------------------------------------------------------------------------
# The sampler and the verifier, with or without leading axes
# --------------------------------------------------------------------------------------------------------------


class Law:
    """The sampler on the target's table: rows of p for any history, and the exact law of what plain decoding emits."""

    def __init__(self, subject: Subject, prompt: Sequence[int]) -> None:
        self.hooks = subject.hooks("sampler")
        self.table, self.prompt, self.vocab = subject.target, tuple(prompt), subject.vocab
        hook, (*before, anchor) = self.hooks.hook, self.prompt
        start = hook.sparkwright_sampler_start(prompt=before)  # the anchor is the first emitted token, as in the engine
        self._states: dict[tuple[int, ...], Any] = {(): hook.sparkwright_sampler_advance(state=start, tokens=[anchor])}

    def state(self, history: tuple[int, ...]) -> Any:
        """The sampler's state after these emitted tokens, advanced one by one."""
        if history not in self._states:
            before = self.state(history[:-1])
            self._states[history] = self.hooks.hook.sparkwright_sampler_advance(state=before, tokens=[history[-1]])
        return self._states[history]

    @property
    def remembers(self) -> bool:
        """Whether p depends on more than the last token, as far as the sampler's state says."""
        return self.state(()) is not None

    def rows(self, history: tuple[int, ...], anchor: mx.array, drafts: mx.array, full: bool) -> Distribution:
        """p of the n + 1 rows after anchors int32 [N] and drafts int32 [N, n]."""
        logits = self.table[mx.concatenate([anchor[:, None], drafts], axis=-1)]  # [N, n + 1, V]
        hook, state = self.hooks.hook, self.state(history)

        def one(logits: mx.array, drafts: mx.array) -> Distribution:
            context = hook.sparkwright_sampler_rows(state=state, drafts=drafts)
            p = hook.sparkwright_sampler_distribution(logits=logits, context=context, full=full)
            if not isinstance(p, Distribution):
                found = type(p).__name__
                raise PluginError(f"sampler plugin '{self.hooks.name}' returned {found}, expected a Distribution")
            _shaped(self.hooks, "sampler", "log_p", p.log_p, logits.shape)
            _shaped(self.hooks, "sampler", "flags", p.flags, logits.shape[:-1])
            return p

        if self.hooks.batched:
            return one(logits, drafts)
        singles = [one(logits[i], drafts[i]) for i in range(drafts.shape[0])]
        modes = [p.mode for p in singles if p.mode is not None]
        return Distribution(
            mx.stack([p.log_p for p in singles]),
            mx.stack([p.flags for p in singles]),
            mx.stack(modes) if len(modes) == len(singles) else None,
        )

    def next(self, history: tuple[int, ...]) -> Array:
        """float64 [V]: the exact law of the token after a history, as plain decoding draws it."""
        last = history[-1] if history else self.prompt[-1]
        p = self.rows(history, mx.array([last], dtype=mx.int32), mx.zeros((1, 0), dtype=mx.int32), True)
        law = np.exp(np.array(p.log_p[0, 0], dtype=np.float64))
        total: Array = law / law.sum()
        return total

    def joint(self, horizon: int) -> Array:
        """float64 [V] * horizon: the exact law of the first tokens."""
        law: Array = np.ones(())
        for depth in range(horizon):
            step = np.zeros((self.vocab,) * (depth + 1))
            for history in np.ndindex(*(self.vocab,) * depth):
                if law[history] > 0:
                    step[history] = law[history] * self.next(tuple(int(t) for t in history))
            law = step
        return law


@attrs.frozen(eq=False)
class _OneKey:
    """One trial's view of TrialKeys, for verifiers without leading axes."""

    keys: Any
    trial: int

    def array(self, purpose: Purpose, n: int, first: int = 1) -> mx.array:
        row: mx.array = self.keys.array(purpose, n, first)[self.trial]
        return row


def _verify(hooks: Hooks, draft: Draft, p: Distribution, keys: Keys | Any) -> Array:
    """The Verdict arrays, int [N, 3 + n], on the host."""
    call = hooks.hook.sparkwright_verifier_verify
    if hooks.batched:
        return np.array(_verdict(hooks, call(draft=draft, p=p, keys=keys), draft.tokens))
    arrays = []
    for i in range(draft.tokens.shape[0]):
        single = Distribution(p.log_p[i], p.flags[i], None if p.mode is None else p.mode[i])
        verdict = call(draft=_trials(draft, i), p=single, keys=_OneKey(keys, i))
        arrays.append(np.array(_verdict(hooks, verdict, draft.tokens[i])))
    return np.stack(arrays)


def _verdict(hooks: Hooks, verdict: Any, drafts: mx.array) -> mx.array:
    if not isinstance(verdict, Verdict):
        raise PluginError(f"verifier plugin '{hooks.name}' returned {type(verdict).__name__}, expected a Verdict")
    _shaped(hooks, "verifier", "a verdict", verdict.array, (*drafts.shape[:-1], 3 + drafts.shape[-1]))
    return verdict.array


def _shaped(hooks: Hooks, kind: str, what: str, array: mx.array, shape: tuple[int, ...]) -> None:
    if tuple(array.shape) != tuple(shape):
        claim = "; it says leading_axes = True, so the first axis is the audit's texts" if hooks.batched else ""
        raise PluginError(
            f"{kind} plugin '{hooks.name}' gave {what} of shape {tuple(array.shape)}, expected {tuple(shape)}{claim}"
        )


def _trials(draft: Draft, index: Any) -> Draft:
    """The draft of some trials: index is one number or int32 [M]."""
    proposal = draft.proposal
    if isinstance(proposal, Dense):
        proposal = Dense(proposal.log_q[index])
    elif isinstance(proposal, Sparse):
        proposal = Sparse(proposal.ids[index], proposal.log_q[index])
    return Draft(draft.tokens[index], proposal, None)


# --------------------------------------------------------------------------------------------------------------
# Rounds
# --------------------------------------------------------------------------------------------------------------


def _groups(labels: Array) -> Iterator[tuple[Any, Array]]:
    """(label, indices) of each distinct entry, or distinct row, of labels."""
    code = np.zeros(len(labels), dtype=np.int64)
    for column in labels.reshape(len(labels), -1).T:
        values, inverse = np.unique(column, return_inverse=True)
        _, code = np.unique(code * len(values) + inverse, return_inverse=True)
    order = np.argsort(code, kind="stable")
    for indices in np.split(order, np.cumsum(np.bincount(code))[:-1]):
        yield labels[indices[0]], indices


_Said: TypeAlias = tuple[int, tuple[float, ...], RoundReport]
"""A scheduler state, the round's confidences, and what will be reported but for what was accepted."""


@attrs.frozen(eq=False)
class _Group:
    """Trials of one round that are computed together: one position, history and submitted depth.

    trials: their numbers; anchor int32 [M]; kind [M]: which of `reports` each will give
    """

    trials: Array
    history: tuple[int, ...]
    anchor: mx.array
    position: int
    reports: list[_Said]
    kind: Array


class Rounds:
    """Runs trials of a subject. One instance may run many batches: schedules and sampler states are shared."""

    def __init__(self, subject: Subject, prompt: Sequence[int], horizon: int) -> None:
        self.subject, self.prompt, self.horizon = subject, tuple(prompt), horizon
        self.law = Law(subject, prompt)
        self.schedules = _Schedules(subject)
        self.verifier = subject.hooks("verifier")

    def run(self, seeds: Array) -> Sample:
        """Rounds until every trial (seeds uint64 [N]) has emitted `horizon` tokens; the anchor is the prompt's last."""
        count, width = len(seeds), self.horizon + self.subject.block + 1
        self._tokens = np.full((count, width), -1, dtype=np.int32)
        self._length = np.zeros(count, dtype=np.int64)
        self._state = np.zeros(count, dtype=np.int64)
        self._seeds = seeds
        self._sample = Sample(self._tokens, np.zeros(self.subject.block + 1, dtype=np.int64))
        while True:
            active = np.flatnonzero(self._length < self.horizon)
            if not len(active):
                break
            # All of these are read at the round's start; the groups do not overlap.
            length, state = self._length[active], self._state[active]
            distinct, inverse = np.unique(state, return_inverse=True)
            plan = np.array([self.schedules.plan(int(s)) for s in distinct])[inverse]
            history = self._tokens[active, : self.horizon if self.law.remembers else 0]
            labels = np.concatenate([length[:, None], plan[:, None], history], axis=1)
            for label, members in _groups(labels):
                self._round(active[members], int(label[0]), int(label[1]))
        self._sample.tokens = self._tokens[:, : self.horizon]
        return self._sample

    def _round(self, trials: Array, length: int, planned: int) -> None:
        """One round of trials with one position, one plan and, if the sampler remembers, one history."""
        history = tuple(int(t) for t in self._tokens[trials[0], :length]) if self.law.remembers else ()
        anchor_np = self._tokens[trials, length - 1] if length else np.full(len(trials), self.prompt[-1], np.int32)
        anchor = mx.array(anchor_np)
        position = len(self.prompt) - 1 + length
        subject, states = self.subject, self._state[trials]
        if planned == 0:
            distinct, kind = np.unique(states, return_inverse=True)
            nothing: list[_Said] = [(int(state), (), RoundReport(0, 0, 0, 0, (), False)) for state in distinct]
            self._plain(_Group(trials, history, anchor, position, nothing, kind))
            return
        keys = subject.keys(self._seeds[trials], position)
        draft = subject.drafter.draft(anchor, planned, keys.array(subject.noise, planned))
        drafted = draft.tokens.shape[-1]
        read = subject.confidences and draft.confidence is not None
        confidence = np.array(draft.confidence) if read else np.zeros((len(trials), 0), dtype=np.float32)
        reports: list[_Said] = []
        kind = np.zeros(len(trials), dtype=np.int64)  # which report each trial will give
        for values, members in _groups(np.concatenate([states[:, None], confidence], axis=1)):
            state, told = int(values[0]), tuple(float(c) for c in values[1:])
            kind[members] = len(reports)
            depth = self.schedules.depth(state, told, drafted)
            reports.append((state, told, RoundReport(planned, drafted, depth, 0, told[: depth + 1], False)))
        depths = np.array([report.submitted for _, _, report in reports])[kind]
        for depth, members in _groups(depths):
            index = mx.array(members.astype(np.int32))
            group = _Group(trials[members], history, anchor[index], position, reports, kind[members])
            if depth == 0:
                self._plain(group)
            else:
                self._drafted(group, _trials(draft, index).first(int(depth)))

    def _plain(self, group: _Group) -> None:
        count = len(group.trials)
        p = self.law.rows(group.history, group.anchor, mx.zeros((count, 0), dtype=mx.int32), True)
        self._refuse(np.array(p.flags))
        keys = self.subject.keys(self._seeds[group.trials], group.position)
        token = p.mode if p.mode is not None else gumbel_argmax(p.log_p, keys.array("target", 1))
        self._sample.plain += count
        self._emit(group, np.array(token), np.zeros(count, dtype=np.int64))

    def _drafted(self, group: _Group, block: Draft) -> None:
        keys = self.subject.keys(self._seeds[group.trials], group.position)
        p = self.law.rows(group.history, group.anchor, block.tokens, False)
        verdict = _verify(self.verifier, block, p, keys)
        if np.any(verdict[:, 2] & INCOMPLETE):
            self._sample.redone += int(np.sum(verdict[:, 2] & INCOMPLETE != 0))
            p = self.law.rows(group.history, group.anchor, block.tokens, True)
            verdict = _verify(self.verifier, block, p, keys)
        self._refuse(verdict[:, 2])
        accepted, count = verdict[:, 0].astype(np.int64), len(group.trials)
        sample = self._sample
        sample.rounds += count
        sample.submitted += len(block) * count
        sample.accepted += int(accepted.sum())
        sample.lengths += np.bincount(accepted, minlength=len(sample.lengths))
        sample.empty_residuals += int(np.sum(verdict[:, 2] & EMPTY_RESIDUAL != 0))
        emitted = np.concatenate([verdict[:, 3:], np.zeros((count, 1), verdict.dtype)], axis=1)
        emitted[np.arange(count), accepted] = verdict[:, 1]
        self._emit(group, emitted, accepted)

    def _emit(self, group: _Group, emitted: Array, accepted: Array) -> None:
        """Appends emitted [M, k], of which accepted + 1 count, and tells the scheduler."""
        trials = group.trials
        for k in range(emitted.shape[1]):
            some = np.flatnonzero(k <= accepted)
            self._tokens[trials[some], self._length[trials[some]] + k] = emitted[some, k]
        self._length[trials] += accepted + 1
        for (kind, value), members in _groups(np.stack([group.kind, accepted], axis=1)):
            state, told, report = group.reports[kind]
            report = attrs.evolve(report, accepted=int(value))
            self._state[trials[members]] = self.schedules.learn(state, told, report)

    def _refuse(self, flags: Array) -> None:
        if np.any(flags & NON_FINITE):
            raise NumericError(
                f"audit of {self.subject.name}: the sampler marked a row of finite logits as not finite; expected "
                "NON_FINITE only for NaN, +inf or a row of -inf"
            )
