"""Plain drawing: one token from one row of a Distribution, without any draft. The engine's way to the first anchor and
to every token of a round that drafted nothing.

It is not a verifier: it draws on `target` noise (DESIGN section 8), which is what coupled verification repeats and what
the correction of stochastic verification must never use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mlx.core as mx

    from sparkwright.core.contracts import Distribution
    from sparkwright.core.randomness import Keys


def gumbel_argmax(log_p: mx.array, keys: mx.array) -> mx.array:
    """int32 [...]: a draw from each row of log_p [..., V] under the noise of its key, uint32 [..., 2].

    A row's draw depends on its own log_p and key only; among equal perturbed values the lower id wins.
    """
    import mlx.core as mx

    from sparkwright.core.randomness import gumbel

    return mx.argmax(log_p + gumbel(keys, log_p.shape[-1]), axis=-1).astype(mx.int32)


def draw(p: Distribution, keys: Keys, first: int = 1) -> mx.array:
    """int32 [3], laid out as a Verdict without drafts: 0, the token of position keys.anchor + first, the row's flags.

    p has one row. A deterministic row gives its mode and no noise is made.
    """
    import mlx.core as mx

    if p.flags.shape[0] != 1:
        raise ValueError(f"draw takes a Distribution of one row, not of {p.flags.shape[0]}")
    token = p.mode if p.mode is not None else gumbel_argmax(p.log_p, keys.array("target", 1, first))
    return mx.concatenate([mx.zeros((1,), dtype=mx.int32), token.astype(mx.int32), p.flags.astype(mx.int32)])
