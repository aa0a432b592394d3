"""Verifiers with one thing wrong. The good twin is token-wise rejection of dense drafts, written out."""

from __future__ import annotations

import attrs
import mlx.core as mx
from tests.kit.bad.twin import Twin, provider

from sparkwright.core.contracts import Dense, Distribution, Draft, Provider, Verdict, VerifierFacts
from sparkwright.core.draw import gumbel_argmax
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.randomness import Keys, uniform


@attrs.define(eq=False)
class Rejection:
    """Accept draft i if u < p / q; the first rejected one is replaced by a draw from max(p - q, 0)."""

    leading_axes = True

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        assert isinstance(draft.proposal, Dense)
        n, index = draft.tokens.shape[-1], draft.tokens[..., None]
        log_p, log_q = p.log_p, draft.proposal.log_q
        ours = mx.take_along_axis(log_p[..., :n, :], index, axis=-1)[..., 0]  # [..., n]
        theirs = mx.take_along_axis(log_q, index, axis=-1)[..., 0]
        hits = self.uniform(keys, n, log_p.shape[-1]) < self.ratio(ours, theirs)
        accepted = mx.cumprod(hits.astype(mx.int32), axis=-1).sum(axis=-1, keepdims=True)  # [..., 1]
        kept = self.residual(mx.exp(log_p[..., :n, :]), mx.exp(log_q))
        empty = kept.sum(axis=-1, keepdims=True) <= 0
        rows = mx.concatenate([mx.where(empty, log_p[..., :n, :], mx.log(kept)), log_p[..., n:, :]], axis=-2)
        row = mx.take_along_axis(rows, accepted[..., None], axis=-2)[..., 0, :]
        noise = mx.take_along_axis(self.noise(keys, n), accepted[..., None], axis=-2)[..., 0, :]
        token = gumbel_argmax(row, noise)[..., None]
        flags = self.flags(p, accepted)
        return Verdict(mx.concatenate([accepted, token, flags, draft.tokens], axis=-1).astype(mx.int32))

    def uniform(self, keys: Keys, n: int, size: int) -> mx.array:
        return uniform(keys.array("accept", n), 1)[..., 0]

    def ratio(self, ours: mx.array, theirs: mx.array) -> mx.array:
        return mx.exp(ours - theirs)

    def residual(self, p: mx.array, q: mx.array) -> mx.array:
        return mx.maximum(p - q, 0)

    def noise(self, keys: Keys, n: int) -> mx.array:
        return keys.array("residual", n + 1)

    def flags(self, p: Distribution, accepted: mx.array) -> mx.array:
        any_row: mx.array = p.flags[..., :1]
        for i in range(1, p.flags.shape[-1]):
            any_row = mx.bitwise_or(any_row, p.flags[..., i : i + 1])
        return any_row


class Inverted(Rejection):
    """min(1, q / p)."""

    def ratio(self, ours: mx.array, theirs: mx.array) -> mx.array:
        return mx.exp(theirs - ours)


class Residual(Rejection):
    """Corrections are drawn from p."""

    def residual(self, p: mx.array, q: mx.array) -> mx.array:
        return p


class SharedKeys(Rejection):
    """The number that rejects a draft is made of the same bits as the noise of its correction."""

    def uniform(self, keys: Keys, n: int, size: int) -> mx.array:
        return uniform(keys.array("residual", n), size)[..., 0]


class DraftNoise(Rejection):
    """The noise of a correction is that of the draft it replaces."""

    def noise(self, keys: Keys, n: int) -> mx.array:
        return keys.array("draft", n + 1)


class TakesAll(Rejection):
    def ratio(self, ours: mx.array, theirs: mx.array) -> mx.array:
        return mx.full(ours.shape, 2.0)


class Silent(Rejection):
    def flags(self, p: Distribution, accepted: mx.array) -> mx.array:
        return mx.zeros_like(accepted)


class Moody(Rejection):
    """Accepts less every time."""

    def __init__(self) -> None:
        self.calls = 0

    def ratio(self, ours: mx.array, theirs: mx.array) -> mx.array:
        self.calls += 1
        return mx.exp(ours - theirs) * (0.5 if self.calls % 2 else 1.0)


class ReadsTheHost(Rejection):
    def flags(self, p: Distribution, accepted: mx.array) -> mx.array:
        return super().flags(p, accepted) if int(p.flags.max()) >= 0 else mx.zeros_like(accepted)


def make(kind: type[Rejection]) -> Provider:
    return provider("verifier", lambda site: kind(), VerifierFacts("law", proposals=frozenset({"dense"})))


GOOD = make(Rejection)
TWINS = [
    Twin("accepts with q over p", "law of the text", make(Inverted), GOOD),
    Twin("corrects from p", "law of the text", make(Residual), GOOD),
    Twin("shares keys", "law of the text", make(SharedKeys), GOOD),
    Twin("draws on the drafter's keys", "its own keys", make(DraftNoise), GOOD),
    Twin("takes all drafts", "excluded tokens", make(TakesAll), GOOD),
    Twin("drops flags", "flags are passed on", make(Silent), GOOD),
    Twin("counts its calls", "same keys, same verdict", make(Moody), GOOD),
    Twin("reads the host", "nothing read to the host", make(ReadsTheHost), GOOD),
]
