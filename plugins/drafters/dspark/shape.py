"""A draft's own temperature and filters, for who does not want the request's. Not a sampler: no penalties, no state.

Ties at a cut are kept, and every row comes out as normalised float32 log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

Shape = Callable[[mx.array], mx.array]
"""logits [..., V] -> log q [..., V] float32, normalised."""

GREEDY = 1e-5
"""A temperature at or below this draws the likeliest token."""


def own_shape(temperature: float, top_k: int, top_p: float) -> Shape:
    def shape(logits: mx.array) -> mx.array:
        x = logits.astype(mx.float32)
        if temperature <= GREEDY:
            return _one_hot(mx.argmax(x, axis=-1), x.shape[-1])
        x = x * (1.0 / temperature)
        if 0 < top_k < x.shape[-1]:
            least = mx.min(mx.topk(x, top_k, axis=-1), axis=-1, keepdims=True)
            x = mx.where(x >= least, x, -mx.inf)
        x = _normalised(x)
        if top_p < 1.0:
            falling = -mx.sort(-x, axis=-1)
            before = mx.cumsum(mx.exp(falling), axis=-1) - mx.exp(falling)  # mass ahead of each rank
            least = mx.min(mx.where(before < top_p, falling, mx.inf), axis=-1, keepdims=True)
            x = _normalised(mx.where(x >= least, x, -mx.inf))
        return x

    return shape


def always_one(shape: Shape, vocabulary: int) -> bool:
    """Whether a shape leaves one token to nearly flat logits: then it does to any, and no noise is needed.

    Reads one small number to the host, once a request.
    """
    flat = mx.zeros((1, vocabulary), dtype=mx.float32)
    flat[0, 0] = 1e-3
    return mx.sum(shape(flat) > -mx.inf).item() == 1


def _normalised(x: mx.array) -> mx.array:
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


def _one_hot(index: mx.array, width: int) -> mx.array:
    return mx.where(mx.arange(width) == index[..., None], 0.0, -mx.inf)
