"""The memory table of v4-flash-on-a-mac.md: what each conversion of V4-Flash needs, from its config alone.

    python docs/figures/memory.py           write the table into the page
    python docs/figures/memory.py --check   fail if the page holds another

The bytes are those that `sparkwright models inspect` and the loader count: plugins/deepseek_v4 (contract, recipe,
memory) with the numbers of flash.json. Nothing is downloaded and nothing was measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.contract import Stored, parameters, release_form
from sparkwright.plugins.deepseek_v4.memory import GIB, needed, state_bytes
from sparkwright.plugins.deepseek_v4.recipe import Recipe, target_form

HERE = Path(__file__).parent
PAGE = HERE.parent / "v4-flash-on-a-mac.md"
START, END = "<!-- memory: written by docs/figures/memory.py -->\n", "<!-- end of memory -->\n"
CONTEXT = 32768
RECIPES = (
    Recipe("mxfp4", "mxfp8"),
    Recipe("affine4", "affine8"),
    Recipe("affine3", "affine8"),
    Recipe("affine2", "affine8"),
    Recipe("affine2", "affine8", "affine2"),
)
MACS = (64, 96, 128, 192, 256, 512)
"""GiB of memory that such machines are sold with."""
SHARE = 0.75
"""Of a machine's memory, for the model: the rule of the last column."""


def flash() -> ModelConfig:
    raw: dict[str, Any] = json.loads((HERE / "flash.json").read_text(encoding="utf-8"))
    return ModelConfig.from_json(raw)


def stored(config: ModelConfig, recipe: Recipe) -> list[Stored]:
    """Every parameter of the release in the form that `models convert` with this recipe gives it."""
    released = [
        Stored(p, None if p.kind == "plain" else release_form(p, quantised=True), {})
        for p in parameters(config, stages=3)
    ]
    return [Stored(one.parameter, target_form(one, recipe), {}) for one in released]


def gib(count: int) -> str:
    return f"{count / GIB:.1f}"


def table() -> str:
    config = flash()
    state = state_bytes(config, CONTEXT)
    lines = [
        "| experts | dense | drafter's experts | target | drafter | while loading "
        f"| {CONTEXT:,} tokens | in all (GiB) | machine |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for recipe in RECIPES:
        every = stored(config, recipe)
        target = [one for one in every if not one.parameter.name.startswith("mtp.")]
        whole, alone = needed(every, expand=False), needed(target, expand=False)
        total = whole.peak + state
        fits = next((f"{size}" for size in MACS if total <= size * GIB * SHARE), "none")
        sizes = (alone.weights, whole.weights - alone.weights, whole.staging, state, total)
        cells = (recipe.experts, recipe.dense, recipe.drafter_experts, *map(gib, sizes), fits)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main(check: bool) -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(START)
    now, after = rest.split(END)
    if check:
        return int(now.strip() != table().strip())
    PAGE.write_text(f"{before}{START}\n{table()}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
