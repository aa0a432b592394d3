"""Rotary frequencies and the cosines and sines of positions (spec 5.4).

Angles are made on the host in float64: at a position of a million a float32 angle is off by 0.06 rad. A forward needs
two small tables for all its layers together, so this costs nothing.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import attrs
import mlx.core as mx
import numpy as np

from sparkwright.plugins.deepseek_v4.config import ModelConfig, Yarn

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]


def frequencies(rope_dim: int, base: float, yarn: Yarn | None = None) -> Floats:
    """Radians a position for each of the rope_dim / 2 pairs."""
    f = base ** (-np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim)
    if yarn is None:
        return f

    def pair(turns: float) -> float:
        return rope_dim * math.log(yarn.original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair(yarn.beta_fast)), 0)
    high = min(math.ceil(pair(yarn.beta_slow)), rope_dim - 1)
    ramp = np.clip((np.arange(rope_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    scaled: Floats = f / yarn.factor * ramp + f * (1 - ramp)
    return scaled


@attrs.frozen(eq=False)
class Rotary:
    """The family's two sets of frequencies: `plain` for window-only layers and drafter stages, `compressed` else."""

    plain: Floats
    compressed: Floats

    @classmethod
    def of(cls, config: ModelConfig) -> Rotary:
        return cls(
            plain=frequencies(config.rope_dim, config.rope_theta),
            compressed=frequencies(config.rope_dim, config.compress_rope_theta, config.yarn),
        )

    def for_ratio(self, ratio: int) -> Floats:
        return self.compressed if ratio else self.plain


def angles(f: Floats, first: int, count: int, stride: int = 1) -> tuple[mx.array, mx.array]:
    """cos and sin, float32 [count, len(f)], of the positions first, first + stride, ..."""
    turned = np.multiply.outer(first + stride * np.arange(count, dtype=np.float64), f)
    return mx.array(np.cos(turned).astype(np.float32)), mx.array(np.sin(turned).astype(np.float32))
