"""Verifier `my_plugin`: accepts drafts while they equal the target's own draws.

Since only the target's own draws are emitted, the text has the target's distribution whatever the drafts were: it
promises `law`. (Rejection sampling accepts more; see `stochastic`.)

That is the template's; say here what yours is, and what it is not.

The contract: `sparkwright_verifier_verify` in sparkwright.core.hookspecs; `Draft`, `Distribution`, `Verdict`,
`VerifierFacts` in sparkwright.core.contracts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from sparkwright.core.contracts import (
    INCOMPLETE,
    NON_FINITE,
    Distribution,
    Draft,
    NoOptions,
    Provider,
    Site,
    Verdict,
    VerifierFacts,
)
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparkwright.core.randomness import Keys


@attrs.define(eq=False)
class Verifier:
    """`leading_axes`: the method takes arrays with axes in front, `...` below, so that `sparkwright audit law` can run
    hundreds of thousands of blocks through it."""

    leading_axes = True

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        """draft of n >= 1 tokens, p of n + 1 rows: row i is the target's distribution of draft i + 1, row n of the
        token after them. keys: this round's; purposes "accept" and "residual" are a verifier's own."""
        import mlx.core as mx
        from sparkwright.core.draw import gumbel_argmax

        n = draft.tokens.shape[-1]
        own = gumbel_argmax(p.log_p, keys.array("residual", n + 1))  # [..., n + 1]
        same = (draft.tokens == own[..., :n]).astype(mx.int32)
        accepted = mx.cumprod(same, axis=-1).sum(axis=-1).astype(mx.int32)  # [...]: those before the first that differs
        token = mx.take_along_axis(own, accepted[..., None], axis=-1)[..., 0]

        seen = mx.where(mx.arange(n + 1) <= accepted[..., None], p.flags, 0)  # rows the outcome depends on
        incomplete = mx.max(mx.bitwise_and(seen, INCOMPLETE), axis=-1)
        not_finite = mx.max(mx.bitwise_and(seen, NON_FINITE), axis=-1)
        head = mx.stack([accepted, token, incomplete + not_finite], axis=-1)
        return Verdict(mx.concatenate([head, draft.tokens], axis=-1).astype(mx.int32))


def describe(options: NoOptions, site: Site) -> VerifierFacts:
    """The promise is on every result, and `sparkwright audit law` tests it; "lossy" promises nothing."""
    return VerifierFacts(promise="law")


def build(options: NoOptions, site: Site) -> Verifier:
    return Verifier()


@hookimpl
def sparkwright_register_verifiers() -> list[Provider]:
    return [
        Provider(
            kind="verifier",
            name="my_plugin",
            summary="the target's own draws; drafts are accepted while they equal them",
            build=build,
            describe=describe,
        )
    ]
