"""Holding a decode against the target's reference: the same choices, but for near ties, and then the same logits.

A reference (`sparkwright_target_reference`) is the model by its definition, computed apart from the target in float64.
It shows every choice here. Where the target chose otherwise and the reference's own scores call that a near tie, the
reference goes on with the target's choice, so that one tie does not hide what comes after it; any other difference is
kept. What makes a tie is measured, not assumed: twice what rounding does to that choice's scores in this very model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs
import numpy as np

from sparkwright.core.audit.watch import NOTHING, Array, Key, Row
from sparkwright.core.errors import RequestError
from sparkwright.core.roles import Target

LARGEST = 4_000_000_000
"""Bytes of weights from which on a reference runs only if it is asked for: it would take hours."""


@attrs.frozen(eq=False)
class Parted:
    """A choice that no tie explains: what the target took and what the reference took."""

    key: Key
    target: Array
    reference: Array


@attrs.define(eq=False)
class Follower:
    """What the reference shows its choices to (`contracts.Settle`).

    decoded: what each row took when it was decoded; moved: how far rounding moves a choice's scores; watched: the ops
    whose choices were recorded. parted: the first difference of each row; ties: rows where a tie was followed.
    """

    decoded: Sequence[Row]
    moved: Mapping[Key, float]
    watched: Collection[str]
    parted: dict[int, Parted] = attrs.field(factory=dict)
    ties: set[int] = attrs.field(factory=set)

    def settle(self, op: str, call: int, what: str, index: Array, scores: Array | None) -> Array:
        if op not in self.watched:
            return index
        key, out = (op, call, what), np.array(index)
        for i, row in enumerate(self.decoded):
            mine, theirs = row.get(key, NOTHING).index, np.sort(out[i][out[i] >= 0])
            if np.array_equal(mine, theirs):
                continue
            if scores is not None and self._tied(mine, theirs, scores[i], key):
                self.ties.add(i)
                out[i] = -1
                out[i, : len(mine)] = mine
            else:
                self.parted.setdefault(i, Parted(key, mine, theirs))
        return out

    def _tied(self, mine: Array, theirs: Array, scores: Array, key: Key) -> bool:
        """Whether the reference's scores put what only one side took within twice of what rounding moves them by."""
        lost, gained = np.setdiff1d(theirs, mine), np.setdiff1d(mine, theirs)
        if len(lost) != len(gained) or gained.max(initial=0) >= len(scores):
            return False
        return bool(scores[lost].max() - scores[gained].min() <= 2 * self.moved.get(key, 0.0))


def length_for(target: Target, asked: int | None, tokens: int) -> tuple[int, str]:
    """How many tokens of a text the reference is run over, and why none, if it is none."""
    if target.reference is None:
        if asked:
            raise RequestError(f"target '{target.name}' offers no reference to compare with; leave --reference out")
        return 0, "no reference offered"
    if asked == 0:
        return 0, "the reference was switched off"
    size = target.facts.weight_bytes
    if asked is None and size > LARGEST:
        return 0, f"the reference of weights of {size / 1e9:.0f} GB takes hours and runs only for --reference N"
    return min(asked or tokens, tokens), ""
