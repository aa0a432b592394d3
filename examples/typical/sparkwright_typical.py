"""Verifier `typical`: accepts every draft that is typical enough of the target. It is lossy, and says so.

Typical acceptance is from Medusa (Cai et al. 2024, arXiv 2401.10774, section 3.3.1): draft x is accepted if

    p(x) > min(epsilon, delta * exp(-H(p)))        H(p) the entropy of the target's distribution

so where the target is sure only likely drafts pass, and where it is not nearly anything does. The emitted text does not
have the target's distribution: it is nearer to what the drafter says. Its facts say so (`promise="lossy"`), and every
result and report of an engine with it repeats that. With a deterministic sampler the rule is the greedy one, which is
exact.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import attrs
from sparkwright.core.contracts import (
    INCOMPLETE,
    NON_FINITE,
    Distribution,
    Draft,
    Provider,
    Site,
    Verdict,
    VerifierFacts,
    option,
)
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx
    from sparkwright.core.randomness import Keys

_share = attrs.validators.and_(attrs.validators.gt(0.0), attrs.validators.le(1.0))


@attrs.frozen
class Options:
    epsilon: float = option(0.09, "a draft at least this probable always passes (the paper's epsilon)", _share)
    delta: float = option(0.3, "of the entropy's threshold; the paper takes the root of epsilon", _share)


def typical(log_p: mx.array, tokens: mx.array, options: Options) -> mx.array:
    """bool [..., n]: log_p float32 [..., n, V] of each draft's own row, tokens int32 [..., n]."""
    import mlx.core as mx

    entropy = -mx.where(log_p > -mx.inf, mx.exp(log_p) * log_p, 0.0).sum(axis=-1)  # [..., n]; 0 log 0 is 0
    threshold = mx.minimum(log(options.epsilon), log(options.delta) - entropy)
    of_draft = mx.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]
    return of_draft > threshold  # a NaN passes nothing


@attrs.define(eq=False)
class Verifier:
    """`leading_axes`: works on many blocks at once, which is how `sparkwright audit law` shows what is lost."""

    leading_axes = True
    options: Options

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        import mlx.core as mx
        from sparkwright.core.draw import gumbel_argmax

        n = draft.tokens.shape[-1]
        passed = typical(p.log_p[..., :n, :], draft.tokens, self.options).astype(mx.int32)
        accepted = mx.cumprod(passed, axis=-1).sum(axis=-1).astype(mx.int32)  # [...]: those before the first that fails

        # The token after them is drawn from its row of p as it is. Taking the rejected draft out of it first, as exact
        # verifiers do, would be no more right here: what passed was not drawn from p either.
        row = accepted[..., None, None]
        log_row = mx.take_along_axis(p.log_p, row, axis=-2)[..., 0, :]  # [..., V]
        key = mx.take_along_axis(keys.array("residual", n + 1), row, axis=-2)[..., 0, :]  # [..., 2]
        token = gumbel_argmax(log_row, key)

        # Only the rows that were looked at can raise a flag: those of the accepted drafts, and the one after them.
        seen = mx.where(mx.arange(n + 1) <= accepted[..., None], p.flags, 0)
        flags = sum((mx.max(mx.bitwise_and(seen, flag), axis=-1) for flag in (INCOMPLETE, NON_FINITE)), mx.array(0))
        head = mx.stack([accepted, token, flags.astype(mx.int32)], axis=-1)
        return Verdict(mx.concatenate([head, draft.tokens.astype(mx.int32)], axis=-1), passed.astype(mx.float32))


def describe(options: Options, site: Site) -> VerifierFacts:
    return VerifierFacts(promise="lossy", causal=False)  # no law is promised that an anticipating scheduler could break


@hookimpl
def sparkwright_register_verifiers() -> list[Provider]:
    return [
        Provider(
            kind="verifier",
            name="typical",
            summary="accepts typical drafts (Medusa): faster, and lossy",
            build=lambda options, site: Verifier(options),
            describe=describe,
            options=Options,
        )
    ]
