"""From numbers to words: faster, slower, no difference larger than x%, or not enough pairs. Measures nothing."""

from __future__ import annotations

import math
from typing import Literal

import attrs

from sparkwright.core.compare import statistics as st

Kind = Literal["faster", "slower", "no-difference", "not-enough", "invalid"]


@attrs.frozen
class Verdict:
    """kind, and one sentence for people. pairs_needed: set if the pairs were not enough (0 otherwise)."""

    kind: Kind
    words: str
    pairs_needed: int = 0


def percent(ratio: float) -> str:
    """A ratio as a signed change."""
    return f"{(ratio - 1) * 100:+.1f}%" if math.isfinite(ratio) else "unbounded"


def decide(
    label: str, estimate: st.Estimate, step: st.HolmStep, margin: float, alpha: float, wrong_texts: int = 0
) -> Verdict:
    """The verdict on one candidate.

    estimate: its interval at the level of its Holm step. margin: the difference that would matter, as a fraction (0.03
    is 3%); "no difference" needs the whole interval within it. wrong_texts: pairs whose texts had to be equal and were
    not: no speed is worth a verdict then.
    """
    if wrong_texts:
        return Verdict(
            "invalid",
            f"{label}: no verdict, because the texts of {wrong_texts} pairs differ although both arms promise identity",
        )
    range_ = (
        f"{percent(estimate.ratio)}, interval {percent(estimate.low)} to {percent(estimate.high)}, {estimate.n} pairs"
    )
    if step.rejected:
        kind: Kind = "faster" if estimate.ratio > 1 else "slower"
        return Verdict(kind, f"{label} is {kind} ({range_})")
    largest = max(estimate.high - 1, 1 - estimate.low)
    if largest <= margin:
        return Verdict(
            "no-difference", f"{label}: no difference larger than {math.ceil(largest * 1000) / 10:.1f}% ({range_})"
        )
    if estimate.n < 2:
        return Verdict("not-enough", f"{label}: not enough pairs (one pair has no interval; two are the least)", 2)
    needed = max(estimate.n + 1, st.pairs_needed(math.log1p(margin), estimate.sd, alpha))
    return Verdict(
        "not-enough",
        f"{label}: not enough pairs to tell ({range_}); to find a difference of {margin * 100:g}% with power "
        f"{st.POWER:.0%} takes about {needed} pairs at this spread",
        needed,
    )
