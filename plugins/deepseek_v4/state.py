"""The caches of one sequence and their transactions (spec section 6).

A layer keeps its window rows and, for each of its compressors, the raw projections of recent positions in a ring, and
emitted rows in a buffer that only grows. Both are addressed by absolute position, so the open window, the overlap half
of the window before it and the rows to take back are all implied by one number: how far the sequence has come. A
rollback lowers that number and the buffers' lengths; it copies nothing. That is the recipe of spec 6.4, with the
snapshot replaced by rings that are wide enough to still hold it.

MLX's rule is kept: a buffer is updated in place first and the updated array is read; nobody holds the old one.
"""

from __future__ import annotations

import os
from typing import Any, TypeAlias

import attrs
import mlx.core as mx
import numpy as np

from sparkwright.core.contracts import WIDEST_VERIFY
from sparkwright.plugins.deepseek_v4.config import ModelConfig

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

GROW = 256
"""Emitted rows are given room in multiples of this, and by half of what there is, so that growth is rare."""


def lookback(ratio: int) -> int:
    """Positions before the committed end that a compressor may still need: its open window, and the overlap if any."""
    return 2 * ratio - 1 if ratio == 4 else ratio - 1


class Ring:
    """Rows of the last positions: position p lies in slot p mod size. Holds low .. end - 1."""

    def __init__(self, width: int, keep: int, dtype: mx.Dtype) -> None:
        self.keep = keep  # positions before the committed end that must stay readable
        self.end = 0
        self.high = 0  # the furthest position ever written since the last commit, padding included
        self.array = mx.zeros((keep + WIDEST_VERIFY, width), dtype=dtype)

    @property
    def size(self) -> int:
        return int(self.array.shape[0])

    @property
    def low(self) -> int:
        return max(0, self.high - self.size)

    def slots(self, first: int, count: int) -> Ints:
        """The slots of positions first .. first + count - 1; -1 for positions before the first token."""
        position = np.arange(first, first + count)
        slots: Ints = np.where(position >= 0, position % self.size, -1)
        return slots

    def reserve(self, committed: int, end: int) -> None:
        """Makes room so that writing up to `end` overwrites nothing that a rollback to `committed` needs."""
        needed = end - max(0, committed - self.keep)
        if needed <= self.size:
            return
        first = max(self.low, committed - self.keep, 0)
        live = self.array[mx.array(self.slots(first, self.end - first))] if self.end > first else None
        self.array = mx.zeros((max(needed, self.keep + end - committed), self.array.shape[1]), self.array.dtype)
        self.high = self.end
        if live is not None:
            self._put(first, live)

    def write(self, rows: mx.array, real: int) -> None:
        """Appends rows at `end`; the first `real` of them count, the rest is padding that will be overwritten."""
        self._put(self.end, rows)
        self.high = max(self.high, self.end + int(rows.shape[0]))
        self.end += real

    def _put(self, position: int, rows: mx.array) -> None:
        count, at = int(rows.shape[0]), position % self.size
        rows = rows.astype(self.array.dtype)
        before = min(count, self.size - at)
        self.array[at : at + before] = rows[:before]
        if before < count:
            self.array[: count - before] = rows[before:]

    def truncate(self, end: int) -> None:
        self.end = end


class Rows:
    """Emitted rows, appended in order; `count` of them are valid."""

    def __init__(self, width: int, dtype: mx.Dtype) -> None:
        self.count = 0
        self.array = mx.zeros((GROW, width), dtype=dtype)

    def reserve(self, count: int) -> None:
        room = int(self.array.shape[0])
        if count > room:
            room = -(-max(count, room * 3 // 2) // GROW) * GROW
            grown = mx.zeros((room, self.array.shape[1]), dtype=self.array.dtype)
            if self.count:
                grown[: self.count] = self.array[: self.count]
            self.array = grown

    def append(self, rows: mx.array) -> None:
        count = int(rows.shape[0])
        self.reserve(self.count + count)
        self.array[self.count : self.count + count] = rows.astype(self.array.dtype)
        self.count += count


class CompressorState:
    """Raw projections (kv, then gate with `ape`) of recent positions, and the rows emitted so far."""

    def __init__(self, ratio: int, width: int, dtype: mx.Dtype) -> None:
        self.ratio = ratio
        halves = 2 if ratio == 4 else 1
        self.raw = Ring(2 * halves * width, lookback(ratio), mx.float32)
        self.rows = Rows(width, dtype)

    def truncate(self, end: int) -> None:
        self.raw.truncate(end)
        self.rows.count = end // self.ratio


class LayerState:
    """One layer's caches: window rows, and by its kind a compressor and an indexer's compressor."""

    def __init__(self, config: ModelConfig, ratio: int, dtype: mx.Dtype) -> None:
        self.window = Ring(config.head_dim, config.window - 1, dtype)
        self.compressor = CompressorState(ratio, config.head_dim, dtype) if ratio else None
        self.indexer = CompressorState(ratio, config.index_dim, dtype) if ratio == 4 else None

    @property
    def compressors(self) -> list[CompressorState]:
        return [c for c in (self.compressor, self.indexer) if c is not None]

    def reserve(self, committed: int, end: int) -> None:
        self.window.reserve(committed, end)
        for compressor in self.compressors:
            compressor.raw.reserve(committed, end)

    def truncate(self, end: int) -> None:
        self.window.truncate(end)
        for compressor in self.compressors:
            compressor.truncate(end)

    def check(self, end: int, where: str) -> None:
        """The post-conditions of spec 6.4."""
        for ring in (self.window, *(c.raw for c in self.compressors)):
            assert ring.end == end, f"{where}: ring ends at {ring.end}, expected {end}"
            assert ring.low <= max(0, end - ring.keep), f"{where}: ring of {ring.size} lost positions below {ring.low}"
        for c in self.compressors:
            assert c.rows.count == end // c.ratio, f"{where}: {c.rows.count} rows of ratio {c.ratio} at position {end}"

    @property
    def arrays(self) -> list[mx.array]:
        return [self.window.array, *(a for c in self.compressors for a in (c.raw.array, c.rows.array))]


class State:
    """One sequence. Implements `TargetState`."""

    def __init__(self, layers: list[LayerState]) -> None:
        self.layers = layers
        self.end = 0
        self._open: StateTransaction | None = None

    @property
    def position(self) -> int:
        """The absolute position of the next token, after the rows of an open transaction if there is one."""
        return self.end

    @property
    def committed(self) -> int:
        """Positions that no rollback can take back."""
        return self.end if self._open is None else self._open.start

    def begin(self) -> StateTransaction:
        if self._open is not None:
            raise RuntimeError("a transaction is already open on this state; commit or abort it first")
        self._open = StateTransaction(self, self.end)
        return self._open

    def reserve(self, rows: int) -> None:
        """Room for a forward of this many rows, padding included."""
        for layer in self.layers:
            layer.reserve(self.committed, self.end + rows)

    def advance(self, rows: int) -> None:
        """A forward has written this many rows into every layer."""
        self.end += rows
        if debugging():
            self.check()

    def finish(self, transaction: StateTransaction, end: int) -> None:
        if self._open is not transaction:
            raise RuntimeError("this transaction has already been committed or aborted")
        self._open = None
        self.end = end
        for layer in self.layers:
            layer.truncate(end)
        if debugging():
            self.check()

    def check(self) -> None:
        for i, layer in enumerate(self.layers):
            layer.check(self.end, f"layer {i}")

    @property
    def arrays(self) -> list[mx.array]:
        return [a for layer in self.layers for a in layer.arrays]


@attrs.define(eq=False)
class StateTransaction:
    """The rows forwarded since `begin`. Implements `Transaction`."""

    state: State
    start: int

    def commit(self, m: int) -> None:
        rows = self.state.end - self.start
        if not 0 <= m <= rows:
            raise ValueError(f"commit({m}): expected 0 <= m <= {rows}, the rows forwarded since begin")
        self.state.finish(self, self.start + m)

    def abort(self) -> None:
        self.commit(0)


def debugging() -> bool:
    """Whether post-conditions are checked (SPARKWRIGHT_DEBUG=1)."""
    return os.environ.get("SPARKWRIGHT_DEBUG", "") not in ("", "0")
