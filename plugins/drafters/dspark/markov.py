"""The reference of the op `markov_chain`: one block's draws, one after another, without the host (spec 8.4, 8.5).

It knows nothing of stages, rings or temperatures: `pick` is how a slot is drawn.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from sparkwright.plugins.deepseek_v4.linear import Linear

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
