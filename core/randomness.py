"""Counter-based randomness: keys from what a draw is *for*, noise from keys. There is no generator and no global state.

Keys (DESIGN section 8): `target` noise belongs to (seed, choice, position); `draft`, `accept` and `residual` noise to
(seed, choice, anchor position of the round, position), because a position that is drafted again after a rejection must
see fresh noise: the old noise has already been conditioned on. Purposes never share a key.

Keys are mixed with splitmix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"), written so
that the same function runs on Python ints (the engine) and on NumPy uint64 arrays (the audit's trials).

Noise is made of raw key bits and never by `mx.random.categorical` or `gumbel`, whose draws depend on how many rows are
drawn together and whose tail is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import attrs

if TYPE_CHECKING:
    import mlx.core as mx
    import numpy as np

Purpose = Literal["target", "draft", "accept", "residual"]
_PURPOSE: dict[Purpose, int] = {"target": 1, "draft": 2, "accept": 3, "residual": 4}
_MASK = (1 << 64) - 1


def mix(x: Any) -> Any:
    """The splitmix64 output function; x is an int in [0, 2^64) or a NumPy uint64 array."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def stream(seed: Any, choice: Any, purpose: Purpose, anchor: Any = None) -> Any:
    """The 64-bit root of a purpose's keys. `anchor` is required but for `target`, which must not have one."""
    if (anchor is None) != (purpose == "target"):
        raise ValueError(f"{purpose} keys {'take no' if purpose == 'target' else 'need the'} anchor position")
    root = mix(mix(seed) ^ choice)
    root = mix(root ^ _PURPOSE[purpose])
    return root if anchor is None else mix(root ^ anchor)


def key(root: Any, position: Any) -> Any:
    """The 64-bit key of an absolute position under a `stream`."""
    return mix(root ^ position)


@attrs.frozen
class Keys:
    """The keys of one round: an anchor at absolute position `anchor`, drafts at anchor + 1, anchor + 2, ..."""

    seed: int
    choice: int
    anchor: int

    def array(self, purpose: Purpose, n: int, first: int = 1) -> mx.array:
        """Keys uint32 [n, 2] of the positions anchor + first .. anchor + first + n - 1."""
        import mlx.core as mx

        root = stream(self.seed & _MASK, self.choice, purpose, None if purpose == "target" else self.anchor)
        words = []
        for position in range(self.anchor + first, self.anchor + first + n):
            k = key(root, position)
            words.append((k >> 32, k & 0xFFFFFFFF))
        return mx.array(words, dtype=mx.uint32).reshape(n, 2)


def words(keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """64-bit keys of any shape as uint32 [..., 2], the form that MLX takes (the audit's way to `Keys.array`)."""
    import numpy as np

    return np.stack([keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)


def bits(keys: mx.array, width: int) -> mx.array:
    """Raw random bits uint32 [..., width] for keys uint32 [..., 2]; a row depends on its own key only."""
    import mlx.core as mx

    lead = keys.shape[:-1]
    rows = mx.vmap(lambda k: mx.random.split(k, (width + 1) // 2).reshape(-1)[:width])(keys.reshape(-1, 2))
    return rows.reshape(*lead, width)


def uniform(keys: mx.array, width: int) -> mx.array:
    """Uniform float32 [..., width] in (0, 1): the middle of the interval that 32 bits name, never 0 and never 1."""
    import mlx.core as mx

    v = (bits(keys, width).astype(mx.float32) + 0.5) * (2.0**-32)
    return mx.minimum(v, 1.0 - 2.0**-24)  # float32 rounds the last few values up to 1


def gumbel(keys: mx.array, width: int) -> mx.array:
    """Standard Gumbel noise float32 [..., width]; the right tail is exact to about 1e-10 (small v is small bits)."""
    import mlx.core as mx

    return -mx.log(-mx.log1p(-uniform(keys, width)))
