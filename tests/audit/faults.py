"""Plugins that are wrong in ways seen in the field, each on a table where it shows, each with its healthy counterpart.

A Case is a fault by name: the subject that has it, the same subject without it, and how many trials find it with a
computed power of at least 0.99 (`power_of`, checked by the test). Nothing here is ever registered as a plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import mlx.core as mx
import numpy as np

from sparkwright.core.audit import Subject, TableDrafter
from sparkwright.core.audit.models import draft_logits, in_levels, target_logits
from sparkwright.core.audit.subjects import TrialKeys
from sparkwright.core.contracts import Dense, Distribution, Draft, RoundReport, Site, Verdict
from sparkwright.core.draw import gumbel_argmax
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.randomness import Keys, Purpose, stream, uniform
from sparkwright.plugins.samplers import chain
from sparkwright.plugins.samplers.filters import Counts, normalise
from sparkwright.plugins.schedulers.fixed import Fixed, FixedOptions
from sparkwright.plugins.schedulers.threshold import Threshold, ThresholdOptions
from sparkwright.plugins.verifiers import cores
from sparkwright.plugins.verifiers.block import Block
from sparkwright.plugins.verifiers.stochastic import Stochastic


@attrs.frozen(eq=False)
class Case:
    name: str
    faulty: Subject
    healthy: Subject
    trials: int
    horizon: int = 3


def sampler(**options: Any) -> chain.Chain:
    return chain.build(chain.ChainOptions(**options), Site())


def rows(*values: Sequence[float]) -> mx.array:
    """Log-probabilities [V, V] float32 from rows of probabilities; a single row is used after every token."""
    table = np.log(np.array(values, dtype=np.float64))
    if len(values) == 1:
        table = np.repeat(table, table.shape[1], axis=0)
    return mx.array(table.astype(np.float32))


PLAIN = sampler()
FIXED = Fixed(FixedOptions())


def base(**changes: Any) -> Subject:
    """Token-wise rejection of dense drafts on a random 5-token model, blocks of 3, temperature 1."""
    target = target_logits(3, 5)
    drafts = normalise(mx.array(draft_logits(target, 3, 1.2)))
    values: dict[str, Any] = {
        "name": "base",
        "target": mx.array(target),
        "sampler": PLAIN,
        "verifier": Stochastic(),
        "scheduler": FIXED,
        "drafter": TableDrafter("dense", drafts),
        "block": 3,
    }
    return Subject(**(values | changes))


def q_table(subject: Subject) -> mx.array:
    assert isinstance(subject.drafter, TableDrafter)
    return subject.drafter.log_q


# --------------------------------------------------------------------------------------------------------------
# Keys
# --------------------------------------------------------------------------------------------------------------


class PositionOnlyKeys(TrialKeys):
    """A position drafted again meets the noise that its rejection was already decided by.

    Token-wise rejection never looks past the first rejected draft, so the noise it leaves behind is still fresh; block
    verification rejects because of later drafts, and those are drafted again.
    """

    def root(self, purpose: Purpose) -> Any:
        return stream(self.seeds, self.choice, purpose, None if purpose == "target" else 0)


# --------------------------------------------------------------------------------------------------------------
# Verifiers
# --------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Rejection:
    """Token-wise rejection of dense drafts with one thing wrong; with nothing wrong it is the right rule."""

    leading_axes = True
    accept: Callable[[mx.array], mx.array] = lambda ratio: ratio
    residual: Callable[[mx.array], mx.array] = mx.log
    bonus: int = 0  # added to the row the bonus is drawn from
    shared: bool = False  # the uniform that rejects is made of the same bits as the noise of the replacement
    empty: str = "p"

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        assert isinstance(draft.proposal, Dense)
        n = draft.tokens.shape[-1]
        log_p, residual_keys = p.log_p, keys.array("residual", n + 1)
        ratio = self.accept(cores.ratios(draft.tokens, draft.proposal, log_p))
        u = uniform(keys.array("accept", n), 1)
        if self.shared:
            u = uniform(residual_keys[..., :n, :], log_p.shape[-1])
        accepted = cores.leading(u[..., 0] < ratio)
        row = mx.minimum(accepted, n - 1)
        q = mx.exp(cores.row_at(draft.proposal.log_q, row))
        rest = mx.maximum(mx.exp(cores.row_at(log_p, row)) - q, 0.0)
        usable = rest.sum(axis=-1, keepdims=True) > 0
        spare = cores.row_at(log_p, row) if self.empty == "p" else mx.zeros_like(rest)
        source = mx.where(usable, self.residual(rest), spare)
        source = mx.where((accepted == n)[..., None], log_p[..., n + self.bonus, :], source)
        token = gumbel_argmax(source, cores.row_at(residual_keys, accepted))
        none = mx.zeros(accepted.shape, dtype=mx.bool_)
        outcome = cores.Outcome(accepted, token, none, ratio, cores.up_to(accepted, n + 1))
        return cores.verdict(draft, p, outcome)


@attrs.define(eq=False)
class FullBlock:
    """Block verification that treats the last submitted draft of a stopped block as one that went on."""

    leading_axes = True
    log_q: mx.array
    block: int

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        n = draft.tokens.shape[-1]
        accept, residual = keys.array("accept", n), keys.array("residual", n + 1)
        if n == self.block:
            return cores.verdict(draft, p, cores.block(draft.tokens, draft.proposal, p.log_p, accept, residual))
        w, h = cores.block_probabilities(draft.tokens, draft.proposal, p.log_p)
        q = mx.exp(self.log_q[draft.tokens[..., -1]])  # what the draft that was not submitted would have come from
        rest = mx.maximum(w[..., -1:] * mx.exp(p.log_p[..., -1, :]) - q, 0.0).sum(axis=-1)
        leaf = mx.where(rest > 0, rest / (rest + 1 - w[..., -1]), 0.0)
        h = mx.concatenate([h[..., :-1], leaf[..., None]], axis=-1)
        stops = uniform(accept, 1)[..., 0] < h
        accepted = mx.max(mx.where(stops, mx.arange(1, n + 1), 0), axis=-1).astype(mx.int32)
        token, empty = cores.correction(
            p.log_p, cores.at(w, accepted), draft.tokens, draft.proposal, accepted, residual
        )
        return cores.verdict(draft, p, cores.Outcome(accepted, token, empty, h, cores.up_to(accepted, n + 1)))


# --------------------------------------------------------------------------------------------------------------
# Samplers
# --------------------------------------------------------------------------------------------------------------


class OncePerRound(chain.Chain):
    """Penalties of every row as they stood before the round."""

    @hookimpl
    def sparkwright_sampler_rows(self, state: Any, drafts: mx.array) -> Counts | None:
        counts = super().sparkwright_sampler_rows(state, drafts)
        if counts is None:
            return None
        first = [mx.broadcast_to(w[:1], w.shape) for w in (counts.seen, counts.text)]
        return Counts(counts.ids, *first)


class BrainFloat(chain.Chain):
    """float32 when one row is decoded, bfloat16 when a block is verified."""

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: Any, full: bool) -> Distribution:
        if logits.shape[-2] > 1:
            logits = logits.astype(mx.bfloat16)
        return super().sparkwright_sampler_distribution(logits, context, full)


class NotNormalised(chain.Chain):
    """What top-p cut is missing from p, and nobody divides by the rest. Plain draws do not notice."""

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: Any, full: bool) -> Distribution:
        p = super().sparkwright_sampler_distribution(logits, context, full)
        return Distribution(mx.where(p.log_p > -mx.inf, normalise(logits / self.options.temperature), -mx.inf), p.flags)


# --------------------------------------------------------------------------------------------------------------
# Drafters and schedulers
# --------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Unusable:
    """A drafter whose claimed q is not a number."""

    inner: TableDrafter

    def draft(self, anchor: mx.array, limit: int, keys: mx.array) -> Draft:
        draft = self.inner.draft(anchor, limit, keys)
        assert isinstance(draft.proposal, Dense)
        return Draft(draft.tokens, Dense(mx.full(draft.proposal.log_q.shape, float("nan"))))


@attrs.define(eq=False)
class OwnProbability:
    """A drafter whose confidence in a draft is that draft's own probability, which only the draft can tell."""

    inner: TableDrafter

    def draft(self, anchor: mx.array, limit: int, keys: mx.array) -> Draft:
        draft = self.inner.draft(anchor, limit, keys)
        return Draft(draft.tokens, draft.proposal, mx.exp(cores.log_q_of(draft.tokens, draft.proposal)))


@attrs.define(eq=False)
class Anticipating:
    """Submits a draft only if the confidence of the next one, which that draft decides, is high."""

    @hookimpl
    def sparkwright_scheduler_start(self) -> str:
        return "state"

    @hookimpl
    def sparkwright_scheduler_plan(self, state: str, limit: int) -> int:
        return limit

    @hookimpl
    def sparkwright_scheduler_choose(self, state: str, confidences: Sequence[float]) -> int:
        return 1 if confidences[1] > 0.5 else 0

    @hookimpl
    def sparkwright_scheduler_learn(self, state: str, report: RoundReport) -> None:
        return None


class Retrospective(Anticipating):
    """The length with the best expected gain over all lengths, looking back: the DSpark paper's counterexample."""

    costs = (0.0, 0.95, 1.3)

    @hookimpl
    def sparkwright_scheduler_choose(self, state: str, confidences: Sequence[float]) -> int:
        survival = np.cumprod([1.0, *confidences[:2]])
        gains = [survival[1 : n + 1].sum() - cost for n, cost in enumerate(self.costs)]
        return int(np.argmax(gains))


# --------------------------------------------------------------------------------------------------------------
# The cases
# --------------------------------------------------------------------------------------------------------------


def chain_like(kind: type, subject: Subject) -> Any:
    """The subject's sampler as another class, with its options."""
    right: Any = subject.sampler
    return kind(right.options, right.filters, right.bias)


def wrong_bonus() -> Case:
    """The chain alternates between two halves of the vocabulary, and drafts are mostly right: the bonus is frequent."""
    target = rows([0.1, 0.2, 0.6, 0.1], [0.2, 0.1, 0.1, 0.6], [0.6, 0.2, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1])
    healthy = base(target=target, drafter=TableDrafter("dense", target), block=1)
    return Case("bonus from the wrong row", attrs.evolve(healthy, verifier=Rejection(bonus=-1)), healthy, 20_000)


def low_precision() -> Case:
    """Logits near 80, where bfloat16 values lie 1/2 apart."""
    target = mx.array(target_logits(3, 5) + 80)
    healthy = base(target=target)
    return Case("bf16 p", attrs.evolve(healthy, sampler=chain_like(BrainFloat, healthy)), healthy, 20_000)


def two_tokens(scheduler: object, **changes: Any) -> Subject:
    """p = (.7, .3), q = (.5, .5) after every token; the confidence after token 0 is high, after token 1 low."""
    return base(
        target=rows([0.7, 0.3]),
        drafter=TableDrafter("dense", rows([0.5, 0.5]), mx.array([0.9, 0.1])),
        block=2,
        scheduler=scheduler,
        confidences=True,
        **changes,
    )


def stopped_block() -> Case:
    """Blocks of two that stop after one draft where the confidence is low, p and q far apart."""
    target, drafts = rows([0.5, 0.5]), rows([0.9, 0.1])
    drafter = TableDrafter("dense", drafts, mx.array([0.2, 0.9]))
    healthy = base(
        target=target,
        drafter=drafter,
        block=3,
        verifier=Block(),
        scheduler=Threshold(ThresholdOptions(confidence=0.1, survival=0.1)),
        confidences=True,
    )
    return Case(
        "full-block formula on a stopped block", attrs.evolve(healthy, verifier=FullBlock(drafts, 3)), healthy, 20_000
    )


def cases() -> list[Case]:
    healthy = base()
    q = q_table(healthy)
    cold = base(sampler=sampler(temperature=0.4))
    match = cold.sampler.sparkwright_sampler_shape(q)  # type: ignore[attr-defined]
    cold = attrs.evolve(cold, drafter=TableDrafter("dense", match))
    nucleus = base(sampler=sampler(temperature=2.0, top_p=0.8))
    penalised = base(sampler=sampler(presence_penalty=2.0))
    unusable = base(drafter=Unusable(TableDrafter("dense", q)))
    own = base(
        drafter=TableDrafter("dense", q, in_levels(np.full(5, 0.85))),
        scheduler=Threshold(ThresholdOptions(confidence=0.5)),
        confidences=True,
    )

    def planted(name: str, subject: Subject, trials: int, **fault: Any) -> Case:
        return Case(name, attrs.evolve(subject, **fault), subject, trials)

    uniform_drafts = mx.full((5, 5), float(np.log(0.2)))
    steady = two_tokens(Fixed(FixedOptions(depth=1)))
    return [
        planted("position-only keys", base(verifier=Block()), 60_000, keys=PositionOnlyKeys),
        stopped_block(),
        planted("wrong q", healthy, 20_000, drafter=TableDrafter("dense", q, reported=uniform_drafts)),
        planted("q of raw logits", cold, 20_000, drafter=TableDrafter("dense", match, reported=q)),
        planted("argmax draft called dense", healthy, 20_000, drafter=ArgmaxCalledDense(TableDrafter("point", q), q)),
        low_precision(),
        planted("softmaxed residual", healthy, 20_000, verifier=Rejection(residual=normalise)),
        planted("uniform on zero residual", unusable, 20_000, verifier=Rejection(empty="uniform")),
        planted(
            "residual without normalising after top-p", nucleus, 20_000, sampler=chain_like(NotNormalised, nucleus)
        ),
        wrong_bonus(),
        planted("accept with min(1, q / p)", healthy, 20_000, verifier=Rejection(accept=lambda ratio: 1 / ratio)),
        planted("keys shared between accept and residual", healthy, 20_000, verifier=Rejection(shared=True)),
        planted("penalties updated once per round", penalised, 20_000, sampler=chain_like(OncePerRound, penalised)),
        planted("anticipating scheduler", steady, 20_000, **_late(Anticipating())),
        planted("retrospective scheduler", steady, 20_000, **_late(Retrospective())),
        planted("confidence cut on the sampled token's own probability", own, 20_000, **_own(own, q)),
    ]


def _late(scheduler: object) -> dict[str, Any]:
    subject = two_tokens(scheduler, anticipates=True)
    return {"scheduler": scheduler, "drafter": subject.drafter, "anticipates": True}


def _own(subject: Subject, q: mx.array) -> dict[str, Any]:
    scheduler = Threshold(ThresholdOptions(confidence=0.4))
    return {"drafter": OwnProbability(TableDrafter("dense", q)), "scheduler": scheduler}


@attrs.define(eq=False)
class ArgmaxCalledDense:
    """Takes the largest entry and says it was drawn from the row."""

    inner: TableDrafter
    log_q: mx.array

    def draft(self, anchor: mx.array, limit: int, keys: mx.array) -> Draft:
        draft = self.inner.draft(anchor, limit, keys)
        before = mx.concatenate([anchor[:, None], draft.tokens[:, :-1]], axis=-1)
        return Draft(draft.tokens, Dense(self.log_q[before]))
