"""The oracle of the DeepSeek-V4 target: the definition that the family brings for audits, as the tests use it.

`sparkwright.plugins.deepseek_v4.definition` shares no code with the model (a test holds it to that) and was held
against another implementation when it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from sparkwright.plugins.deepseek_v4 import definition
from sparkwright.plugins.deepseek_v4.definition import Array as Array
from sparkwright.plugins.deepseek_v4.definition import Sizes as Sizes
from sparkwright.plugins.deepseek_v4.definition import attention as attention
from sparkwright.plugins.deepseek_v4.definition import compress as compress
from sparkwright.plugins.deepseek_v4.definition import ffn as ffn
from sparkwright.plugins.deepseek_v4.definition import frequencies as frequencies
from sparkwright.plugins.deepseek_v4.definition import hyper_coefficients as hyper_coefficients
from sparkwright.plugins.deepseek_v4.definition import hyper_expand as hyper_expand
from sparkwright.plugins.deepseek_v4.definition import hyper_head as hyper_head
from sparkwright.plugins.deepseek_v4.definition import rms as rms
from sparkwright.plugins.deepseek_v4.definition import rope as rope
from sparkwright.plugins.deepseek_v4.definition import sigmoid as sigmoid
from sparkwright.plugins.deepseek_v4.definition import softmax as softmax

Weights: TypeAlias = dict[str, Array]


def forward(
    ids: Array, W: Weights, size: Sizes, taps: Sequence[int] = (), gaps: list[tuple[int, float]] | None = None
) -> tuple[Array, Array | None]:
    """The definition's forward. `gaps` collects (position, gap of the scores at the indexer's top-k edge)."""

    def settle(op: str, call: int, what: str, index: Array, scores: Array | None) -> Array:
        if op == "indexer_select" and gaps is not None and scores is not None:
            k = size.index_topk
            ordered = -np.sort(-scores, axis=1)
            for t in np.flatnonzero(np.isfinite(scores).sum(1) > k):
                gaps.append((int(t), float(ordered[t, k - 1] - ordered[t, k])))
        return index

    return definition.forward(ids, W, size, taps, settle)
