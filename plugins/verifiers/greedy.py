"""The `greedy` verifier: a draft is accepted while it is the largest logit of its row. For samplers without
randomness only: the assembly refuses it with any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparkwright.core.contracts import Distribution, Draft, NoOptions, Provider, Site, Verdict, VerifierFacts
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparkwright.core.randomness import Keys


@attrs.define(eq=False)
class Greedy:
    """Its hook method takes leading batch axes, keys included."""

    leading_axes = True

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        import mlx.core as mx

        from sparkwright.plugins.verifiers import cores

        mode = p.mode if p.mode is not None else mx.argmax(p.log_p, axis=-1).astype(mx.int32)
        return cores.verdict(draft, p, cores.match(draft.tokens, mode))


def build(options: NoOptions, site: Site) -> Greedy:
    return Greedy()


def describe(options: NoOptions, site: Site) -> VerifierFacts:
    return VerifierFacts(promise="identity-up-to-ties", causal=False, deterministic_only=True)


@hookimpl
def sparkwright_register_verifiers() -> list[Provider]:
    return [
        Provider(
            kind="verifier",
            name="greedy",
            summary="accepts drafts that are the target's largest logit",
            build=build,
            describe=describe,
        )
    ]
