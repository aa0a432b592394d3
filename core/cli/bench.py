"""`sparkwright bench`: where one configuration wins and loses against plain decoding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from sparkwright.core.cli.shared import ProgressLine, json_option, print_json, stdout
from sparkwright.core.compare.report import md

if TYPE_CHECKING:
    from sparkwright.core.bench import BenchResult


class _Numbers(click.ParamType):  # type: ignore[type-arg]
    """Numbers with commas between them."""

    name = "numbers"

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(self._kind(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of numbers such as 0,1", param, ctx)


@click.command()
@click.argument("config", required=False, type=click.Path(path_type=Path), metavar="[CONFIG.toml]")
@click.option("--model", metavar="PATH", help="The model folder (same as --set target.model=PATH).")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a value. Repeatable.")
@click.option("--prompts", default="code,prose,chat", show_default=True, metavar="SETS|FILE", help="As for compare.")
@click.option("--temps", "temperatures", type=_Numbers(float), default="0,1", show_default=True, metavar="T,T,...")
@click.option("--contexts", type=_Numbers(int), default="0", show_default=True, metavar="N,N,...",
              help="Prompt lengths in tokens; 0 leaves prompts as they are.")  # fmt: skip
@click.option("--repeats", type=int, default=4, show_default=True, help="Prompts for each combination.")
@click.option("--tokens", type=int, default=64, show_default=True, help="Tokens of each run.")
@click.option("--seed", type=int, default=0, show_default=True)
@json_option
def bench(config: Path | None, model: str | None, sets: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Measure CONFIG over kinds of prompts, temperatures and context lengths, with plain decoding beside it.

    Every rate comes with its spread, and every ratio is of runs on the same prompt, in alternating order. To decide
    whether a change is an improvement, use compare.
    """
    from sparkwright.core.bench import bench as run

    if model is not None:
        sets = (*sets, f"target.model={model}")

    with ProgressLine() as line:
        result = run(config, sets=sets, progress=line.update, **options)
    if as_json:
        print_json(result.to_dict())
    else:
        show(result)


def show(result: BenchResult) -> None:
    table = Table(
        "kind", "T", "prompt", "decode tok/s", "plain tok/s", "ratio [95%]", "tau", "ms a round", "prefill tok/s",
        box=None, padding=(0, 2, 0, 0),
    )  # fmt: skip
    refused: dict[str, list[str]] = {}
    for cell in result.cells:
        if cell.own is None or cell.plain is None:
            table.add_row(escape(cell.kind), f"{cell.temperature:g}", str(cell.context or "-"), "refused")
            where = f"{cell.kind} at T = {cell.temperature:g}" + (f", {cell.context} tokens" if cell.context else "")
            refused.setdefault(cell.refused, []).append(where)
            continue
        e = cell.ratio
        table.add_row(
            escape(cell.kind), f"{cell.temperature:g}", f"{cell.prompt_tokens:.0f}",
            escape(md.rate(cell.own, "decode")), escape(md.rate(cell.plain, "decode")),
            "-" if e is None else escape(f"{md.ratio(e.ratio)} [{md.ratio(e.low)}, {md.ratio(e.high)}]"),
            escape(md.pooled(cell.own.tau)), escape(md.stages(cell.own)), escape(md.rate(cell.own, "prefill")),
        )  # fmt: skip
    stdout.print(table)
    for reason, cells in refused.items():
        stdout.print(f"refused: {'; '.join(cells)}: {reason}", markup=False, soft_wrap=True)
    stdout.print(
        f"{result.tokens} tokens a run, seed {result.seed}; medians with [quartiles]; ratio over plain decoding, "
        f"paired by prompt; configuration {result.config_sha256[:12]}",
        style="dim", markup=False, soft_wrap=True,
    )  # fmt: skip
