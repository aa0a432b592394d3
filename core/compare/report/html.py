"""A comparison as one self-contained page: no network, no script, readable in light and dark, on paper and aloud."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from sparkwright.core.compare.difference import ABSENT
from sparkwright.core.compare.report import md
from sparkwright.core.compare.report.style import CSS
from sparkwright.core.compare.report.svg import ratio_plot, run_plot, stage_plot, tau_plot
from sparkwright.core.compare.verdict import percent

if TYPE_CHECKING:
    from sparkwright.core.compare.analysis import Comparison
    from sparkwright.core.compare.result import CompareResult

KINDS = {
    "faster": "Faster",
    "slower": "Slower",
    "no-difference": "No difference that matters",
    "not-enough": "Not enough pairs",
    "invalid": "No verdict",
}


def number(name: str, value: float, shown: str) -> str:
    """A number with its full value beside the rounded one, under an id (tests hold it against result.json)."""
    full = repr(value) if math.isfinite(value) else ""
    return f'<data id="{escape(name)}" value="{full}">{escape(shown)}</data>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, raw: bool = False) -> str:
    """A table in a region that can be scrolled by keyboard. raw: cells are markup already."""
    cells = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{cell}</th>' if i == 0 else f"<td>{cell}</td>"
            for i, cell in enumerate(row if raw else map(escape, row))
        )
        + "</tr>"
        for row in rows
    )
    columns = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{columns}</tr></thead><tbody>{cells}</tbody></table></div>"
    )


def details(summary: str, body: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def figure(name: str, svg: str, caption: str, data: str) -> str:
    return (
        f'<figure><div class="scroll" role="region" tabindex="0" aria-label="Plot: {escape(name)}">{svg}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure>{details(f'The numbers of this plot: {name}', data)}"
    )


def page(result: CompareResult) -> str:
    q = result.question
    title = "Self-test" if q.stretch else "Comparison: " + ", ".join(spec.label for spec in q.specs[1:])
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>",
        '<a class="skip" href="#arms">Skip to the arms</a>',
        f"<header><h1>{escape(title)}</h1></header><main>",
        _verdicts(result),
        _notes(result),
        _arms(result),
    ]
    for c in result.comparisons:
        parts.append(_ratios(c))
    if any(arm.tau_at for arm in result.arms):
        parts.append(_tau(result))
    if any(arm.stages for arm in result.arms):
        parts.append(_stages(result))
    if any(e.kind == "pair" for e in result.entries):
        parts.append(_runs(result))
    parts += [_differences(result), _gate(result), _method(result), "</main>"]
    parts.append("<footer><p>Raw pairs and both configurations are in result.json, beside this page.</p></footer>")
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _verdicts(result: CompareResult) -> str:
    if result.self_test is not None:
        t = result.self_test
        kind = "slower" if t.low > t.nominal else "faster"
        head = "More false alarms than nominal" if t.low > t.nominal else "False alarms as they should be"
        shown = (
            f'<p class="number">{number("false-alarms", t.rate, str(t.alarms))} of {t.repeats}</p>'
            f"<p>{escape(t.words)}</p>"
        )
        card = f'<div class="verdict {kind}"><strong>{head}</strong>{shown}</div>'
        return f'<section aria-label="Verdict">{card}</section>'
    cards = []
    for c in result.comparisons:
        e = c.decode
        cards.append(
            f'<div class="verdict {c.verdict.kind}"><strong>{escape(KINDS[c.verdict.kind])}: {escape(c.label)}</strong>'
            f'<p class="number">{number(f"ratio-{c.name}", e.ratio, percent(e.ratio))}</p>'
            f"<p>decode rate over the base, interval {number(f'low-{c.name}', e.low, percent(e.low))} to "
            f"{number(f'high-{c.name}', e.high, percent(e.high))}</p><p>{escape(c.verdict.words)}</p></div>"
        )
    body = "".join(cards) or "<p>No pair was measured, so there is no verdict.</p>"
    return f'<section aria-label="Verdict">{body}</section>'


def _notes(result: CompareResult) -> str:
    items = [f"<li>{escape(note)}</li>" for note in result.notes]
    for arm in result.arms:
        items += [f"<li>arm {escape(arm.name)}: {escape(note)}</li>" for note in arm.notes]
    if not result.complete:
        total = len(result.question.plan.groups)
        why = f"Incomplete: {len(result.pairs)} of {total} pairs. {result.stopped}"
        items.insert(0, f'<li class="warning">{escape(why)}</li>')
    return f'<section aria-label="Notes"><ul class="notes">{"".join(items)}</ul></section>' if items else ""


def _arms(result: CompareResult) -> str:
    body = table("The arms over all pairs", md.ARM_HEAD, md.arm_rows(result))
    for c in result.comparisons:
        body += f"<h3>{escape(c.name)}: {escape(c.label)}</h3>"
        body += table(f"{c.name} against the base", ("what", "value"), md.comparison_rows(c))
    return f'<section aria-labelledby="arms"><h2 id="arms">Arms</h2>{body}</section>'


def _ratios(c: Comparison) -> str:
    level = f"{100 * c.decode.level:.4g}%"
    rows = [
        (p.prompt, f"{p.ratio:.4f}", f"{p.low:.4f} to {md.ratio(p.high)}", str(p.pairs))
        for p in sorted(c.prompts, key=lambda p: -p.ratio)
    ]
    data = table(f"Ratio by prompt, {c.label}", ("prompt", "ratio", "interval", "pairs"), rows)
    pairs = table(
        f"Every pair, {c.label}",
        ("pair", "prompt", "base tokens/s", "candidate tokens/s", "ratio", "texts"),
        (
            (
                str(p.index + 1), escape(p.prompt), f"{p.base_rate:.2f}", f"{p.rate:.2f}",
                number(f"pair-{c.name}-{p.index}", p.ratio, f"{p.ratio:.4f}"), "equal" if p.same_text else "differ",
            )
            for p in c.pairs
        ),
        raw=True,
    )  # fmt: skip
    caption = (
        f"Each prompt's ratio with a {level} interval, made from the spread of all pairs: it says what so few pairs "
        "are worth. The shaded band is the interval of all pairs together."
    )
    name = f"ratio by prompt, {c.label}"
    return (
        f'<section aria-labelledby="h-ratio-{c.name}"><h2 id="h-ratio-{c.name}">Ratio by prompt: {escape(c.label)}</h2>'
        f"{figure(name, ratio_plot(c), caption, data + pairs)}</section>"
    )


def _tau(result: CompareResult) -> str:
    rows = []
    for arm in result.arms:
        for k, (t, a) in enumerate(zip(arm.tau_at, arm.acceptance, strict=True), 1):
            shown = number(f"tau-{arm.name}-{k}", t.value, md.pooled(t, 3)) if t is not None else "no drafts"
            rows.append((f"{escape(arm.name)}: {escape(arm.label)}", str(k), shown, escape(md.pooled(a, 3))))
    head = ("arm", "drafts", "tau up to here [95%]", "acceptance at this position [95%]")
    caption = (
        "How much of the mean accepted length the first drafts of a block account for: a curve that is flat at its end "
        "says that the last drafts are not worth drafting. Intervals take the run as their unit."
    )
    svg, data = tau_plot(result.arms), table("tau and acceptance by position", head, rows, raw=True)
    return (
        '<section aria-labelledby="h-tau"><h2 id="h-tau">tau by position</h2>'
        f"{figure('tau by position', svg, caption, data)}</section>"
    )


def _stages(result: CompareResult) -> str:
    rows = [
        (f"{a.name}: {a.label}", *(f"{v:.3f}" for v in (s.draft, s.verify, s.rest)), "yes" if s.apart else "no")
        for a in result.arms
        if (s := a.stages) is not None
    ]
    head = ("arm", "draft ms", "verify ms", "rest ms", "stages timed apart")
    apart = all(a.stages.apart for a in result.arms if a.stages)
    caption = (
        "From runs after the timed ones in which the engine waits between the stages; that wait costs a little, so the "
        "sum can be above what the timed runs took."
        if apart
        else "The engine did not wait between the stages, so verify holds the device's work of drafting as well."
    )
    data = table("Milliseconds per round", head, rows)
    return (
        '<section aria-labelledby="h-stages"><h2 id="h-stages">Time of a round</h2>'
        f"{figure('time of a round', stage_plot(result.arms), caption, data)}</section>"
    )


def _runs(result: CompareResult) -> str:
    rows = [
        (str(i), e.kind, str(e.index + 1), name, e.prompt, f"{run.decode_rate:.2f}" if run.decode_rate else "-")
        for i, (e, name, run) in enumerate(
            ((e, name, run) for e in result.entries if e.kind in ("pair", "reference") for name, run in e.runs.items()),
            1,
        )
    ]
    data = table("Every run in order", ("run", "kind", "number", "arm", "prompt", "tokens/s"), rows)
    drift = result.drift.words if result.drift else "Too few runs to see a drift."
    caption = f"Runs of one pair are joined; the strip shows which arm ran when. {drift[0].upper()}{drift[1:]}."
    return (
        '<section aria-labelledby="h-runs"><h2 id="h-runs">Decode rate along the run</h2>'
        f"{figure('decode rate along the run', run_plot(result.arms, result.entries), caption, data)}</section>"
    )


def _differences(result: CompareResult) -> str:
    rows = [
        (
            f"{name}: {d.key}",
            *(ABSENT if v == ABSENT else json.dumps(v, ensure_ascii=False) for v in (d.base, d.candidate)),
        )
        for name, found in result.question.differences.items()
        for d in found
    ]
    body = (
        table("Every resolved value that differs from the base", ("candidate and key", "base", "candidate"), rows)
        if rows
        else "<p>The arms have the same configuration.</p>"
    )
    return f'<section aria-labelledby="h-diff"><h2 id="h-diff">What differs</h2>{body}</section>'


def _gate(result: CompareResult) -> str:
    rows = []
    for check in result.gate:
        same = "equal" if check.first is None else f"differ from token {check.first} on"
        owed = "owed" if check.owed else "not owed"
        rows.append(
            (
                f"{check.candidate}: {check.prompt}", " / ".join(check.promises), f"{same} ({owed})",
                " / ".join(map(str, check.lengths)), " / ".join(h[:12] for h in check.sha256),
            )
        )  # fmt: skip
    if not rows:
        return ""
    head = ("candidate and prompt", "promises", "texts", "tokens", "sha256 of the tokens")
    body = table("The gate", head, rows)
    return f'<section aria-labelledby="h-gate"><h2 id="h-gate">Gate before timing</h2>{body}</section>'


def _method(result: CompareResult) -> str:
    q = result.question
    rows = [
        ("pairs", f"{len(result.pairs)} of {len(q.plan.groups)}"),
        ("tokens of a run", f"{q.settings.tokens}, {'fixed length' if q.settings.ignore_eos else 'or to the end'}"),
        ("seed", str(q.settings.seed)),
        ("order", "ABBA by a seeded coin; both runs of a pair have the same prompt and the same randomness keys"),
        ("command", q.command or "called from Python"),
        *((key, value if isinstance(value, str) else json.dumps(value)) for key, value in q.environment.items()),
    ]
    configs = "".join(
        details(
            f"Resolved configuration {spec.name}: {spec.label} (sha256 {spec.sha256[:12]})",
            f"<pre>{escape(json.dumps(dict(spec.config), indent=1, ensure_ascii=False, sort_keys=True))}</pre>",
        )
        for spec in q.specs
    )
    body = table("How it was measured", ("what", "value"), rows)
    return f'<section aria-labelledby="h-method"><h2 id="h-method">How it was measured</h2>{body}{configs}</section>'
