"""`audit_rollback`: does a target that took rows back hold exactly what it would hold had they never been forwarded?

Random rounds: a block of the text's next tokens, its tail replaced by garbage, of which a random number of rows is
committed; now and then a transaction is aborted, or holds two forwards. At the end and every few rounds the next rows'
logits are compared with those of a clean run over the same tokens. The bound comes from two clean runs: one forwarded
row by row, one in blocks; what rounding does to them is what rollback may do (times a margin for the longer chain), up
to what rounding can do at all: a target whose blocks are another function must not excuse its rollback by it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from sparkwright.core.audit.identity import usual_rounding
from sparkwright.core.contracts import WIDEST_VERIFY
from sparkwright.core.errors import RequestError
from sparkwright.core.roles import Target

MARGIN = 8.0
"""How many times the rounding between two clean runs a rolled-back run may differ."""
LEAST_REJECTED = 16
"""Rows that must have been rejected for a state without traces to say anything."""
PROBE = 4
"""Rows whose logits are compared at each check."""


@attrs.frozen
class RollbackResult:
    """`worst`: largest difference of logits between the rolled-back and the clean run, at `worst_position`. `rounding`:
    the largest between two clean runs of other block sizes. `scale`: the largest logit."""

    rounds: int
    forwarded: int
    committed: int
    checks: int
    worst: float
    worst_position: int
    rounding: float
    scale: float

    @property
    def bound(self) -> float:
        """MARGIN times the rounding seen, and never under a few units of float32 in the largest logit."""
        return max(MARGIN * self.rounding, 16 * 2.0**-23 * self.scale)

    @property
    def undecided(self) -> bool:
        """Nothing was found where next to nothing was rejected."""
        return self.worst <= self.bound and self.forwarded - self.committed < LEAST_REJECTED

    @property
    def passed(self) -> bool:
        return self.worst <= self.bound and not self.undecided

    @property
    def meaning(self) -> str:
        if self.undecided:
            return (
                f"Only {self.forwarded - self.committed} rows were rejected, which is too little to say anything (at "
                f"least {LEAST_REJECTED} are needed): choose a longer text."
            )
        if self.passed:
            return (
                f"After {self.rounds} random rounds the state answers as if the rejected rows had never been; it shows "
                "this for this text, and not for states that this text does not reach (longer contexts)."
            )
        return "Rejected rows left a trace in the state: rollback is broken."

    def to_dict(self) -> dict[str, Any]:
        return attrs.asdict(self) | {
            "bound": self.bound, "passed": self.passed, "undecided": self.undecided, "meaning": self.meaning,
        }  # fmt: skip


def audit_rollback(
    target: Target,
    tokens: Sequence[int],
    *,
    prompt: int = 16,
    seed: int = 0,
    every: int = 8,
    progress: Callable[[str, int, int], None] | None = None,
) -> RollbackResult:
    """Run random rounds over `tokens` (the first `prompt` of them prefilled) until they are used up."""
    import mlx.core as mx

    if target.facts.rollback is None:
        raise RequestError(f"target '{target.name}' does not take rows back; there is nothing to audit")
    if len(tokens) < prompt + 2 * WIDEST_VERIFY + PROBE:
        least = prompt + 2 * WIDEST_VERIFY + PROBE
        raise RequestError(f"the text has {len(tokens)} tokens; at least {least} are needed")
    rng = random.Random(seed)
    vocabulary = target.facts.vocab_size
    tokens = list(tokens)
    state = target.new_state()
    tell = progress or (lambda what, done, total: None)
    clean = {size: _clean(target, tokens, prompt, size, tell) for size in (1, WIDEST_VERIFY)}
    scale = _largest(clean[1])
    rounding = min(_largest(clean[1] - clean[WIDEST_VERIFY]), 16 * usual_rounding(target) * scale)

    def forward(ids: list[int]) -> mx.array:
        logits = target.forward(mx.array(ids, dtype=mx.int32), state, "all").logits
        assert logits is not None
        return logits

    forward(tokens[:prompt])
    at, rounds, forwarded, checks, worst, worst_position = prompt, 0, prompt, 0, 0.0, prompt
    end = len(tokens) - PROBE
    while at < end:
        width = min(rng.randint(1, WIDEST_VERIFY), end - at)
        kept = rng.randint(0, width)
        block = [*tokens[at : at + kept], *(rng.randrange(vocabulary) for _ in range(width - kept))]
        transaction = state.begin()
        if width > 1 and rng.random() < 0.2:
            cut = rng.randint(1, width - 1)
            forward(block[:cut])
            forward(block[cut:])
        else:
            forward(block)
        if kept == 0 and rng.random() < 0.5:
            transaction.abort()
        else:
            transaction.commit(kept)
        rounds, forwarded, at = rounds + 1, forwarded + width, at + kept
        if rounds % every == 0 or at >= end:
            transaction = state.begin()
            logits = forward(tokens[at : at + PROBE])
            difference = _largest(logits - clean[1][at - prompt : at - prompt + PROBE])
            transaction.abort()
            checks += 1
            difference = float("inf") if math.isnan(difference) else difference
            if difference > worst:
                worst, worst_position = difference, at
        tell("rollback", at - prompt, end - prompt)
    return RollbackResult(rounds, forwarded, at, checks, worst, worst_position, rounding, scale)


def _largest(array: Any) -> float:
    return float(np.abs(np.array(array)).max())


def _clean(target: Target, tokens: list[int], prompt: int, size: int, tell: Callable[[str, int, int], None]) -> Any:
    """Logits float32 [len(tokens) - prompt, V] of the rows after the prompt, `size` at a time, never rolled back."""
    import mlx.core as mx

    state = target.new_state()
    target.forward(mx.array(tokens[:prompt], dtype=mx.int32), state, "none")
    rows = []
    for at in range(prompt, len(tokens), size):
        logits = target.forward(mx.array(tokens[at : at + size], dtype=mx.int32), state, "all").logits
        assert logits is not None
        mx.eval(logits)
        rows.append(logits)
        tell(f"clean run by {size}", at + size - prompt, len(tokens) - prompt)
    return mx.concatenate(rows)
