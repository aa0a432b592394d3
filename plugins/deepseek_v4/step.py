"""What all layers of one forward share: positions, angles, which window slots and compressed rows each query sees.

Everything here is a function of absolute positions, query by query (spec 5.6, 5.7). Nothing depends on how many rows
the forward has or on whether they are prompt, draft or anchor; `span`, the number of compressed rows looked at, only
ever adds rows that are masked out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import mlx.core as mx
import numpy as np

from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.reference import visible_rows
from sparkwright.plugins.deepseek_v4.rotary import Rotary, angles
from sparkwright.plugins.deepseek_v4.state import Ring

T = TypeVar("T")
Angles: TypeAlias = tuple[mx.array, mx.array]  # cos, sin, each float32 [rows, R / 2]

BUCKET = 2048
"""Positions of one bucket. Under `row_exact` attention lengths are fixed within a bucket, and no chunk crosses one."""


class Step:
    """One forward of `rows` rows from `position` on, of which the first `real` count (the rest pads `row_exact`)."""

    def __init__(
        self, config: ModelConfig, rotary: Rotary, tokens: mx.array, position: int, real: int, exact: bool
    ) -> None:
        self.config, self.rotary = config, rotary
        self.tokens = tokens  # int32 [rows]
        self.rows = int(tokens.shape[0])
        self.position, self.real, self.exact = position, real, exact
        self._kept: dict[Any, Any] = {}

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._kept:
            self._kept[key] = make()
        found: T = self._kept[key]
        return found

    def angles(self, ratio: int) -> Angles:
        """Of every row's own position, in the frequencies of layers of this ratio."""
        return self._once(("angles", ratio > 0), lambda: angles(self.rotary.for_ratio(ratio), self.position, self.rows))

    def window_slots(self, ring: Ring) -> mx.array:
        """Slots of the window of each row, its own position last: int32 [rows, W], -1 before the first token."""

        def make() -> mx.array:
            width = self.config.window
            position = self.position + np.arange(self.rows)[:, None] + np.arange(1 - width, 1)[None]
            return mx.array(np.where(position >= 0, position % ring.size, -1).astype(np.int32))

        return self._once(("window", ring.size), make)

    # ------------------------------------------------------------------------------------------- compressed rows

    def closing(self, ratio: int) -> tuple[int, int]:
        """The windows first .. last - 1 that close within this forward's real rows."""
        return self.position // ratio, (self.position + self.real) // ratio

    def closing_slots(self, ratio: int, ring: Ring, back: int = 0) -> mx.array:
        """Slots of the tokens of the closing windows, or of the windows `back` before them: int32 [windows, ratio]."""

        def make() -> mx.array:
            first, last = self.closing(ratio)
            slots = ring.slots((first - back) * ratio, (last - first) * ratio)
            return mx.array(slots.reshape(last - first, ratio).astype(np.int32))

        return self._once(("closing", ratio, ring.size, back), make)

    def closing_angles(self, ratio: int) -> Angles:
        """Of the first token of each closing window, which is where its row is rotated."""
        first, last = self.closing(ratio)
        return self._once(
            ("row angles", ratio),
            lambda: angles(self.rotary.compressed, first * ratio, last - first, stride=ratio),
        )

    def slot_in_window(self, ratio: int) -> mx.array:
        """Which `ape` row each token takes: absolute position mod ratio, int32 [rows]."""
        return self._once(
            ("ape", ratio),
            lambda: mx.array(((self.position + np.arange(self.rows)) % ratio).astype(np.int32)),
        )

    def visible(self, ratio: int) -> mx.array:
        """How many compressed rows each query sees: floor((t + 1) / ratio), int32 [rows]."""
        return self._once(
            ("visible", ratio),
            lambda: mx.array(((self.position + 1 + np.arange(self.rows)) // ratio).astype(np.int32)),
        )

    def all_visible(self, ratio: int) -> mx.array:
        """Every row that each query sees, as `attend_rows` takes it: int32 [rows, span]."""
        return self._once(("all", ratio), lambda: visible_rows(self.visible(ratio), self.span(ratio)))

    def most(self, ratio: int) -> int:
        """The largest of `visible` over the real rows."""
        return (self.position + self.real) // ratio

    def span(self, ratio: int) -> int:
        """How many rows of the buffer this forward looks at: all that any query sees, rounded up."""
        if self.exact:
            return (self.position // BUCKET + 1) * BUCKET // ratio
        unit = 64 if ratio == 4 else 16
        return -(-self.most(ratio) // unit) * unit
