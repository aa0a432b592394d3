"""What a result says besides its numbers: a drafter that accepts implausibly little, a scheduler that did not draft.

It decides nothing and changes no token: it reads rounds that are over, and words what they mean.
"""

from __future__ import annotations

import attrs

from sparkwright.core.contracts import CostCurves, DrafterFacts, SchedulerFacts
from sparkwright.core.generation import RoundTrace, SlotReport, Stats

FIRST_ROUNDS = 64
"""A drafter is judged once, after so many rounds that submitted drafts: an engine's first, over its requests."""
IMPLAUSIBLE = 1
"""Most first drafts accepted in them that raise the warning. If the true share were one in ten, one or none of 64 would
be accepted with probability 0.0096 (0.9^64 + 64 * 0.1 * 0.9^63); if it were one in five, with 0.00001."""


@attrs.define(eq=False)
class FirstRounds:
    """Counts an engine's first rounds with drafts. Only first drafts count: whether one was accepted is known even in a
    round that a stop rule cut, and no scheduler shows fewer of them than of later ones."""

    name: str
    facts: DrafterFacts
    rounds: int = 0
    first: int = 0
    submitted: int = 0
    accepted: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def model_made(self) -> bool:
        """Whether a model drafts, of which something can be expected; a lookup may well find nothing."""
        return bool(self.facts.taps) or self.facts.proposal != "point"

    def add(self, trace: RoundTrace) -> tuple[str, ...]:
        """The warning, in the one round that completes the evidence."""
        if not self.model_made or not trace.submitted or self.rounds == FIRST_ROUNDS:
            return ()
        self.rounds += 1
        self.first += trace.accepted > 0
        self.submitted += trace.submitted
        self.accepted += trace.accepted
        if self.rounds < FIRST_ROUNDS or self.first > IMPLAUSIBLE:
            return ()
        self.warnings = (self._sentence(),)
        return self.warnings

    def _sentence(self) -> str:
        facts = self.facts
        taps = f"taps (it reads the outputs of layers {list(facts.taps)}), " if facts.taps else ""
        words = "" if facts.vocab_size is None else f" ({facts.vocab_size} tokens)"
        return (
            f"drafter '{self.name}' accepts implausibly little: the first draft was accepted in {self.first} of its "
            f"first {self.rounds} rounds, {self.accepted} of {self.submitted} drafts in all. Had it one chance in ten, "
            f"{IMPLAUSIBLE} or fewer would be seen in one of a hundred such engines. Check that it was made for this "
            f"very target: its layout flags (sample_from_anchor, layer_types), {taps}its block size ({facts.block}), "
            f"its vocabulary{words} and the mapping of a reduced one, and the dtype of its heads"
        )


def who_declined(declined: int, parked: int, unsubmitted: int) -> str:
    """Why rounds had no drafts, in words; "" where nobody declined (no drafter, or no room)."""

    def rounds(count: int) -> str:
        return "1 round" if count == 1 else f"{count} rounds"

    said = []
    if declined:
        said.append(f"the drafter was asked in {rounds(declined)} and gave none")
    if parked:
        said.append(f"the scheduler planned none in {rounds(parked)}")
    if unsubmitted:
        said.append(f"the scheduler submitted none of those drafted in {rounds(unsubmitted)}")
    return "; ".join(said)


def uncalibrated(setting: str, model: str | None) -> str:
    """Why a scheduler that decides by costs has none that were measured, and the command that measures them."""
    why = "engine.costs is 'none'" if setting == "none" else "none were measured for this model, drafter and device"
    command = "sparkwright calibrate" + ("" if model is None else f" --model {model}")
    return f"decides by assumed costs, {why}: run `{command}`"


def explained(
    slots: dict[str, SlotReport], facts: SchedulerFacts, stats: Stats, curves: CostCurves | None
) -> dict[str, SlotReport]:
    """The slots of a result; a scheduler that decides by costs and planned no drafts says how often, and why."""
    if not facts.costs or not stats.parked_rounds:
        return slots
    report, parked = slots["scheduler"], f"planned no drafts in {stats.parked_rounds} of {stats.rounds} rounds"
    if stats.tau is None and stats.declined_rounds:
        why = f"the drafter gave none when it was asked ({stats.declined_rounds})"
    elif stats.tau is None:
        why = "by its costs drafting could not pay"
    else:
        rounds = "round that drafted" if stats.uncut_drafting_rounds == 1 else "rounds that drafted"
        why = f"the {stats.uncut_drafting_rounds} {rounds} gave {stats.tau:.2f} tokens each, "
        why += "too few for their cost" if curves is None else f"for the time of {_cost(curves, stats):.2f} without"
    said = "; ".join(part for part in (f"{parked}: {why}", report.reason) if part)
    return slots | {"scheduler": attrs.evolve(report, reason=said)}


def _cost(curves: CostCurves, stats: Stats) -> float:
    """Plain decodes in the time of a round that drafts and submits as many as was usual."""
    depth = min(round(stats.submitted / max(stats.drafting_rounds, 1)), len(curves.verify) - 1)
    return (curves.draft + curves.verify[depth]) / curves.plain
