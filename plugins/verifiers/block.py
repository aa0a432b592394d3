"""The `block` verifier: block verification (Sun et al. 2024, arXiv 2403.10444), which accepts drafts jointly: the
target's law, and never a lower expected accepted length than token-wise rejection. docs/block-verification derives
it. With a sampler without randomness it is greedy's rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparkwright.core.contracts import Distribution, Draft, NoOptions, Provider, Site, Verdict, VerifierFacts
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparkwright.core.randomness import Keys


@attrs.define(eq=False)
class Block:
    """Its hook method takes leading batch axes, keys included."""

    leading_axes = True

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        from sparkwright.plugins.verifiers import cores

        if p.mode is not None:
            return cores.verdict(draft, p, cores.match(draft.tokens, p.mode))
        n = draft.tokens.shape[-1]
        outcome = cores.block(
            draft.tokens, draft.proposal, p.log_p, keys.array("accept", n), keys.array("residual", n + 1)
        )
        return cores.verdict(draft, p, outcome)


def build(options: NoOptions, site: Site) -> Block:
    return Block()


def describe(options: NoOptions, site: Site) -> VerifierFacts:
    return VerifierFacts(promise="law")


@hookimpl
def sparkwright_register_verifiers() -> list[Provider]:
    return [
        Provider(
            kind="verifier",
            name="block",
            summary="block verification: the target's distribution, accepted jointly",
            build=build,
            describe=describe,
        )
    ]
