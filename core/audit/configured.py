"""The plugins of a configuration on the audit's small models: what `sparkwright audit law --config F` audits.

The sampler, scheduler and verifier are the configuration's, options included, and are negotiated like an engine's; the
target and the drafter are tables of `models`, because only a small model's law is known. Kernels play no part.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from sparkwright.core.assembly import negotiate, promise_in_force
from sparkwright.core.audit.models import VOCAB, subject
from sparkwright.core.audit.subjects import Subject
from sparkwright.core.config import Config
from sparkwright.core.contracts import DrafterFacts, Kind, ProposalKind, Provider, Site, TargetFacts
from sparkwright.core.errors import AssemblyError
from sparkwright.core.roles import guarded

KINDS: tuple[ProposalKind, ...] = ("dense", "sparse", "point")


def subjects_of(
    config: Config, kinds: Iterable[ProposalKind] = KINDS, *, block: int = 4, seed: int = 0, vocab: int = VOCAB
) -> tuple[Subject, ...]:
    """One subject for each kind of proposal that the configured verifier takes.

    Raises what an assembly raises: PluginError, ConfigError (a token id beyond the model's `vocab`), AssemblyError.
    """
    made = [_subject(config, kind, block, seed, vocab) for kind in kinds]
    taken = tuple(one for one in made if one is not None)
    if not taken:
        raise AssemblyError(
            f"verifier '{config.slots['verifier'].use}' takes none of the proposals asked for ({', '.join(kinds)}); "
            "there is nothing to audit"
        )
    return taken


def _subject(config: Config, kind: ProposalKind, block: int, seed: int, vocab: int) -> Subject | None:
    target = TargetFacts(vocab, 1 << 20, vocab, 1, (), "the audit's small model", "exact", row_exact=True)
    drafter = DrafterFacts(block, kind, vocab, confidence=True, target_noise=True)
    site = Site(target=target, drafter=drafter)
    facts: dict[str, Any] = {"target": target, "drafter": drafter}
    providers: dict[str, Provider] = {
        "target": Provider(kind="target", name="audit model", summary="", build=_never),
        "drafter": Provider(kind="drafter", name=f"audit {kind} table", summary="", build=_never),
    }
    roles: tuple[Kind, ...] = ("scheduler", "sampler", "verifier")
    for role in roles:
        slot = config.slots[role]
        provider = config.catalogue.get(role, slot.use, slot.asked_by).provider
        assert provider.describe is not None
        describe = guarded(provider.describe, role, provider.name, "describe")
        providers[role], facts[role] = provider, describe(slot.options[provider.name], site)
    if kind not in facts["verifier"].proposals:
        return None
    negotiate(providers, facts, config)
    built = {}
    for role in roles:
        provider = providers[role]
        build = guarded(provider.build, role, provider.name, "build")
        built[role] = build(config.slots[role].options[provider.name], site)
    made = subject(
        kind,
        built["sampler"],
        built["verifier"],
        built["scheduler"],
        verifier_facts=facts["verifier"],
        scheduler_facts=facts["scheduler"],
        block=block,
        seed=seed,
        vocab=vocab,
        name=" x ".join([providers["sampler"].name, kind, providers["scheduler"].name, providers["verifier"].name]),
        names={role: providers[role].name for role in roles},
    )
    return attrs.evolve(made, promise=promise_in_force(facts, config))


def _never(options: Any, site: Site) -> object:
    raise AssertionError("the audit's tables are not built by a Provider")
