"""The plots of a bundle as inline SVG: costs by rows, consistency by rows, ratio by prompt, tau by position.

Drawn with the pieces and in the style of a comparison's report. Each takes what `view` has made sure of and gives None
where the numbers make no plot; beside each stands a table with the same numbers.
"""

from __future__ import annotations

import math
from typing import Any

from sparkwright.core.compare.analysis import ArmSummary, Comparison, PromptRatio
from sparkwright.core.compare.report.svg import WIDTH, _figure, _line, _text, mark, ratio_plot, tau_plot, ticks
from sparkwright.core.compare.statistics import Estimate, Pooled
from sparkwright.core.compare.verdict import Verdict
from sparkwright.core.evidence import view

LEAST_RATIO, LARGEST_RATIO = 1e-3, 1e3


def cost_plot(data: Any) -> str | None:
    """Milliseconds of verifies of 1, 2, ... rows as a curve from zero, a block of drafts as a line across."""
    found = view.costs(data)
    if found is None:
        return None
    plain, verify, draft = found
    left, right, top, height = 70.0, 185.0, 26.0, 330.0
    bottom = height - 52
    marks = ticks(0.0, 1000 * max(*verify, draft, plain))

    def x(rows: int) -> float:
        return left + 30 + (rows - 1) / max(1, len(verify) - 1) * (WIDTH - left - right - 60)

    def y(milliseconds: float) -> float:
        return bottom - milliseconds / marks[-1] * (bottom - top)

    body = [_line(left, y(t), WIDTH - right, y(t), "grid") for t in marks]
    body += [_text(left - 8, y(t) + 4, f"{t:g}", "tick", "end") for t in marks]
    body += [_text(x(k), bottom + 18, str(k), "tick", "middle") for k in range(1, len(verify) + 1)]
    middle = left + (WIDTH - left - right) / 2
    body.append(_text(middle, bottom + 40, "rows of a verify (1 is a plain decode)", "axis", "middle"))
    body.append(_text(left, top - 12, "milliseconds", "axis"))
    points = " ".join(f"{x(k):.1f},{y(1000 * v):.1f}" for k, v in enumerate(verify, 1))
    body.append(f'<polyline points="{points}" class="curve arm0"/>')
    for k, v in enumerate(verify, 1):
        tip = f"{k} rows: {1000 * v:.3f} ms, {v / plain:.2f} plain decodes"
        body.append(mark(0, x(k), y(1000 * v), "arm0", tip))
        body.append(_text(x(k), y(1000 * v) - 10, f"{v / plain:.2f}x", "value", "middle"))
    body.append(_text(WIDTH - right + 10, y(1000 * verify[-1]) + 4, "verify", "label strong"))
    if draft:
        body.append(_line(left, y(1000 * draft), WIDTH - right, y(1000 * draft), "whisker arm1"))
        at = y(1000 * draft) + 4
        at += 16 * (abs(at - 4 - y(1000 * verify[-1])) < 14)  # clear of the other label
        body.append(_text(WIDTH - right + 10, at, f"block of drafts {draft / plain:.2f}x", "label strong"))
    description = f"A plain decode takes {1000 * plain:.3f} ms. " + "; ".join(
        f"{k} rows {v / plain:.2f} times that" for k, v in enumerate(verify, 1)
    )
    return _figure("costs", "Cost of a verify by its rows", description, height, body)


def width_plot(data: Any) -> str | None:
    """Largest difference of the logits from decoding, by mode and rows, on a log axis with what rounding explains."""
    widths = view.width_rows(data)
    bound = view.number(data, "rounding")
    if not widths or bound is None or not 1e-15 < bound < 1e15:
        return None
    left, right, top, height = 70.0, 30.0, 44.0, 350.0
    bottom = height - 64
    seen = [w[2] for w in widths if 0 < w[2] < 1e15] + [bound]
    low = math.floor(math.log10(max(min(seen), bound * 1e-6))) - 1  # its line stands for "equal", too
    high = math.ceil(math.log10(max(seen))) + 1

    def y(value: float) -> float:
        power = low if value <= 0 else high if math.isinf(value) else min(max(math.log10(value), low), high)
        return bottom - (power - low) / (high - low) * (bottom - top)

    step = (WIDTH - left - right) / len(widths)
    every = max(1, (high - low) // 8)
    body = []
    for power in range(low, high + 1, every):
        shown = "equal" if power == low else f"1e{power}"
        body.append(_line(left, y(10.0**power), WIDTH - right, y(10.0**power), "grid"))
        body.append(_text(left - 8, y(10.0**power) + 4, shown, "tick", "end"))
    body.append(_line(left, y(bound), WIDTH - right, y(bound), "reference"))
    body.append(_text(WIDTH - right, y(bound) - 6, f"rounding explains up to {bound:.3g}", "tick", "end"))
    body.append(_text(left, 14, "largest difference of a logit from decoding row by row (log scale)", "axis"))
    for i, (mode, rows, largest, position, compared, ties, structural, numeric) in enumerate(widths):
        at = left + (i + 0.5) * step
        wrong = structural + numeric
        what = (
            f"{structural} structural, {numeric} numeric" if wrong else "within rounding" if largest else "equal bits"
        )
        tip = f"{mode} of {rows} rows: {largest:.3g} at position {position}, {compared} compared, {what}, {ties} ties"
        body.append(_line(at, bottom, at, y(largest), "whisker"))
        body.append(mark(3 if wrong else 0, at, y(largest), "arm5" if wrong else "arm2", tip, 7.0 if wrong else 5.0))
        body.append(_text(at, bottom + 18, str(rows), "tick", "middle"))
    start = 0
    for i in range(1, len(widths) + 1):
        if i == len(widths) or widths[i][0] != widths[start][0]:
            middle = left + (start + i) / 2 * step
            body.append(_line(left + start * step + 6, bottom + 26, left + i * step - 6, bottom + 26, "join"))
            body.append(_text(middle, bottom + 44, f"{widths[start][0]}, rows", "axis", "middle"))
            start = i
    bad = [f"{w[0]} of {w[1]} rows" for w in widths if w[6] + w[7]]
    description = f"Beyond rounding: {', '.join(bad)}." if bad else "Every width is within what rounding explains."
    return _figure("widths", "Consistency by rows", description, height, body)


def ratio_by_prompt(data: Any) -> str | None:
    """The comparison's own plot of ratios, from the bundle's numbers."""
    c = view.at(data, "comparisons", 0)
    estimate = _estimate(view.at(c, "decode"))
    if estimate is None:
        return None
    prompts = []
    for p in view.items(c, "prompts")[:60]:
        ratio, pairs = _ratio(view.number(p, "ratio")), view.number(p, "pairs")
        if ratio is not None:
            low, high = _interval(p)
            prompts.append(PromptRatio(view.words(p, "prompt", most=60), ratio, low, high, int(pairs or 1)))
    if not prompts:
        return None
    wins, losses, ties = (int(min(max(view.number(c, k) or 0, 0), 1e6)) for k in ("wins", "losses", "ties"))
    comparison = Comparison(
        name="B", label="speculative decoding", decode=estimate, prefill=None, p_adjusted=1.0, wilcoxon=1.0, wins=wins,
        losses=losses, ties=ties, detectable=0.0, verdict=Verdict("not-enough", ""), pairs=(), prompts=tuple(prompts),
        same_texts=0, texts_owed=False,
    )  # fmt: skip
    return ratio_plot(comparison)


def tau_by_position(data: Any) -> str | None:
    """The comparison's own plot of accepted lengths."""
    arms = []
    for name, arm in zip("AB", view.items(data, "arms")[:2], strict=False):
        tau_at = tuple(_pooled(t) for t in view.items(arm, "tau_at")[:16])
        label = view.words(arm, "label", most=40)
        arms.append(
            ArmSummary(
                name=name, label=label, config_sha256="", promise="", decode_rate=None, prefill_rate=None,
                tau=_pooled(view.at(arm, "tau")), acceptance=(), tau_at=tau_at, rounds=0, rounds_without_drafts=0,
                stages=None, notes=(),
            )
        )  # fmt: skip
    return tau_plot(arms) if any(t is not None for arm in arms for t in arm.tau_at) else None


def _ratio(value: float | None) -> float | None:
    return value if value is not None and LEAST_RATIO < value < LARGEST_RATIO else None


def _interval(data: Any) -> tuple[float, float]:
    """Ends of an interval of ratios; what is missing or wild is without bound (the plot cuts it at its edge)."""
    low, high = view.number(data, "low"), view.number(data, "high")
    return (low if low is not None and 0 < low < 1e9 else 1e-9, high if high is not None and 0 < high < 1e9 else 1e9)


def _estimate(data: Any) -> Estimate | None:
    ratio = _ratio(view.number(data, "ratio"))
    if ratio is None:
        return None
    low, high = _interval(data)
    return Estimate(ratio, low, high, 1.0, 0.95, 0, 0.0, "")


def _pooled(data: Any) -> Pooled | None:
    value = view.number(data, "value")
    if value is None or not 0 <= value < 100:
        return None
    low, high = view.number(data, "low"), view.number(data, "high")
    sane = low is not None and high is not None and 0 <= low <= high
    return Pooled(value, low if sane and low is not None else -math.inf, min(high or 0.0, 100.0) if sane else math.inf)
