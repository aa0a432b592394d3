"""A comparison as Markdown: the verdict first, then what it rests on. Numbers are those of result.json, rounded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sparkwright.core.compare.verdict import percent

if TYPE_CHECKING:
    from sparkwright.core.compare.analysis import ArmSummary, Comparison
    from sparkwright.core.compare.result import CompareResult
    from sparkwright.core.compare.statistics import Pooled


def p_value(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def ratio(value: float) -> str:
    return f"{value:.4f}" if math.isfinite(value) else "unbounded"


def pooled(value: Pooled | None, digits: int = 2) -> str:
    if value is None:
        return "no drafts"
    if not math.isfinite(value.low):
        return f"{value.value:.{digits}f}"
    return f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def rate(arm: ArmSummary, which: str) -> str:
    quartiles = getattr(arm, f"{which}_rate")
    return "not timed" if quartiles is None else f"{quartiles.median:.1f} [{quartiles.low:.1f}, {quartiles.high:.1f}]"


def stages(arm: ArmSummary) -> str:
    s = arm.stages
    if s is None:
        return "not timed"
    total = s.draft + s.verify + s.rest
    if not s.apart:
        return f"{total:.2f} = draft and verify {s.draft + s.verify:.2f} + rest {s.rest:.2f}"
    return f"{total:.2f} = draft {s.draft:.2f} + verify {s.verify:.2f} + rest {s.rest:.2f}"


def arm_rows(result: CompareResult) -> list[tuple[str, ...]]:
    """One row an arm, in the order of ARM_HEAD: medians [quartiles], pooled values [95% intervals], counts."""
    return [
        (
            arm.name, arm.label, arm.promise, rate(arm, "decode"), rate(arm, "prefill"), pooled(arm.tau),
            f"{arm.rounds - arm.rounds_without_drafts} of {arm.rounds}", stages(arm),
        )
        for arm in result.arms
    ]  # fmt: skip


ARM_HEAD = (
    "arm", "what", "promise", "decode tok/s, median [quartiles]", "prefill tok/s, median [quartiles]", "tau [95%]",
    "rounds that drafted", "ms a round",
)  # fmt: skip


def comparison_rows(c: Comparison) -> list[tuple[str, str]]:
    e = c.decode
    rows = [
        ("decode rate, ratio", f"{ratio(e.ratio)} [{ratio(e.low)}, {ratio(e.high)}]"),
        ("interval", f"{100 * e.level:.4g}%, {e.method}, {e.n} pairs"),
        ("p, adjusted for the number of candidates", p_value(c.p_adjusted)),
        ("p, Wilcoxon signed rank (not adjusted)", p_value(c.wilcoxon)),
        ("wins / losses / ties (within 0.5%)", f"{c.wins} / {c.losses} / {c.ties}"),
        (
            "smallest change found with power 80%",
            percent(1 + c.detectable) if math.isfinite(c.detectable) else "unbounded",
        ),
        ("equal texts", f"{c.same_texts} of {len(c.pairs)}{'' if c.texts_owed else ' (not promised)'}"),
    ]
    if c.prefill is not None:
        rows.append(
            ("prefill rate, ratio", f"{ratio(c.prefill.ratio)} [{ratio(c.prefill.low)}, {ratio(c.prefill.high)}]")
        )
    return rows


def markdown(result: CompareResult) -> str:
    q = result.question
    lines = ["# Comparison", "", f"**{result.verdict}**", ""]
    if not result.complete:
        lines += [f"Incomplete: {len(result.pairs)} of {len(q.plan.groups)} pairs. {_escape(result.stopped)}", ""]
    lines += [f"- {_escape(note)}" for note in result.notes]
    lines += ["", "## Arms", "", *_table(ARM_HEAD, arm_rows(result)), ""]
    for c in result.comparisons:
        lines += [f"## {c.name}: {_escape(c.label)}", "", *_table(("", "value"), comparison_rows(c)), ""]
        lines += [
            f"Differs from the base in: {_escape('; '.join(map(str, q.differences.get(c.name, ()))) or 'nothing')}",
            "",
        ]
    if any(arm.acceptance for arm in result.arms):
        depth = max(len(arm.acceptance) for arm in result.arms)
        head = ("draft", *(f"{arm.name}: {arm.label}" for arm in result.arms))
        rows = [
            (str(k + 1), *(pooled(arm.acceptance[k], 3) if k < len(arm.acceptance) else "-" for arm in result.arms))
            for k in range(depth)
        ]
        lines += ["## Acceptance by position in the block, [95%]", "", *_table(head, rows), ""]
    if result.drift is not None:
        lines += ["## Machine", "", _escape(result.drift.words), ""]
    lines += ["## How it was measured", ""]
    lines += [
        f"- {len(result.pairs)} pairs of {q.settings.tokens} tokens, seed {q.settings.seed}, "
        f"{'fixed length' if q.settings.ignore_eos else 'until the end of the text'}, arms in ABBA order by a seeded "
        f"coin",
        f"- command: `{q.command}`" if q.command else "- called from Python",
        *(f"- {key}: {_escape(str(value))}" for key, value in q.environment.items()),
        *(f"- configuration {spec.name}: sha256 {spec.sha256}" for spec in q.specs),
    ]
    return "\n".join(lines) + "\n"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]] | list[tuple[str, str]]) -> list[str]:
    return [
        "| " + " | ".join(map(_escape, head)) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(_escape(cell) for cell in row) + " |" for row in rows),
    ]


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
