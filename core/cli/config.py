"""`sparkwright config`: what is configured, and where each value comes from."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from sparkwright.core.cli.shared import config_options, json_option, print_json, read_config, stdout, warn


@click.group()
def config() -> None:
    """Show what is configured, and where each value comes from."""


@config.command()
@config_options
@json_option
@click.option("--resolved", is_flag=True, help="Every value, defaults included; without it only what was set.")
@click.pass_context
def show(
    ctx: click.Context, config_file: Path | None, sets: tuple[str, ...], as_json: bool, resolved: bool
) -> None:
    """Print the configuration with the origin of every value, and its hash."""
    loaded = read_config(ctx, config_file, sets)
    values, origins = loaded.to_dict(), loaded.origins
    shown = [key for key in values if resolved or origins[key] != "default"]
    if as_json:
        print_json(
            {
                "sha256": loaded.sha256,
                "values": {key: {"value": values[key], "origin": origins[key]} for key in shown},
                "warnings": list(loaded.warnings),
            }
        )
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "value", "from"):
        table.add_column(heading, overflow="fold")
    for key in shown:
        value = values[key]
        table.add_row(Text(key), Text("(not set)" if value is None else repr(value)), Text(origins[key]))
    if shown:
        stdout.print(table)
    else:
        stdout.print("Nothing is set; --resolved shows every default.")
    stdout.print(f"\nconfiguration {loaded.sha256}", soft_wrap=True)
    warn(loaded.warnings)
