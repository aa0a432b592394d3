"""The context of one stage: keys of the last W committed positions (spec 8.3). Block rows are never written here."""

from __future__ import annotations

import mlx.core as mx


class ContextRing:
    """Position p lies in slot p mod W; `end` positions have been written, those before `end` - W are gone."""

    def __init__(self, window: int, width: int, dtype: mx.Dtype) -> None:
        self.end = 0
        self.rows = mx.zeros((window, width), dtype=dtype)

    @property
    def window(self) -> int:
        return int(self.rows.shape[0])

    def write(self, rows: mx.array, end: int) -> None:
        """The keys [m, D], m <= W, of the positions end - m .. end - 1."""
        count = int(rows.shape[0])
        if count > self.window or end < self.end:
            raise ValueError(
                f"{count} rows that end at {end} do not fit a ring of {self.window} that ends at {self.end}"
            )
        at = (end - count) % self.window
        first = min(count, self.window - at)
        rows = rows.astype(self.rows.dtype)
        self.rows[at : at + first] = rows[:first]
        if first < count:
            self.rows[: count - first] = rows[first:]
        self.end = end

    def shown(self) -> int:
        """How many slots, counted from 0, hold a position."""
        return min(self.end, self.window)
