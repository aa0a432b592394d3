"""A bundle as one self-contained page: no network, no script, readable in light and dark, on paper and aloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from sparkwright.core.compare.report.html import details, figure, table
from sparkwright.core.compare.report.style import CSS
from sparkwright.core.evidence import plots, view
from sparkwright.core.evidence.bundle import Bundle
from sparkwright.core.evidence.view import Section

MARKS = {"ok": "✓", "not passed": "✗", "failed": "!", "not applicable": "–", "not run": "–"}
"""Beside the word, never instead of it."""
WORDS = {
    "ok": "ok", "not passed": "not passed", "failed": "could not be run", "not applicable": "not applicable",
    "not run": "not run",
}  # fmt: skip
EXTRA = """
.verdict.ok{border-left-color:var(--good)}.verdict.failed,.verdict.not-passed{border-left-color:var(--bad)}
.steps{list-style:none;padding:0;display:grid;gap:10px}
.steps li{background:var(--card);border:1px solid var(--rule);border-left:6px solid var(--open);border-radius:6px;
padding:10px 16px;overflow-wrap:anywhere}
.steps li.ok{border-left-color:var(--good)}.steps li.failed,.steps li.not-passed{border-left-color:var(--bad)}
.steps p{margin:2px 0;color:var(--soft)}.mark{display:inline-block;width:1.3em;font-weight:700}
td{overflow-wrap:anywhere;min-width:4ch}
"""
HEADLINES = (
    ("not passed", "not-passed", "An audit did not pass"),
    ("failed", "failed", "Not every step could be run"),
    ("not run", "open", "Not every step was run"),
    ("not applicable", "open", "Every step ran, but not everything can be checked on this machine"),
)
PLOTS: Mapping[str, tuple[tuple[str, Callable[[Any], str | None], str, str], ...]] = {
    "consistency": (
        (
            "consistency by rows", plots.width_plot, "Differences from decoding row by row",
            "Each forward of a width against decoding row by row, at the largest difference it had. Below the line "
            "rounding explains it; a diamond is a width whose rows read other rows, went to other experts, or differ "
            "by more than rounding.",
        ),
    ),
    "calibrate": (
        (
            "cost curves", plots.cost_plot, "Costs",
            "What a verify costs by its rows, in milliseconds and in plain decodes. The flatter this curve and the "
            "lower the block of drafts, the fewer accepted drafts pay for a round.",
        ),
    ),
    "speed": (
        (
            "ratio by prompt", plots.ratio_by_prompt, "Every pair",
            "Decode rate of speculation over plain decoding for each prompt, both with the same seed. The shaded band "
            "is the 95% interval of all pairs together.",
        ),
        (
            "tau by position", plots.tau_by_position, "tau by position",
            "How much of the mean accepted length the first drafts of a block account for.",
        ),
    ),
}  # fmt: skip
"""By step: name, plot, the table with the same numbers, caption."""


def page(bundle: Bundle) -> str:
    found = view.sections(bundle)
    machine = view.words(bundle.manifest, "machine") or "a machine that is not described"
    title = f"Evidence: {machine}"
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{escape(title)}</title><style>{CSS}{EXTRA}</style></head><body>",
        '<a class="skip" href="#steps">Skip to the steps</a>',
        f"<header><h1>{escape(title)}</h1></header><main>",
        _headline(found),
        _steps(found),
        *(_section(number, section) for number, section in enumerate(found, 1) if section.tables),
        _bundle(bundle),
        "</main><footer><p>Made from the JSON files of a bundle whose hashes were verified. Whoever made the bundle "
        "could have put anything into it: hashes say that it is whole, not that it is true.</p></footer>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _headline(found: list[Section]) -> str:
    said = {section.status for section in found}
    css, head = next(((css, head) for status, css, head in HEADLINES if status in said), ("ok", "Every step ran"))
    notes = [
        f"{WORDS[status]}: {', '.join(s.name for s in found if s.status == status)}"
        for status in view.STATUSES
        if status in said
    ]
    body = "".join(f"<p>{escape(note)}</p>" for note in notes)
    card = f'<div class="verdict {css}"><strong>{escape(head)}</strong>{body}</div>'
    return f'<section aria-label="Outcome">{card}</section>'


def _steps(found: list[Section]) -> str:
    cards = []
    for s in found:
        took = "" if s.seconds is None else f", {s.seconds:,.1f} s"
        head = f'<span class="mark" aria-hidden="true">{MARKS[s.status]}</span><strong>{escape(s.name)}</strong>'
        cards.append(
            f'<li class="{s.status.replace(" ", "-")}">{head}: {escape(WORDS[s.status] + took)}'
            f"<p>{escape(s.summary)}</p></li>"
        )
    return (
        f'<section aria-labelledby="steps"><h2 id="steps">Steps</h2><ul class="steps">{"".join(cards)}</ul></section>'
    )


def _section(number: int, section: Section) -> str:
    """Plots, each with the table of its numbers folded beneath; other tables stand open unless they are long."""
    figures, drawn = "", set()
    for what, draw, caption, words in PLOTS.get(section.name, ()):
        try:
            svg = draw(view.at(section.part, "data"))
        except (ArithmeticError, ValueError, LookupError):  # numbers that are numbers and yet no measurement
            continue
        numbers = next((table(t.caption, t.head, t.rows) for t in section.tables if t.caption == caption), None)
        if svg is not None and numbers is not None:
            figures += figure(what, svg, words, numbers)
            drawn.add(caption)
    body = ""
    for one in section.tables:
        html = table(one.caption, one.head, one.rows)
        body += "" if one.caption in drawn else details(one.caption, html) if one.detail else html
    name = f"step-{number}"
    heading = f"{section.name}: {section.what}" if section.what else section.name
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(heading)}</h2>'
        f"<p>{escape(section.summary)}</p>{figures}{body}</section>"
    )


def _bundle(bundle: Bundle) -> str:
    body = table("The bundle", ("what", "value"), view.overview(bundle))
    listed = view.at(bundle.manifest, "files")
    rows = [
        (view.clean(name, 80), view.words(about, "bytes"), view.words(about, "sha256", most=64))
        for name, about in listed.items()
    ]  # bundle.read has made sure that it is a mapping
    files = details("Files of the bundle", table("Files of the bundle", ("file", "bytes", "sha256"), rows))
    return f'<section aria-labelledby="bundle"><h2 id="bundle">The bundle</h2>{body}{files}</section>'
