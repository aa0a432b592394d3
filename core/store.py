"""Weights that engines of one process may share: loaded once for each key, then only read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import attrs


@attrs.define(eq=False)
class WeightStore:
    """`store(key, load)` gives what `load()` gave the first time. Keys name the path and the stored form.

    What `load` returns must be evaluated: lazy arrays do not cross threads, and each engine has its own.
    """

    _held: dict[Hashable, Any] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __call__(self, key: Hashable, load: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._held:
                self._held[key] = load()
            return self._held[key]
