"""Draws the figures of these pages: SVG from the JSON of measurements, nothing else.

    python docs/figures/draw.py           write the figures
    python docs/figures/draw.py --check   fail if what is committed differs from what would be written

The files are readable in light and dark: each carries its own background, and follows the reader's preference. Numbers
come from docs/benchmarks, curves that are computed from the code that uses them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sparkwright.plugins.schedulers.curves import FLASH_DRAFT, FLASH_VERIFY

HERE = Path(__file__).parent
DATA = HERE.parent / "benchmarks"
WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 210, 44, 48

STYLE = """
  .back{fill:#ffffff} text{fill:#24292f;font:13px system-ui,sans-serif} .title{font-weight:600}
  .grid{stroke:#d0d7de;stroke-width:1} .axis{stroke:#57606a;stroke-width:1.2} .small{font-size:11px}
  .line{fill:none;stroke-width:2.2} .c0{stroke:#0b62c4} .c1{stroke:#b3541e} .c2{stroke:#1a7f37} .c3{stroke:#8250df}
  .c4{stroke:#57606a} .f0{fill:#0b62c4} .f1{fill:#b3541e} .f2{fill:#1a7f37} .f3{fill:#8250df} .f4{fill:#57606a}
  .dash{stroke-dasharray:5 4} .whisker{stroke:#24292f;stroke-width:1.6}
  @media (prefers-color-scheme:dark){
    .back{fill:#131416} text{fill:#e6edf3} .grid{stroke:#30363d} .axis{stroke:#8b949e} .whisker{stroke:#e6edf3}
    .c0{stroke:#58a6ff} .c1{stroke:#f0883e} .c2{stroke:#56d364} .c3{stroke:#d2a8ff} .c4{stroke:#8b949e}
    .f0{fill:#58a6ff} .f1{fill:#f0883e} .f2{fill:#56d364} .f3{fill:#d2a8ff} .f4{fill:#8b949e}
  }
"""


class Plot:
    """A panel with two axes; x and y are in the units of the data."""

    def __init__(self, title: str, x: tuple[float, float], y: tuple[float, float], x_label: str, y_label: str) -> None:
        self.title, self.x, self.y = title, x, y
        self.parts: list[str] = []
        self._labels = 0
        middle = (LEFT + WIDTH - RIGHT) / 2
        self.text(middle, HEIGHT - 10, x_label, "middle", "small")
        self.parts.append(
            f'<text class="small" transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
            f'text-anchor="middle">{escape(y_label)}</text>'
        )

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def text(self, x: float, y: float, words: str, anchor: str = "start", style: str = "") -> None:
        kind = f' class="{style}"' if style else ""
        self.parts.append(f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>')

    def rule(self, start: tuple[float, float], end: tuple[float, float], style: str) -> None:
        (x1, y1), (x2, y2) = start, end
        self.parts.append(f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def y_axis(self, ticks: Sequence[float], show: Callable[[float], str]) -> None:
        for tick in ticks:
            self.rule(self.at(self.x[0], tick), self.at(self.x[1], tick), "grid")
            x, y = self.at(self.x[0], tick)
            self.text(x - 6, y + 4, show(tick), "end", "small")
        self.rule(self.at(self.x[0], self.y[0]), self.at(self.x[1], self.y[0]), "axis")

    def x_axis(self, ticks: Sequence[float], show: Callable[[float], str]) -> None:
        for tick in ticks:
            x, y = self.at(tick, self.y[0])
            self.text(x, y + 17, show(tick), "middle", "small")

    def line(self, points: Sequence[tuple[float, float]], color: int, dots: bool = True, style: str = "") -> None:
        placed = [self.at(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        self.parts.append(f'<polyline class="line c{color} {style}" points="{path}"/>')
        if dots:
            self.parts += [f'<circle class="f{color}" cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>' for x, y in placed]

    def bar(self, x: float, width: float, height: float, color: int) -> None:
        (x1, y1), (x2, y2) = self.at(x - width / 2, height), self.at(x + width / 2, self.y[0])
        self.parts.append(
            f'<rect class="f{color}" x="{x1:.1f}" y="{y1:.1f}" width="{x2 - x1:.1f}" height="{y2 - y1:.1f}" rx="2"/>'
        )

    def legend(self, words: str, color: int) -> None:
        x, y = WIDTH - RIGHT + 14, TOP + 12 + 20 * self._labels
        self.parts.append(f'<rect class="f{color}" x="{x}" y="{y - 9}" width="11" height="11" rx="2"/>')
        self.text(x + 17, y + 1, words, style="small")
        self._labels += 1

    def svg(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<style>{STYLE}</style>\n"
            f'<rect class="back" width="{WIDTH}" height="{HEIGHT}" rx="6"/>\n'
            f'<text class="title" x="{LEFT}" y="26">{escape(self.title)}</text>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def percent(value: float) -> str:
    return f"{value:.0%}"


def data(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


def acceptance() -> str:
    """Conditional acceptance of each draft, with and without the Markov chain (bundled model, code, T = 1)."""
    found = data("demo_acceptance.json")
    plot = Plot(
        "Acceptance by position: the Markov chain", (0.7, 5.3), (0.0, 0.8), "draft of the block",
        "accepted, given those before",
    )  # fmt: skip
    plot.y_axis([0, 0.2, 0.4, 0.6, 0.8], percent)
    plot.x_axis(range(1, 6), str)
    drafters = (("dspark", "DSpark"), ("no_markov", "trained without"), ("bias_off", "switched off"))
    for color, (drafter, words) in enumerate(drafters):
        (row,) = (
            r for r in found["rounds"] if (r["drafter"], r["kind"], r["temperature"]) == (drafter, "code", 1.0)
        )  # fmt: skip
        plot.line([(i + 1, value) for i, value in enumerate(row["acceptance_by_slot"])], color)
        plot.legend(f"{words}, tau {row['tau']:.2f}", color)
    return plot.svg()


def overlap() -> str:
    """Distinct experts of a layer that n neighbouring tokens touch (bundled model, held-out text)."""
    found = data("demo_route_overlap.json")
    rows = found["rows"]
    most = len(rows)
    plot = Plot(
        "Experts that neighbouring tokens touch", (0.7, most + 0.3), (2, 11), "rows of a verify",
        f"experts of a layer, of {found['experts']}",
    )  # fmt: skip
    plot.y_axis(range(2, 12, 2), lambda v: f"{v:.0f}")
    plot.x_axis(range(1, most + 1), str)
    for color, (key, words) in enumerate(
        (("score_layers", "routed by score"), ("hash_layers", "routed by token"), ("uniform", "unrelated rows"))
    ):
        plot.line([(row["tokens"], row[key]) for row in rows], color, style="dash" if key == "uniform" else "")
        plot.legend(words, color)
    return plot.svg()


def pays() -> str:
    """Speed over plain decoding by acceptance, for Flash's bytes without overlap: the arithmetic of cost-model.md."""
    plot = Plot(
        "When drafting pays: V4-Flash's bytes",
        (0.3, 1.0),
        (0.4, 2.3),
        "acceptance of each draft",
        "speed over plain decoding",
    )
    plot.y_axis([0.5, 1.0, 1.5, 2.0], lambda v: f"{v:.1f}")
    plot.x_axis([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0], percent)
    for color, n in enumerate((1, 2, 3, 5)):
        cost = FLASH_DRAFT + FLASH_VERIFY[n]
        steps = [0.3 + 0.01 * i for i in range(71)]
        plot.line([(a, sum(a**k for k in range(n + 1)) / cost) for a in steps], color, dots=False)
        plot.legend(f"{n} draft{'s' if n > 1 else ''}, {cost:.2f} decodes", color)
    plot.rule(plot.at(0.3, 1.0), plot.at(1.0, 1.0), "axis")
    return plot.svg()


def plain_against_speculative() -> str:
    """README's picture: one real `sparkwright compare` of a drafter with plain decoding (kept by readme.py)."""
    found = data("readme_compare.json")
    speculative, plain = found["arms"]
    rates = [arm["decode_rate"] for arm in (plain, speculative)]
    highest = max(rate["high"] for rate in rates)
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200) if highest / s <= 6)
    top = 1.2 * highest
    plot = Plot(
        f"Plain against speculative: {found['model']}", (0.4, 9.0), (0, top), "", "tokens/s, median and quartiles"
    )
    plot.y_axis([step * i for i in range(int(top / step) + 1)], lambda value: f"{value:.0f}")
    for place, (words, rate) in enumerate(zip(("plain", "speculative"), rates, strict=True)):
        x = 1.1 + 1.2 * place
        plot.bar(x, 0.8, rate["median"], 4 - 4 * place)
        plot.rule(plot.at(x, rate["low"]), plot.at(x, rate["high"]), "whisker")
        plot.x_axis([x], lambda _, words=words: words)  # type: ignore[misc]
        plot.legend(f"{words}: {rate['median']:.1f} tokens/s", 4 - 4 * place)
    for k, accepted in enumerate(speculative["acceptance"], start=1):
        x = 3.2 + k
        plot.bar(x, 0.7, accepted["value"] * top / 1.2, 2)
        above, level = plot.at(x, accepted["value"] * top / 1.2)
        plot.text(above, level - 5, percent(accepted["value"]), "middle", "small")
        plot.x_axis([x], lambda _, k=k: f"draft {k}")  # type: ignore[misc]
    plot.legend("accepted, by position", 2)
    ratio = 1 / found["decode"]["ratio"]
    low, high = 1 / found["decode"]["high"], 1 / found["decode"]["low"]
    plot.text(
        LEFT, HEIGHT - 10,
        f"speculative over plain: {ratio:.2f} (95 %: {low:.2f} to {high:.2f}, {found['decode']['n']} pairs); "
        f"tokens a round that drafted: {speculative['tau']['value']:.2f}",
        style="small",
    )  # fmt: skip
    return plot.svg()


FIGURES: dict[str, Callable[[], str]] = {"acceptance.svg": acceptance, "overlap.svg": overlap, "pays.svg": pays}
if (DATA / "readme_compare.json").is_file():
    FIGURES["plain-against-speculative.svg"] = plain_against_speculative


def main(check: bool) -> int:
    """Write the figures, or report which differ; returns the exit status."""
    stale = []
    for name, draw in FIGURES.items():
        path, text = HERE / name, draw()
        if check and (not path.is_file() or path.read_text(encoding="utf-8") != text):
            stale.append(name)
        elif not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"out of date: {', '.join(stale)}; run python docs/figures/draw.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
