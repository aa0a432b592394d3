"""The past of a request as the penalties count it, on the host, and the counts of a block's rows made from it.

Nothing here reads a draft: row i of a block counts drafts that are still on the device.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs
import mlx.core as mx
import numpy as np

from sparkwright.plugins.samplers.filters import Counts

Array: TypeAlias = np.ndarray[Any, Any]


def _read_only(a: Array) -> Array:
    a.setflags(write=False)
    return a


@attrs.frozen(eq=False)
class Past:
    """Every token of a request that the penalties count, as weighted ids; immutable.

    ids int32 [m], seen and text float32 [m] as in `Counts`. window: only the last so many tokens count, 0 for all
    (the prompt then is kept as its distinct ids). prompt_in_text: presence and frequency count the prompt too.
    """

    ids: Array
    seen: Array
    text: Array
    window: int

    @classmethod
    def of_prompt(cls, prompt: object, window: int, prompt_in_text: bool) -> Past:
        ids = np.asarray(prompt, dtype=np.int32).reshape(-1)
        if window:
            ids = ids[-window:].copy()
            seen = np.ones(len(ids), dtype=np.float32)
        else:
            ids, times = np.unique(ids, return_counts=True)
            seen = times.astype(np.float32)
        text = seen.copy() if prompt_in_text else np.zeros_like(seen)
        return cls(_read_only(ids.astype(np.int32)), _read_only(seen), _read_only(text), window)

    def then(self, tokens: object) -> Past:
        """The past after these emitted tokens."""
        new = np.asarray(tokens, dtype=np.int32).reshape(-1)
        one = np.ones(len(new), dtype=np.float32)
        cut = -self.window or None
        parts = ((self.ids, new), (self.seen, one), (self.text, one))
        ids, seen, text = (_read_only(np.concatenate(pair)[cut:].copy()) for pair in parts)
        return Past(ids, seen, text, self.window)

    def rows(self, drafts: mx.array) -> Counts:
        """Counts of n + 1 rows for drafts int32 [..., n]: row i has the past and d1..di. Reads no draft."""
        lead, n, m = drafts.shape[:-1], drafts.shape[-1], len(self.ids)
        own = (np.arange(n)[None, :] < np.arange(n + 1)[:, None]).astype(np.float32)  # [n + 1, n]
        past = mx.broadcast_to(mx.array(self.ids), (*lead, m))
        ids = mx.concatenate([past, drafts.astype(mx.int32)], axis=-1)  # [..., m + n]
        live = np.ones((n + 1, m + n), dtype=np.float32)
        if self.window:  # row i ends after entry m + i and looks at the last `window` of those
            live = (np.arange(m + n)[None, :] >= (m + np.arange(n + 1) - self.window)[:, None]).astype(
                np.float32
            )

        def weights(w: Array) -> mx.array:
            return mx.array(np.concatenate([np.broadcast_to(w, (n + 1, m)), own], axis=1) * live)

        return Counts(ids, weights(self.seen), weights(self.text))
