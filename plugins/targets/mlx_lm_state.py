"""One sequence's caches for the target `mlx_lm`, and how rows are taken back from them.

mlx-lm gives each layer a cache. Three ways to take rows back, chosen for each cache when a state is made:

- trim: a plain key-value cache keeps a length; taking rows back makes it shorter. Exact.
- window: a sliding-window cache of mlx-lm is a ring that has overwritten the rows one would need, and it orders its
  rows differently for one row than for several, so that decode and verify would not round alike. `WindowCache` takes
  its place: rows in order, old ones kept as long as a transaction may return to them. Exact, by trimming.
- snapshot: anything else that consists of arrays and plain values (recurrent states) is copied by reference at
  `begin`; when rows are dropped it is put back and the kept rows are forwarded again, through all layers. Exact up to
  how a recurrence rounds for other numbers of rows.

A cache that is none of these is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import mlx.core as mx
from mlx_lm.models import cache as kinds

from sparkwright.core.contracts import TargetState, Transaction
from sparkwright.core.errors import AssemblyError

Mask = mx.array | str | None

# --------------------------------------------------------------------------------------------------------------
# Sliding windows
# --------------------------------------------------------------------------------------------------------------


class WindowCache:
    """Keys and values of a sliding window, in order of position, with mlx-lm's cache interface.

    A forward is given the rows from `first` on, the oldest that any of its queries sees rounded down to ALIGN, and a
    mask: masked rows add exact zeros, and lanes of a reduction stay where they are, so a query's result does not
    depend on which other queries it comes with. `pinned` is the lowest position that a trim may return to.
    """

    ALIGN = 64
    STEP = 256

    def __init__(self, window: int) -> None:
        self.window = window
        self.keys: mx.array | None = None  # [1, H, capacity, D]; row 0 is position `start`
        self.values: mx.array | None = None
        self.start = 0
        self.first = 0
        self.offset = 0
        self.pinned: int | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """keys, values [1, H, r, D] of the next r positions -> those of positions `first` .. offset - 1."""
        at, rows = self.offset, keys.shape[2]
        self.keys = self._room(self.keys, at, rows, keys)
        self.values = self._room(self.values, at, rows, values)
        self.start = self._kept_from(at, rows)
        here = at - self.start
        self.keys[..., here : here + rows, :] = keys
        self.values[..., here : here + rows, :] = values
        self.first = self._oldest(at)
        self.offset = at + rows
        self._capacity = self.keys.shape[2]
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        assert self.keys is not None and self.values is not None
        a, b = self.first - self.start, self.offset - self.start
        return self.keys[..., a:b, :], self.values[..., a:b, :]

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Mask:
        """For the N queries of the next forward: position k is visible to q if q - window < k <= q."""
        window = min(window_size or self.window, self.window)
        first, end = self._oldest(self.offset), self.offset + N
        if end - first <= window and (N == 1 or not return_array):
            return None if N == 1 else "causal"
        q = mx.arange(self.offset, end)[:, None]  # [N, 1]
        k = mx.arange(first, end)[None]  # [1, keys]
        return (k <= q) & (k > q - window)

    def trim(self, n: int) -> int:
        self.offset -= n
        return n

    def is_trimmable(self) -> bool:
        return True

    def size(self) -> int:
        return min(self.offset, self.window)

    def empty(self) -> bool:
        return self.keys is None

    @property
    def state(self) -> list[mx.array]:
        return [] if self.keys is None or self.values is None else [self.keys, self.values]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.state)

    _capacity = 0

    def _oldest(self, position: int) -> int:
        return max(0, position - self.window + 1) // self.ALIGN * self.ALIGN

    def _kept_from(self, at: int, rows: int) -> int:
        """The position of row 0 once `rows` more are written: it moves only when the buffer is full."""
        if at + rows - self.start <= self._capacity:
            return self.start
        return self._oldest(at if self.pinned is None else min(at, self.pinned))

    def _room(self, buffer: mx.array | None, at: int, rows: int, like: mx.array) -> mx.array:
        if buffer is not None and at + rows - self.start <= self._capacity:
            return buffer
        keep = self._kept_from(at, rows)
        capacity = -(-(at - keep + rows) // self.STEP) * self.STEP + self.STEP
        parts = [] if buffer is None else [buffer[..., keep - self.start : at - self.start, :]]
        fresh = capacity - (at - keep if parts else 0)
        parts.append(mx.zeros((*like.shape[:2], fresh, like.shape[3]), like.dtype))
        return mx.concatenate(parts, axis=2)


# --------------------------------------------------------------------------------------------------------------
# Which way for which cache
# --------------------------------------------------------------------------------------------------------------


def make_caches(model: Any) -> list[Any]:
    """mlx-lm's caches for a model, with sliding windows that can be trimmed."""
    return [_replaced(cache) for cache in kinds.make_prompt_cache(model)]


def _replaced(cache: Any) -> Any:
    if type(cache) is kinds.RotatingKVCache and cache.keep == 0:
        return WindowCache(cache.max_size)
    if type(cache) is kinds.CacheList:
        cache.caches = tuple(_replaced(part) for part in cache.caches)
    return cache


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    for cache in caches:
        if type(cache) is kinds.CacheList:
            yield from leaves(cache.caches)
        elif cache is not None:
            yield cache


def trims(cache: Any) -> bool:
    """Whether taking rows back is a matter of its length. Not asked of the cache: `is_trimmable` of some is untrue."""
    return type(cache) in (kinds.KVCache, kinds.QuantizedKVCache, WindowCache)


def refuse_unknown(caches: Sequence[Any], model_type: str) -> None:
    """AssemblyError naming the first cache whose rows cannot be taken back."""
    for cache in leaves(caches):
        if getattr(cache, "keep", 0):
            raise AssemblyError(
                f"target mlx_lm: a {model_type} layer keeps its past in a {type(cache).__name__} that keeps its first "
                f"{cache.keep} rows; it shows other rows to one query than to several, so verifying is not decoding"
            )
        if not trims(cache):
            try:
                _copied(vars(cache) if hasattr(cache, "__dict__") else cache)
            except TypeError as error:
                raise AssemblyError(
                    f"target mlx_lm: a {model_type} layer keeps its past in a {type(cache).__name__}, which can be "
                    f"neither trimmed nor copied (it holds a {error}); this model cannot be verified in blocks"
                ) from None


def _copied(value: Any) -> Any:
    """A copy that later in-place updates of the original leave alone; arrays get a new handle, not new memory."""
    if isinstance(value, mx.array):
        return mx.array(value)
    if value is None or isinstance(value, bool | int | float | str | mx.Dtype):
        return value
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    raise TypeError(type(value).__name__)


# --------------------------------------------------------------------------------------------------------------
# State and transaction
# --------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class State(TargetState):
    """The caches of one sequence. `position` counts the rows of an open transaction too: it is where the next row goes.

    forward_again(tokens): runs rows through the model for their effect on the caches alone.
    """

    caches: list[Any]
    forward_again: Callable[[mx.array, State], None]
    position: int = 0
    transaction: Rows | None = None

    def begin(self) -> Transaction:
        if self.transaction is not None:
            raise RuntimeError("target mlx_lm: begin() inside an open transaction; commit or abort it first")
        self.transaction = Rows(self)
        return self.transaction

    def forwarded(self, tokens: mx.array) -> None:
        """Called by the model after its caches took these rows."""
        self.position += int(tokens.shape[0])
        if self.transaction is not None and not self.transaction.trimmable:
            self.transaction.tokens.append(tokens)

    def arrays(self) -> list[Any]:
        """Everything that must be evaluated to keep the graph short."""
        return [cache.state for cache in leaves(self.caches) if not cache.empty()]


class Rows(Transaction):
    """The rows forwarded since `begin`."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.base = state.position
        self.tokens: list[mx.array] = []
        self.trimmable = True
        self.snapshots: list[tuple[Any, Any]] = []
        for cache in leaves(state.caches):
            if isinstance(cache, WindowCache):
                cache.pinned = self.base
            elif not trims(cache):
                self.trimmable = False
                self.snapshots.append((cache, _copied(vars(cache))))

    def commit(self, m: int) -> None:
        state = self.state
        rows = state.position - self.base
        self._check_open()
        if not 0 <= m <= rows:
            raise ValueError(f"target mlx_lm: commit({m}) of a transaction with {rows} rows")
        if m == rows:
            self._end(state.position)
        elif self.trimmable or m == 0:
            self._back_to(self.base + m)
            self._end(self.base + m)
        else:
            self._back_to(self.base)
            state.transaction, state.position = None, self.base
            state.forward_again(mx.concatenate(self.tokens)[:m], state)
            self._end(state.position)

    def abort(self) -> None:
        """Also after a forward that was interrupted between two layers: every cache goes back to where it was."""
        self._check_open()
        self._back_to(self.base)
        self._end(self.base)

    def _check_open(self) -> None:
        if self.state.transaction is not self:
            raise RuntimeError("target mlx_lm: this transaction has ended already")

    def _back_to(self, length: int) -> None:
        for cache in leaves(self.state.caches):
            if trims(cache) and cache.offset > length:
                cache.trim(cache.offset - length)
        for cache, before in self.snapshots:
            cache.__dict__.clear()
            cache.__dict__.update(before)

    def _end(self, position: int) -> None:
        self.state.transaction, self.state.position = None, position
        for cache in leaves(self.state.caches):
            if isinstance(cache, WindowCache):
                cache.pinned = None
