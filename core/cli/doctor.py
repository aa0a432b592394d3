"""`sparkwright doctor`: what runs here, what is wrong, and what to do about it."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from sparkwright.core.cli.shared import json_option, print_json, stdout
from sparkwright.core.doctor import diagnose
from sparkwright.core.errors import ConfigError
from sparkwright.core.plugins import discover

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("problem", "red")}


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Versions, device, BLAS, memory and plugins, with advice. Exit status 1 if something will not work."""
    allow_list: str | None = None
    try:
        unusable = discover().unusable
    except ConfigError as error:  # a misspelt allow-list must not keep the doctor from everything else
        unusable, allow_list = (), str(error)
    diagnosis = diagnose(unusable)
    healthy = diagnosis.healthy and allow_list is None
    if as_json:
        extra = {"area": "plugins", "level": "problem", "found": allow_list, "advice": "correct the name"}
        data = diagnosis.as_dict() | {"healthy": healthy}
        print_json(data if allow_list is None else data | {"findings": [*data["findings"], extra]})
    else:
        table = Table(box=None, pad_edge=False, show_header=False)
        for _ in range(3):
            table.add_column(overflow="fold")
        for finding in diagnosis.findings:
            word, style = MARKS[finding.level]
            table.add_row(Text(word, style=style), finding.area, Text(finding.found))
            if finding.advice:
                table.add_row("", "", Text(f"-> {finding.advice}", style="bold"))
        if allow_list is not None:
            table.add_row(Text("problem", style="red"), "plugins", Text(allow_list))
        stdout.print(table)
    ctx.exit(0 if healthy else 1)
