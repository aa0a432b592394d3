"""The audit's statistical test of the law, for a plugin among the audit's small exact models."""

from __future__ import annotations

from typing import Any

import attrs

from sparkwright.core.contracts import DrafterFacts, ProposalKind, SchedulerFacts, Site, VerifierFacts
from sparkwright.core.testing.check import CheckFailed
from sparkwright.core.testing.common import facts_of
from sparkwright.core.testing.ground import Ground, installed, toy_facts, usable
from sparkwright.core.testing.toys import PlainSampler

VOCAB, BLOCK, ALPHA = 5, 3, 1e-6
TRIALS, SINGLE = 120_000, 6_000
"""Trials with a plugin that takes leading axes, and with one that is called trial by trial. False alarms: 1e-6 a check
(Holm's correction over its tests). A bias of the joint law of three tokens is found with probability 0.99 from a total
variation of 1.8 % on, or 8 % trial by trial (`smallest_bias`); known wrong rules are found with 20,000."""


@attrs.define(eq=False)
class BatchedSampler(PlainSampler):
    """The toy sampler; what it does holds for any leading axes."""

    leading_axes = True


def table_subject(ground: Ground, kind: ProposalKind, **mine: bool) -> Any:
    """The ground's plugin, with tables and bundled plugins in the other roles. mine: which role it plays."""
    from sparkwright.core.audit.models import subject
    from sparkwright.core.testing.schedulers import CURVES

    provider = ground.provider
    usable(provider)
    drafter = DrafterFacts(BLOCK, kind, VOCAB, confidence=True, target_noise=True)
    site = Site(target=toy_facts(VOCAB, 1), drafter=drafter, costs=CURVES)
    built = provider.build(ground.given, site)
    other: dict[str, Any] = {}
    for role, name in (("scheduler", "fixed"), ("verifier", "stochastic")):
        item = installed().get(role, name, "the conformance kit").provider  # type: ignore[arg-type]
        other[role] = item.build(item.options(), site)
    verifier_facts: VerifierFacts = facts_of(ground) if mine.get("verifier") else VerifierFacts("law")
    scheduler_facts: SchedulerFacts = facts_of(ground) if mine.get("scheduler") else SchedulerFacts()
    return subject(
        kind,
        built if mine.get("sampler") else BatchedSampler(),
        built if mine.get("verifier") else other["verifier"],
        built if mine.get("scheduler") else other["scheduler"],
        verifier_facts=verifier_facts,
        scheduler_facts=scheduler_facts,
        block=BLOCK,
        vocab=VOCAB,
        seed=3,
        name=f"{ground.who}, {kind} drafts",
    )


def law_of(subject: Any, what: str = "") -> None:
    """CheckFailed if the audit finds that the subject's text has another law than plain decoding's."""
    from sparkwright.core.audit import audit_law

    batched = all(getattr(p, "leading_axes", False) for p in (subject.sampler, subject.verifier))
    result = audit_law(subject, TRIALS if batched else SINGLE, seed=11, alpha=ALPHA)
    if not result.passed:
        raise CheckFailed(
            f"{subject.name}: the emitted text does not have the target's law ({', '.join(result.failed[:3])}; "
            f"{result.trials:,} trials, false alarms {ALPHA:g}){what}"
        )
