"""One block's draws, one after another, without the host (spec 8.4, 8.5), and the reference of the op `markov_chain`.

It knows nothing of stages, layers or contexts: it is what the V4-native and the dense drafter share.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx

from sparkwright.core.contracts import Dense, Draft, Op, PointMass
from sparkwright.core.randomness import gumbel
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.drafters.dspark.shape import Shape

Pick = Callable[[int, mx.array], mx.array]
"""(slot, logits float32 [1, V]) -> the slot's token int32 [1]."""


def markov_chain(
    base: mx.array,
    hidden: mx.array,
    anchor: mx.array,
    w1: Linear,
    w2: Linear,
    confidence: mx.array | None,
    pick: Pick,
) -> tuple[mx.array, mx.array, mx.array | None]:
    """Draws slot after slot, each biased by the token before it.

    base [n, V] float32: logits without bias; hidden [n, d] float32: what the confidence reads; anchor int32 [1]; w1, w2
    [V, rank]; confidence float32 [d + rank] or None. Returns tokens int32 [n], logits [n, V] with their biases, and
    confidence logits [n] (or None): number k is made before slot k is drawn.
    """
    d = hidden.shape[-1]
    own = None if confidence is None else (hidden.astype(mx.float32) @ confidence[:d, None])[:, 0]  # [n]
    tokens, logits, claims = [], [], []
    previous = anchor
    for slot in range(base.shape[0]):
        e = w1.lookup(previous, "float32")  # [1, rank]
        if own is not None and confidence is not None:
            claims.append(own[slot : slot + 1] + (e @ confidence[d:, None])[:, 0])
        logits.append(base[slot : slot + 1] + w2(e))
        previous = pick(slot, logits[-1])
        tokens.append(previous)
    return mx.concatenate(tokens), mx.concatenate(logits), mx.concatenate(claims) if claims else None


@attrs.frozen(eq=False)
class Heads:
    """The Markov head w1, w2 [V, rank] and the confidence head [d + rank] with its bias; temperatures [block] of the
    confidences, or None."""

    w1: Linear
    w2: Linear
    confidence: mx.array | None
    temperatures: mx.array | None = None
    bias: mx.array | None = None  # [1]


@attrs.define(eq=False)
class How:
    """How a request's drafts are drawn. drawn: from `shape`, else the likeliest token is taken. noisy: with noise (a
    shape that leaves one token needs none)."""

    shape: Shape
    drawn: bool
    noisy: bool


def draw_block(
    chain: Op, heads: Heads, how: How, base: mx.array, hidden: mx.array, anchor: int, keys: mx.array
) -> Draft:
    """base [n, V] float32, hidden [n, d] float32, keys uint32 [n, 2] -> n drafts after the anchor, lazily."""
    n = int(base.shape[0])
    noise = gumbel(keys, int(base.shape[1])) if how.noisy else None
    shaped: list[mx.array] = []

    def pick(slot: int, logits: mx.array) -> mx.array:
        if not how.drawn:
            return mx.argmax(logits, axis=-1).astype(mx.int32)
        log_q = how.shape(logits)  # [1, V]: exactly what this draft is drawn from
        shaped.append(log_q)
        scores = log_q if noise is None else log_q + noise[slot : slot + 1]
        return mx.argmax(scores, axis=-1).astype(mx.int32)

    first = mx.array([anchor], dtype=mx.int32)
    tokens, _, claims = chain(base, hidden, first, heads.w1, heads.w2, heads.confidence, pick)
    if claims is not None and heads.bias is not None:
        claims = claims + heads.bias
    if claims is not None and heads.temperatures is not None:
        claims = claims / heads.temperatures[:n]
    confidence = None if claims is None else mx.sigmoid(claims)
    return Draft(tokens, Dense(mx.concatenate(shaped)) if how.drawn else PointMass(), confidence)
