"""`sparkwright compare`: an A/B run that swaps one thing and says what came of it."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from sparkwright.core.cli.shared import ProgressLine, json_option, print_json, stderr, stdout
from sparkwright.core.compare.records import CompareError
from sparkwright.core.compare.report import md
from sparkwright.core.compare.result import CompareResult

DEFAULT_REPEATS = 20


@click.command()
@click.argument("base", required=False, type=click.Path(path_type=Path), metavar="[BASE.toml]")
@click.option("--swap", multiple=True, metavar="KEY=VALUE", help="A candidate: the base with this changed. Repeatable.")
@click.option("--a", "a", type=click.Path(path_type=Path), metavar="FILE", help="The base, instead of the argument.")
@click.option("--b", "b", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
              help="A candidate's configuration. Repeatable.")  # fmt: skip
@click.option("--model", metavar="PATH", help="The model folder, for every arm (same as --set target.model=PATH).")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a value in every arm. Repeatable.")
@click.option("--allow", multiple=True, metavar="SLOT", help="A slot or key that may differ besides. Repeatable.")
@click.option("--prompts", default="all", show_default=True, metavar="SET|FILE",
              help="Bundled: code, prose, chat, long-context, all. Or a file of JSON lines or lines.")  # fmt: skip
@click.option("--pairs", type=int, default=20, show_default=True, help="Pairs of runs; each pair is one prompt.")
@click.option("--tokens", type=int, default=128, show_default=True, help="Tokens of each timed run.")
@click.option("--eos", is_flag=True, help="End a text where the model ends it, instead of at a fixed length.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the texts and of the order of the arms.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR",
              help="Where pairs and reports go. Default: a folder named after what is compared.")  # fmt: skip
@click.option("--isolate", is_flag=True, help="One process for each arm; weights are then loaded more than once.")
@click.option("--cooldown", type=float, default=0.0, metavar="SECONDS", help="Wait before each timed run.")
@click.option("--gate", type=int, default=3, show_default=True, help="Prompts whose texts are checked before timing.")
@click.option("--profile/--no-profile", default=True, help="Time the stages of a round in a few runs afterwards.")
@click.option("--margin", type=float, default=0.03, show_default=True, help="The difference that would matter.")
@click.option("--alpha", type=float, default=0.05, show_default=True, help="False alarms accepted, in all.")
@click.option("--self-test", is_flag=True, help="Measure the base against itself, repeatedly: the false-alarm rate.")
@click.option("--repeats", type=int, help=f"Repetitions of the self-test. Default: {DEFAULT_REPEATS}.")
@json_option
def compare(
    base: Path | None,
    a: Path | None,
    b: tuple[Path, ...],
    model: str | None,
    sets: tuple[str, ...],
    out: Path | None,
    eos: bool,
    self_test: bool,
    repeats: int | None,
    profile: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare BASE.toml with candidates that differ in one thing, in paired runs, and give a verdict.

    The arms run in ABBA order by a seeded coin, on the same prompts with the same randomness. Before timing, what
    differs is shown and the texts are checked. A run that is interrupted continues when the same command is given
    again.

    \b
    sparkwright compare my.toml --swap drafter.use=none
    sparkwright compare my.toml --swap scheduler.use=fixed --swap scheduler.use=threshold --pairs 30
    sparkwright compare --a my.toml --b other.toml --prompts code
    sparkwright compare my.toml --self-test --pairs 10 --repeats 20
    """
    from sparkwright.core.compare import compare as run

    if base is not None and a is not None:
        raise click.UsageError("the base is given twice: as an argument and as --a")
    if repeats is not None and not self_test:
        raise click.UsageError("--repeats belongs to --self-test")
    if model is not None:
        sets = (*sets, f"target.model={model}")
    source = a if base is None else base
    times = (DEFAULT_REPEATS if repeats is None else repeats) if self_test else 0
    if self_test and times < 1:
        raise CompareError(f"--repeats is {times}; a self-test needs at least one repetition")
    asked = {"base": str(source), "b": [str(p) for p in b], "sets": sets, "self_test": times, "eos": eos,
             "profile": profile, **{k: v for k, v in options.items() if k not in ("margin", "alpha")}}  # fmt: skip
    folder = out or Path(f"compare-{hashlib.sha256(repr(sorted(asked.items())).encode()).hexdigest()[:8]}")
    if _finished(folder):
        _announce([f"finished before: what is in {folder} is shown, nothing is measured again (--out FOLDER does)"])
    lines = ProgressLine()
    try:
        result = run(
            source, swap=options.pop("swap"), b=b, sets=sets, out=folder, self_test=times, ignore_eos=not eos,
            profile=3 if profile else 0, command=shlex.join(["sparkwright", *sys.argv[1:]]), progress=lines.update,
            announce=_announce, **options,
        )  # fmt: skip
    except KeyboardInterrupt:
        lines.end()
        click.echo(f"what was measured is kept in {folder}; the same command continues from there", err=True)
        raise
    finally:
        lines.end()
    if as_json:
        print_json(result.to_dict())
    else:
        show(result)


def _finished(folder: Path) -> bool:
    """Whether the folder holds a comparison with all its pairs; whether it is this one is for the run to check."""
    try:
        return bool(json.loads((folder / "result.json").read_text(encoding="utf-8"))["complete"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _announce(lines: list[str]) -> None:
    """Before anything runs: what differs, arm by arm."""
    for line in lines:
        stderr.print(line, markup=False, soft_wrap=True)


def show(result: CompareResult) -> None:
    """The terminal's table."""
    rows = md.arm_rows(result)
    for first in range(0, len(rows), 2):  # an arm is a column, two of which fit 80 columns
        arms = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for head, *values in zip(md.ARM_HEAD, *rows[first : first + 2], strict=True):
            arms.add_row(head, *map(escape, values), style="bold" if head == md.ARM_HEAD[0] else "")
        stdout.print(arms)
    for c in result.comparisons:
        table = Table(box=None, padding=(0, 2, 0, 0), title=f"\n{c.name}: {escape(c.label)}", title_justify="left",
                      show_header=False)  # fmt: skip
        for name, value in md.comparison_rows(c):
            table.add_row(escape(name), escape(value))
        stdout.print(table)
    stdout.print()
    for note in result.notes:
        stdout.print(f"note: {note}", markup=False, soft_wrap=True)
    stdout.print(result.verdict, style="bold", markup=False, soft_wrap=True)
    if result.directory is not None:
        stdout.print(f"{result.directory / 'report.html'}", markup=False, soft_wrap=True)
