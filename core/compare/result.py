"""The result of a comparison as one value, with its forms: a dict for JSON, Markdown, and the HTML page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core.compare import analysis
from sparkwright.core.compare.difference import Difference
from sparkwright.core.compare.plan import Plan
from sparkwright.core.compare.records import ArmSpec, Prompt
from sparkwright.core.compare.runner import GateCheck, Settings, gate_checks
from sparkwright.core.compare.store import Entry

FORMAT = 1


@attrs.frozen(eq=False)
class Question:
    """What a comparison is asked to find out. differences: by candidate's name. margin: the difference that would
    matter, alpha: accepted false alarms, both as fractions. stretch: pairs of one repetition of a self-test, 0 if
    this is none.
    """

    specs: tuple[ArmSpec, ...]
    prompts: tuple[Prompt, ...]
    plan: Plan
    settings: Settings
    differences: Mapping[str, tuple[Difference, ...]] = attrs.field(factory=dict)
    margin: float = 0.03
    alpha: float = 0.05
    stretch: int = 0
    command: str = ""
    environment: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class CompareResult:
    """Everything about a comparison. `verdict` is the sentence to read; with several candidates there is one for each.

    complete: every planned pair was measured; `stopped` says why not. left_out: pairs without a decode rate (a text of
    one token), which no number uses. entries: the raw measurements, in the order they were made.
    """

    question: Question
    entries: tuple[Entry, ...]
    arms: tuple[analysis.ArmSummary, ...]
    comparisons: tuple[analysis.Comparison, ...]
    gate: tuple[GateCheck, ...]
    drift: analysis.Drift | None
    self_test: analysis.SelfTest | None
    complete: bool
    stopped: str
    left_out: int
    notes: tuple[str, ...]
    directory: Path | None

    @property
    def verdict(self) -> str:
        if self.self_test is not None:
            return self.self_test.words
        if not self.comparisons:
            return "no verdict: no pair was measured"
        return "; ".join(comparison.verdict.words for comparison in self.comparisons)

    @property
    def pairs(self) -> tuple[Entry, ...]:
        return tuple(sorted((e for e in self.entries if e.kind == "pair"), key=lambda e: e.index))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for strict JSON: numbers that are not finite are None."""
        q = self.question
        groups = {group.index: group for group in q.plan.groups}
        data = {
            "format": FORMAT,
            "verdict": self.verdict,
            "complete": self.complete,
            "stopped": self.stopped,
            "command": q.command,
            "environment": dict(q.environment),
            "settings": {**attrs.asdict(q.settings), "margin": q.margin, "alpha": q.alpha},
            "arms": [
                {**attrs.asdict(arm), "config": dict(spec.config)} for spec, arm in zip(q.specs, self.arms, strict=True)
            ],
            "differences": {name: [attrs.asdict(d) for d in found] for name, found in q.differences.items()},
            "comparisons": [attrs.asdict(comparison) for comparison in self.comparisons],
            "gate": [{**attrs.asdict(check), "failed": check.failed} for check in self.gate],
            "drift": attrs.asdict(self.drift) if self.drift else None,
            "self_test": attrs.asdict(self.self_test) if self.self_test else None,
            "notes": list(self.notes),
            "left_out": self.left_out,
            "prompts": [attrs.asdict(prompt) for prompt in q.prompts],
            "planned_pairs": len(q.plan.groups),
            "measurements": [
                {
                    "kind": entry.kind,
                    "index": entry.index,
                    "prompt": entry.prompt,
                    "seed": groups[entry.index].seed if entry.kind == "pair" else q.settings.seed,
                    "clock": entry.clock,
                    "runs": {
                        name: {
                            **run.to_dict(),
                            "tokens_sha256": run.tokens_sha256,
                            "decode_rate": run.decode_rate,
                            "prefill_rate": run.prefill_rate,
                        }
                        for name, run in entry.runs.items()
                    },
                }
                for entry in self.entries
            ],
        }
        plain: dict[str, Any] = finite(data)
        return plain

    def to_markdown(self) -> str:
        from sparkwright.core.compare.report.md import markdown

        return markdown(self)

    def to_html(self) -> str:
        from sparkwright.core.compare.report.html import page

        return page(self)

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


def finite(value: Any) -> Any:
    """The same plain data with tuples as lists and without NaN and infinity, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


HARDLY = 0.01
"""Share of rounds that drafted under which an arm is as good as plain decoding, and its tau says next to nothing."""


def idle(q: Question, arms: Sequence[analysis.ArmSummary]) -> list[str]:
    """A note for each candidate that was to draft otherwise than the base, where neither really drafted."""
    notes, base = [], arms[0]
    for arm in arms[1:]:
        meant = {d.slot for d in q.differences.get(arm.name, ())} & {"drafter", "scheduler", "verifier"}
        drafted = [a.rounds - a.rounds_without_drafts for a in (base, arm)]
        if not meant or not base.rounds or not arm.rounds or q.stretch:
            continue
        most = max(drafted[0] / base.rounds, drafted[1] / arm.rounds)
        if most < HARDLY:
            same = math.floor(1000 * (1 - most)) / 10  # never rounded up to 100
            notes.append(
                f"{base.name} and {arm.name} did the same work in {same:.4g} % of rounds: {base.name} drafted in "
                f"{drafted[0]} of {base.rounds}, {arm.name} in {drafted[1]} of {arm.rounds}. A difference of their "
                "rates is hardly that of drafts; `sparkwright generate` with an arm's configuration says who gave none"
            )
    return notes


def conclude(
    question: Question, entries: Sequence[Entry], stopped: str = "", directory: Path | None = None
) -> CompareResult:
    """Analyse what was measured; stopped: why the measuring ended early, if it did."""
    q = question
    pairs = sorted((e for e in entries if e.kind == "pair"), key=lambda e: e.index)
    profile = [e for e in entries if e.kind == "profile"]
    used = [e for e in pairs if analysis.usable(e)]
    drift = analysis.drift(entries)
    tested = None
    if q.stretch:
        tested = analysis.self_test(pairs, q.specs[0].name, q.specs[1].name, q.stretch, q.alpha, q.settings.seed)
    comparisons = analysis.compare_arms(q.specs, pairs, q.margin, q.alpha)
    gate = tuple(check for e in entries if e.kind == "gate" for check in gate_checks(q.specs, e))
    if not comparisons and not stopped:
        stopped = "no pair has a decode rate: every text ended after its first token"
    arms = tuple(analysis.summarise(spec, used, profile) for spec in q.specs)
    return CompareResult(
        question=q,
        entries=tuple(entries),
        arms=arms,
        comparisons=comparisons,
        gate=gate,
        drift=drift,
        self_test=tested,
        complete=not stopped and len(pairs) == len(q.plan.groups),
        stopped=stopped,
        left_out=len(pairs) - len(used),
        notes=(*_notes(q, pairs, used, gate, drift), *idle(q, arms)),
        directory=directory,
    )


def _notes(
    q: Question, pairs: Sequence[Entry], used: Sequence[Entry], gate: Sequence[GateCheck], drift: analysis.Drift | None
) -> list[str]:
    """What a reader of the verdict has to know besides."""
    notes = []
    if drift is not None and drift.noted:
        notes.append(drift.words)
    prompts = {e.prompt for e in pairs}
    if len(prompts) < len(pairs):
        notes.append(
            f"{len(pairs)} pairs share {len(prompts)} prompts: the intervals speak of these prompts, not of others"
        )
    if len(used) < len(pairs):
        notes.append(f"{len(pairs) - len(used)} pairs had a text of one token and no decode rate; they are left out")
    lengths = {len(run.tokens) for e in used for run in e.runs.values()}
    if q.settings.ignore_eos and len(lengths) > 1:
        notes.append(f"texts have {min(lengths)} to {max(lengths)} tokens although the length was to be fixed")
    diverging = sum(check.owed and check.first is not None for check in gate)
    if diverging:
        notes.append(
            f"{diverging} of {len(gate)} gate texts differ although identity (up to ties) is promised: near ties "
            f"between "
            "forwards of different widths do that; `sparkwright audit` shows the margins"
        )
    return notes
