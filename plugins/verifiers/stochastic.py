"""The `stochastic` verifier: token-wise rejection (Leviathan et al. 2023, Chen et al. 2023), which keeps the target's
law whatever the drafts were drawn from, as long as q says it truly. With a sampler without randomness it is greedy's
rule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparkwright.core.contracts import Distribution, Draft, NoOptions, Provider, Site, Verdict, VerifierFacts
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparkwright.core.randomness import Keys


@attrs.define(eq=False)
class Stochastic:
    """Its hook method takes leading batch axes, keys included."""

    leading_axes = True

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        from sparkwright.plugins.verifiers import cores

        if p.mode is not None:
            return cores.verdict(draft, p, cores.match(draft.tokens, p.mode))
        n = draft.tokens.shape[-1]
        outcome = cores.rejection(
            draft.tokens, draft.proposal, p.log_p, keys.array("accept", n), keys.array("residual", n + 1)
        )
        return cores.verdict(draft, p, outcome)


def build(options: NoOptions, site: Site) -> Stochastic:
    return Stochastic()


def describe(options: NoOptions, site: Site) -> VerifierFacts:
    return VerifierFacts(promise="law")


@hookimpl
def sparkwright_register_verifiers() -> list[Provider]:
    return [
        Provider(
            kind="verifier",
            name="stochastic",
            summary="token-wise rejection sampling: the target's distribution, any proposal",
            build=build,
            describe=describe,
        )
    ]
