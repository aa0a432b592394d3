"""The four plots of a report as inline SVG: no library, no script, colours from the page's style sheet.

Every plot has a title and a description for screen readers, says in its marks what a hover shows, and stands beside a
table with the same numbers; colour is never the only thing that tells two arms apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from sparkwright.core.compare.analysis import ArmSummary, Comparison
from sparkwright.core.compare.store import Entry
from sparkwright.core.compare.verdict import percent

WIDTH = 860


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten apart) that cover [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def ratio_ticks(low: float, high: float) -> list[float]:
    """Marks of a log axis that cover [low, high]: round steps if it is narrow, else 1, 2, 5 times powers of ten."""
    if high / low < 3:
        return [t for t in ticks(low, high) if t > 0]
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    round_ = [round(m * 10.0**k, 12) for k in powers for m in (1, 2, 5)]
    return [
        max(t for t in round_ if t <= low),
        *(t for t in round_ if low < t < high),
        min(t for t in round_ if t >= high),
    ]


def _figure(name: str, title: str, description: str, height: float, body: Sequence[str]) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{"".join(body)}</svg>'
    )


def _text(x: float, y: float, text: str, css: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, css: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{css}"/>'


def mark(shape: int, x: float, y: float, css: str, tip: str, size: float = 5.0) -> str:
    """A point of arm number `shape`: circle, square, triangle, diamond, then again; `tip` is what a hover says."""
    s, d = size, 1.3 * size
    drawn = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s:.1f}"',
        f'<rect x="{x - s * 0.9:.1f}" y="{y - s * 0.9:.1f}" width="{1.8 * s:.1f}" height="{1.8 * s:.1f}"',
        f'<path d="M{x:.1f} {y - 1.2 * s:.1f}l{1.2 * s:.1f} {2.1 * s:.1f}h{-2.4 * s:.1f}z"',
        f'<path d="M{x:.1f} {y - d:.1f}l{d:.1f} {d:.1f}l{-d:.1f} {d:.1f}l{-d:.1f} {-d:.1f}z"',
    )[shape % 4]
    return f'{drawn} class="{css}"><title>{escape(tip)}</title></{drawn[1:].split(" ", 1)[0]}>'


def _legend(arms: Sequence[ArmSummary], x: float, y: float) -> list[str]:
    drawn = []
    for number, arm in enumerate(arms):
        label = f"{arm.name}: {arm.label}"
        drawn += [mark(number, x + 6, y - 4, f"arm{number % 6}", label), _text(x + 18, y, label, "label")]
        x += 40 + 7.2 * len(label)
    return drawn


def ratio_plot(c: Comparison) -> str:
    """Ratio of decode rates for each prompt with its interval, sorted, on a log axis; the overall one on top."""
    rows = sorted(c.prompts, key=lambda p: -p.ratio)
    left, right, top, step = 190.0, 84.0, 46.0, 22.0  # right: room for "+160.0%"
    height = top + (len(rows) + 1) * step + 44
    ends = [p.ratio for p in rows] + [c.decode.ratio, *(v for v in (c.decode.low, c.decode.high) if 0.01 < v < 100)]
    room = max(1.02, max(ends) / min(ends)) ** 0.15  # whiskers that go far out are cut at the edge
    marks = ratio_ticks(min(*ends, 0.99) / room, max(*ends, 1.01) * room)
    low, high = marks[0], marks[-1]

    def x(value: float) -> float:
        share = (math.log(min(max(value, low), high)) - math.log(low)) / (math.log(high) - math.log(low))
        return left + share * (WIDTH - left - right)

    bottom = height - 40
    body = [_line(x(t), top - 8, x(t), bottom, "grid") for t in marks]
    body += [_text(x(t), bottom + 16, f"{t:g}", "tick", "middle") for t in marks]
    body += [
        _line(x(1), top - 12, x(1), bottom, "reference"),
        _text(x(1), top - 20, "equal", "tick", "middle"),
        _text((left + WIDTH - right) / 2, bottom + 34, "decode rate, candidate / base (log scale)", "axis", "middle"),
    ]
    e, y = c.decode, top + 6
    body += [
        f'<rect x="{x(e.low):.1f}" y="{top - 8:.1f}" width="{max(1.0, x(e.high) - x(e.low)):.1f}" '
        f'height="{bottom - top + 8:.1f}" class="band"/>',
        _text(left - 12, y + 4, "all pairs", "label strong", "end"),
        _line(x(e.low), y, x(e.high), y, "whisker overall"),
        mark(3, x(e.ratio), y, "overall", f"all pairs: {e.ratio:.4f} [{e.low:.4f}, {e.high:.4f}]", 6.5),
        _text(WIDTH - right + 10, y + 4, percent(e.ratio), "value strong"),
    ]
    for number, p in enumerate(rows, 1):
        y = top + 6 + number * step
        shown = p.prompt if len(p.prompt) <= 25 else p.prompt[:24] + "…"
        tip = f"{p.prompt}: {p.ratio:.4f} [{p.low:.4f}, {p.high:.4f}], {p.pairs} pair(s)"
        body += [
            _text(left - 12, y + 4, shown, "label", "end"),
            _line(x(p.low), y, x(p.high), y, "whisker"),
            mark(0, x(p.ratio), y, "point", tip, 4.5),
            _text(WIDTH - right + 10, y + 4, percent(p.ratio), "value"),
        ]
    description = (
        f"Overall ratio {e.ratio:.4f}, interval {e.low:.4f} to {e.high:.4f}. {c.wins} pairs faster, {c.losses} slower, "
        f"{c.ties} ties. The table below lists every prompt."
    )
    return _figure(f"ratio-{c.name}", f"Decode rate of {c.label} over the base, by prompt", description, height, body)


def tau_plot(arms: Sequence[ArmSummary]) -> str:
    """tau that the first k drafts of the block account for, with intervals."""
    left, right, top, height = 60.0, 20.0, 40.0, 320.0
    bottom = height - 50
    depth = max(len(arm.tau_at) for arm in arms)
    known = [t for arm in arms for t in arm.tau_at if t is not None]
    highest = max([1.5, *(t.high if math.isfinite(t.high) else t.value for t in known)])
    marks = [t for t in ticks(1.0, highest) if t >= 1.0]
    top_value = marks[-1]

    def x(k: float) -> float:
        return left + 12 + k / max(1, depth) * (WIDTH - left - right - 40)

    def y(value: float) -> float:
        return bottom - (min(max(value, 1.0), top_value) - 1.0) / (top_value - 1.0) * (bottom - top)

    body = [_line(left, y(t), WIDTH - right, y(t), "grid") for t in marks]
    body += [_text(left - 8, y(t) + 4, f"{t:g}", "tick", "end") for t in marks]
    body += [_text(x(k), bottom + 18, str(k), "tick", "middle") for k in range(depth + 1)]
    body += [
        _text(left + (WIDTH - left - right) / 2, bottom + 38, "drafts of the block that are counted", "axis", "middle"),
        *_legend(arms, left, 20),
    ]
    for number, arm in enumerate(arms):
        shift = (number - (len(arms) - 1) / 2) * 9
        points = [(0, 1.0), *((k + 1, t.value) for k, t in enumerate(arm.tau_at) if t is not None)]
        if len(points) == 1:  # an arm that never drafts: one token a round, whatever the block
            points.append((depth, 1.0))
            body.append(mark(number, x(0), y(1.0), f"arm{number % 6}", f"{arm.name}: never drafts, tau 1"))
        path = " ".join(f"{x(k) + shift * (k > 0):.1f},{y(v):.1f}" for k, v in points)
        body.append(f'<polyline points="{path}" class="curve arm{number % 6}"/>')
        for k, t in enumerate(arm.tau_at, 1):
            if t is not None:
                at = x(k) + shift
                if math.isfinite(t.low):
                    body.append(_line(at, y(t.low), at, y(t.high), f"whisker arm{number % 6}"))
                body.append(
                    mark(number, at, y(t.value), f"arm{number % 6}", f"{arm.name}, {k} drafts: tau {t.value:.3f}")
                )
    description = "; ".join(
        f"{arm.name} ({arm.label}): {'tau ' + format(arm.tau.value, '.3f') if arm.tau else 'never drafts'}"
        for arm in arms
    )
    return _figure("tau", "Mean accepted length by position in the block", description, height, body)


def stage_plot(arms: Sequence[ArmSummary]) -> str:
    """Milliseconds of a round, split into draft, verify and rest: one bar an arm."""
    left, right, top, step = 190.0, 80.0, 44.0, 46.0
    height = top + len(arms) * step + 50
    bottom = height - 44
    totals = [a.stages.draft + a.stages.verify + a.stages.rest for a in arms if a.stages]
    marks = ticks(0.0, max([*totals, 1e-9]))

    def x(value: float) -> float:
        return left + value / marks[-1] * (WIDTH - left - right)

    body = [_line(x(t), top - 8, x(t), bottom, "grid") for t in marks]
    body += [_text(x(t), bottom + 16, f"{t:g}", "tick", "middle") for t in marks]
    body.append(_text(left + (WIDTH - left - right) / 2, bottom + 34, "milliseconds per round", "axis", "middle"))
    for number, name in enumerate(("draft", "verify", "rest")):
        at = left + number * 100
        body += [
            f'<rect x="{at:.0f}" y="10" width="14" height="14" class="stage-{name}"/>',
            _text(at + 20, 22, name, "label"),
        ]
    for number, arm in enumerate(arms):
        y = top + number * step
        label = f"{arm.name}: {arm.label}"
        body.append(_text(left - 12, y + 20, label if len(label) <= 26 else label[:25] + "…", "label", "end"))
        if arm.stages is None:
            body.append(_text(left + 6, y + 20, "not timed", "tick"))
            continue
        at = 0.0
        for name in ("draft", "verify", "rest"):
            value = getattr(arm.stages, name)
            width = x(at + value) - x(at)
            if width > 0.2:
                body.append(
                    f'<rect x="{x(at):.1f}" y="{y:.1f}" width="{max(0.5, width - 1.5):.1f}" height="28" '
                    f'class="stage-{name}">'
                    f"<title>{escape(f'{label}, {name}: {value:.3f} ms')}</title></rect>"
                )
            if width > 46:
                body.append(_text(x(at) + width / 2, y + 19, f"{value:.2f}", "inside", "middle"))
            at += value
        body.append(_text(x(at) + 8, y + 20, f"{at:.2f}", "value"))
    description = "; ".join(
        f"{a.name}: draft {a.stages.draft:.3f}, verify {a.stages.verify:.3f}, rest {a.stages.rest:.3f} ms"
        for a in arms
        if a.stages
    )
    return _figure("stages", "Time of a round by stage", description or "not timed", height, body)


def run_plot(arms: Sequence[ArmSummary], entries: Sequence[Entry]) -> str:
    """Decode rate of every run in the order they were made; runs of a pair are joined; the strip shows the order."""
    number = {arm.name: i for i, arm in enumerate(arms)}
    runs = [
        (entry, name, run.decode_rate)
        for entry in entries
        if entry.kind in ("pair", "reference")
        for name, run in entry.runs.items()
        if run.decode_rate is not None
    ]
    left, right, top, height = 60.0, 20.0, 62.0, 352.0 + 12 * len(arms)
    bottom = height - 48 - 12 * len(arms)
    marks = ticks(0.0, max([rate for _, _, rate in runs], default=1.0))

    def x(i: float) -> float:
        return left + 8 + (i + 0.5) / max(1, len(runs)) * (WIDTH - left - right - 8)

    def y(value: float) -> float:
        return bottom - value / marks[-1] * (bottom - top)

    body = [_line(left, y(t), WIDTH - right, y(t), "grid") for t in marks]
    body += [_text(left - 8, y(t) + 4, f"{t:g}", "tick", "end") for t in marks]
    body += _legend(arms, left, 20)
    legend_end = left + sum(40 + 7.2 * len(f"{a.name}: {a.label}") for a in arms)
    body += [mark(0, legend_end + 6, 16, "hollow", "reference"), _text(legend_end + 18, 20, "reference run", "label")]
    body.append(_text(left, top - 12, "tokens per second", "axis"))
    joined: dict[int, list[str]] = {}
    for i, (entry, _, rate) in enumerate(runs):
        if entry.kind == "pair":
            joined.setdefault(entry.index, []).append(f"{x(i):.1f},{y(rate):.1f}")
    body += [f'<polyline points="{" ".join(points)}" class="join"/>' for points in joined.values()]
    wide = (WIDTH - left - right - 8) / max(1, len(runs))
    size = max(2.0, min(5.0, wide * 0.6))
    for i, (entry, name, rate) in enumerate(runs):
        tip = f"run {i + 1}, {entry.kind} {entry.index + 1}, arm {name}, prompt {entry.prompt}: {rate:.2f} tokens/s"
        css = "hollow" if entry.kind == "reference" else f"arm{number[name] % 6}"
        body.append(mark(number[name], x(i), y(rate), css, tip, size))
        strip = bottom + 12 + 12 * number[name]
        if entry.kind == "pair":
            body.append(
                f'<rect x="{x(i) - wide * 0.42:.1f}" y="{strip:.1f}" width="{wide * 0.84:.1f}" height="10" '
                f'class="arm{number[name] % 6}"/>'
            )
    body += [_text(left - 8, bottom + 21 + 12 * i, arm.name, "tick", "end") for i, arm in enumerate(arms)]
    axis = f"runs 1 to {len(runs)}, in the order they were made"
    body.append(_text((left + WIDTH - right) / 2, height - 8, axis, "axis", "middle"))
    order = " ".join(name for entry, name, _ in runs if entry.kind == "pair")
    description = f"{len(runs)} runs; the arms in order: {order}"
    return _figure("runs", "Decode rate along the run", description, height, body)
