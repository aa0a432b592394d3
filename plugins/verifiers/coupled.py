"""The `coupled` verifier: at every position the target draws its own token, under the noise that plain decoding would
use, and drafts are accepted while they equal it. The text is plain decoding's for the seed, whatever the drafter,
scheduler or block length; q is not looked at, so any schedule is allowed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from sparkwright.core.contracts import Distribution, Draft, NoOptions, Provider, Site, Verdict, VerifierFacts
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparkwright.core.randomness import Keys


@attrs.define(eq=False)
class Coupled:
    """Its hook method takes leading batch axes, keys included."""

    leading_axes = True

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        from sparkwright.plugins.verifiers import cores

        if p.mode is not None:
            return cores.verdict(draft, p, cores.match(draft.tokens, p.mode))
        n = draft.tokens.shape[-1]
        outcome = cores.coupled(draft.tokens, p.log_p, keys.array("target", n + 1))
        return cores.verdict(draft, p, outcome)


def build(options: NoOptions, site: Site) -> Coupled:
    return Coupled()


def describe(options: NoOptions, site: Site) -> VerifierFacts:
    return VerifierFacts(promise="identity-up-to-ties", causal=False, noise="target")


@hookimpl
def sparkwright_register_verifiers() -> list[Provider]:
    return [
        Provider(
            kind="verifier",
            name="coupled",
            summary="the target's own draw under shared noise: plain decoding's text at any temperature",
            build=build,
            describe=describe,
        )
    ]
