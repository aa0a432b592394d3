"""`sparkwright calibrate`: measure what drafting and verifying cost here, and keep it for `cost_aware`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click
from rich.table import Table
from rich.text import Text

from sparkwright.core.cli.shared import (
    ProgressLine,
    config_options,
    json_option,
    model_option,
    print_json,
    read_config,
    stdout,
    warn,
)
from sparkwright.core.contracts import WIDEST_VERIFY, CostCurves

BAR = 32


@click.command()
@model_option
@config_options
@click.option("--context", type=click.IntRange(1), default=256, show_default=True, metavar="N",
              help="Tokens before the rows that are timed.")  # fmt: skip
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=9,
    show_default=True,
    help="Each time is the lower quartile of so many.",
)
@click.option("--prompts", default="code,prose,chat", show_default=True, metavar="SET|FILE",
              help="What confidences are fitted on: sets of `compare`, or a file.")  # fmt: skip
@click.option("--tokens", type=click.IntRange(1), default=128, show_default=True, help="Of each text for the fit.")
@click.option("--fit/--no-fit", default=True, help="Fit the drafter's confidences, if it has any.")
@json_option
@click.pass_context
def calibrate(
    ctx: click.Context, config_file: Path | None, sets: tuple[str, ...], model: str | None, as_json: bool,
    context: int, repeats: int, prompts: str, tokens: int, fit: bool,
) -> None:  # fmt: skip
    """Measure the cost of plain decoding, of verifies of 1..8 rows and of a block of drafts.

    The result is kept in the cache folder under this model, drafter, device and versions; engines with `engine.costs =
    "auto"` use it from then on. If the drafter has confidences, their temperatures are fitted on rounds with whole
    blocks.
    """
    from sparkwright.core import costs
    from sparkwright.core.assembly import assemble, device_name
    from sparkwright.core.audit.identity import changed
    from sparkwright.core.audit.texts import text_from
    from sparkwright.core.calibrate import measure_curves
    from sparkwright.core.confidences import fit_confidences
    from sparkwright.core.store import WeightStore

    config = read_config(ctx, config_file, sets, {} if model is None else {"target.model": (model, "--model")})
    warn(config.warnings)
    config = changed(config, {"engine.costs": "none"})
    store = WeightStore()
    with ProgressLine(not as_json) as line:
        with assemble(config, store=store, progress=line.update) as engine:
            drafter = engine.slots["drafter"].effective
            ids = engine.target.encode(text_from(None))
            facts, drafts = engine.run(lambda parts: (parts.target.facts, parts.drafter.facts))
            room = min(facts.context, drafts.context or facts.context) - WIDEST_VERIFY
            ids = ids[: max(1, min(context, room))]
            curves: CostCurves = engine.run(
                lambda parts: measure_curves(
                    parts.target, parts.drafter if drafts.block else None, ids, repeats=repeats,
                    progress=lambda done, total: line.update("measuring", done, total),
                )
            )  # fmt: skip
        fitted: dict[str, Any] = {"fitted": False, "why": "the drafter has no confidences"}
        if drafts.confidence and drafts.block:
            fitted = {"fitted": False, "why": "--no-fit"}
            if fit:
                fitted = fit_confidences(
                    config, store, prompts, tokens, min(drafts.block, WIDEST_VERIFY - 1), line.update
                )
                curves = attrs.evolve(curves, temperatures=tuple(fitted.get("temperatures", ())))
    device = device_name()
    path = costs.file_for(facts.fingerprint, drafter, device)
    about = {
        "model": str(config.slots["target"].model),
        "fingerprint": facts.fingerprint,
        "drafter": drafter,
        "device": device,
        "context": len(ids),
        "repeats": repeats,
        "confidences": fitted,
    }
    costs.save(path, curves, about)
    if as_json:
        print_json({"file": str(path), "curves": attrs.asdict(curves), "about": about})
        return
    _show(curves, fitted)
    stdout.print(Text(f"kept in {path}"), soft_wrap=True)


def _show(curves: CostCurves, fitted: dict[str, Any]) -> None:
    """The table, with each cost as a bar: the plot."""
    from sparkwright.core.calibrate import LEAST_REACHED

    costs = [("plain decode", curves.plain)]
    costs += [(f"verify of {rows} rows", seconds) for rows, seconds in enumerate(curves.verify, start=1)]
    costs += [("block of drafts", curves.draft)] if curves.draft else []
    most = max(seconds for _, seconds in costs)
    table = Table("what", "ms", "x plain", "", box=None, padding=(0, 2, 0, 0))
    for name, seconds in costs:
        bar = "#" * max(1, round(BAR * seconds / most))
        table.add_row(name, f"{1000 * seconds:.3f}", f"{seconds / curves.plain:.2f}", bar)
    stdout.print(table)
    if not fitted["fitted"]:
        stdout.print(Text(f"confidences not fitted: {fitted['why']}"), soft_wrap=True)
        return
    table = Table("position", "rounds", "temperature", "error before", "after", box=None, padding=(0, 2, 0, 0))
    rows = zip(*(fitted[name] for name in ("reached", "temperatures", "before", "after")), strict=True)
    for k, (reached, *numbers) in enumerate(rows, start=1):
        table.add_row(str(k), str(reached), *(f"{number:.3f}" for number in numbers))
    stdout.print(table)
    stdout.print(
        f"fitted on {fitted['rounds']} rounds with whole blocks; rounds: those that accepted all drafts before"
    )
    if few := [str(k) for k, enough in enumerate(fitted["enough"], start=1) if not enough]:
        which = f"position {few[0]}" if len(few) == 1 else f"positions {', '.join(few)}"
        stdout.print(
            f"too few rounds reached {which} (fewer than {LEAST_REACHED}): left at 1; more --prompts or --tokens help",
            soft_wrap=True,
        )
