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
    return mixed_chain(base, hidden, anchor, w1, w2, confidence, pick, None)


def mixed_chain(
    base: mx.array,
    hidden: mx.array,
    anchor: mx.array,
    w1: Linear,
    w2: Linear,
    confidence: mx.array | None,
    pick: Pick,
    mix: Gate | Recurrence | None,
) -> tuple[mx.array, mx.array, mx.array | None]:
    """`markov_chain` with what becomes of the token's embedding e before w2 biases by it: None leaves it as it is."""
    d = hidden.shape[-1]
    own = None if confidence is None else (hidden.astype(mx.float32) @ confidence[:d, None])[:, 0]  # [n]
    tokens, logits, claims = [], [], []
    previous, state = anchor, None
    for slot in range(base.shape[0]):
        e = w1.lookup(previous, "float32")  # [1, rank]
        if own is not None and confidence is not None:
            claims.append(own[slot : slot + 1] + (e @ confidence[d:, None])[:, 0])
        if mix is not None:
            state, e = mix(state, e, hidden[slot : slot + 1])
        logits.append(base[slot : slot + 1] + w2(e))
        previous = pick(slot, logits[-1])
        tokens.append(previous)
    return mx.concatenate(tokens), mx.concatenate(logits), mx.concatenate(claims) if claims else None


@attrs.frozen(eq=False)
class Gate:
    """The gated head (spec 9.2): e is scaled by what the hidden state and e itself say. weight [rank, d + rank]."""

    weight: mx.array
    bias: mx.array

    def __call__(self, state: mx.array | None, e: mx.array, hidden: mx.array) -> tuple[None, mx.array]:
        return None, mx.sigmoid(mx.concatenate([hidden, e], axis=-1) @ self.weight.T + self.bias) * e


@attrs.frozen(eq=False)
class Recurrence:
    """The rnn head (spec 9.2): a state [1, rank], 0 at a block's start, runs along. weight [3 rank, 2 rank + d]."""

    weight: mx.array
    bias: mx.array

    def __call__(self, state: mx.array | None, e: mx.array, hidden: mx.array) -> tuple[mx.array, mx.array]:
        before = mx.zeros_like(e) if state is None else state
        mixed = mx.concatenate([before, e, hidden], axis=-1) @ self.weight.T + self.bias
        keep, new, out = mx.split(mixed, 3, axis=-1)
        keep = mx.sigmoid(keep)
        return keep * before + (1 - keep) * mx.tanh(new), mx.tanh(out)


@attrs.frozen(eq=False)
class Heads:
    """The Markov head w1, w2 [V, rank] and the confidence head [d + rank] with its bias; temperatures [block] of the
    confidences, or None. rows: where logits are of a part of the vocabulary, the row of each of the target's tokens,
    int32 [V], the row behind the last one for tokens that cannot be drafted."""

    w1: Linear
    w2: Linear
    confidence: mx.array | None
    temperatures: mx.array | None = None
    bias: mx.array | None = None  # [1]
    rows: mx.array | None = None

    def over_the_target(self, logits: mx.array) -> mx.array:
        """[1, rows] -> [1, V]: what filters, noise and verifiers know are the target's tokens."""
        if self.rows is None:
            return logits
        return mx.concatenate([logits, mx.full((1, 1), -mx.inf)], axis=-1)[:, self.rows]


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
    """base [n, V] float32 (or its `rows`), hidden [n, d] float32, keys uint32 [n, 2] -> n drafts, lazily."""
    n = int(base.shape[0])
    vocabulary = int(base.shape[1] if heads.rows is None else heads.rows.shape[0])
    noise = gumbel(keys, vocabulary) if how.noisy else None
    shaped: dict[int, mx.array] = {}  # by slot: the live check of kernels runs a chain more than once

    def pick(slot: int, logits: mx.array) -> mx.array:
        logits = heads.over_the_target(logits)
        if not how.drawn:
            return mx.argmax(logits, axis=-1).astype(mx.int32)
        log_q = how.shape(logits)  # [1, V]: exactly what this draft is drawn from
        shaped[slot] = log_q
        scores = log_q if noise is None else log_q + noise[slot : slot + 1]
        return mx.argmax(scores, axis=-1).astype(mx.int32)

    first = mx.array([anchor], dtype=mx.int32)
    tokens, _, claims = chain(base, hidden, first, heads.w1, heads.w2, heads.confidence, pick)
    if claims is not None and heads.bias is not None:
        claims = claims + heads.bias
    if claims is not None and heads.temperatures is not None:
        claims = claims / heads.temperatures[:n]
    confidence = None if claims is None else mx.sigmoid(claims)
    drawn = Dense(mx.concatenate([shaped[slot] for slot in range(n)])) if how.drawn else PointMass()
    return Draft(tokens, drawn, confidence)
