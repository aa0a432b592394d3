"""Small exact models for the audit: a Markov target and drafters that resemble it, from a seed.

Tables, not networks: what they are good for is that the law of every text is known.
"""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from sparkwright.core.audit.subjects import Array, Hooks, Subject, TableDrafter, TrialDrafter
from sparkwright.core.contracts import Promise, ProposalKind, SchedulerFacts, VerifierFacts

VOCAB = 8
CONFIDENCES = (0.25, 0.55, 0.85)
"""Confidences come in few levels, so that trials share scheduler states."""


def target_logits(seed: int, vocab: int = VOCAB, spread: float = 1.2) -> Array:
    """float32 [V, V]: normal logits by the last token."""
    return np.random.default_rng(seed).normal(size=(vocab, vocab)).astype(np.float32) * np.float32(spread)


def draft_logits(target: Array, seed: int, noise: float = 0.8) -> Array:
    """The target's logits with noise on top: a drafter that is right often and wrong often."""
    rough = np.random.default_rng(seed + 7919).normal(size=target.shape) * noise
    return (target + rough).astype(np.float32)


def agreement(target: Array, draft: Array) -> Array:
    """float64 [V]: sum of min(p, q) of each row of logits, the acceptance that a good confidence predicts."""

    def softmax(x: Array) -> Array:
        e = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
        total: Array = e / e.sum(axis=-1, keepdims=True)
        return total

    overlap: Array = np.minimum(softmax(target), softmax(draft)).sum(axis=-1)
    return overlap


def in_levels(x: Array) -> mx.array:
    """float32 [V]: each value as the nearest of CONFIDENCES."""
    levels = np.array(CONFIDENCES)
    return mx.array(levels[np.abs(x[:, None] - levels).argmin(axis=1)].astype(np.float32))


def table_drafter(
    kind: ProposalKind, sampler: object, target: Array, seed: int, noise: float = 0.8, name: str = ""
) -> TableDrafter:
    """A drafter for `target` that draws at the sampler's temperature and filters (its `shape`), as `match` does."""
    logits = draft_logits(target, seed, noise)
    log_q = Hooks(sampler, name).hook.sparkwright_sampler_shape(logits=mx.array(logits))
    return TableDrafter(kind, log_q, in_levels(agreement(target, logits)))


def subject(
    kind: ProposalKind,
    sampler: object,
    verifier: object,
    scheduler: object,
    *,
    verifier_facts: VerifierFacts,
    scheduler_facts: SchedulerFacts | None = None,
    deterministic: bool = False,
    block: int = 4,
    seed: int = 0,
    vocab: int = VOCAB,
    name: str = "",
    drafter: TrialDrafter | None = None,
    names: Mapping[str, str] | None = None,
) -> Subject:
    """Built plugins on the small model of a seed. `deterministic` is the sampler's fact of that name; `names`: what the
    plugins are called, by kind."""
    names = names or {}
    target = target_logits(seed, vocab)
    facts = scheduler_facts or SchedulerFacts()
    promise: Promise = verifier_facts.deterministic_promise if deterministic else verifier_facts.promise
    return Subject(
        name=name or f"{type(sampler).__name__} x {kind} x {type(scheduler).__name__} x {type(verifier).__name__}",
        target=mx.array(target),
        sampler=sampler,
        verifier=verifier,
        scheduler=scheduler,
        drafter=drafter or table_drafter(kind, sampler, target, seed, name=names.get("sampler", "")),
        block=block,
        noise=verifier_facts.noise,
        promise=promise,
        confidences=facts.confidences,
        anticipates=facts.anticipates,
        names=names,
    )
