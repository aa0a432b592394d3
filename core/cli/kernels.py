"""`sparkwright kernels`: which backend computes each op here, and why."""

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
from sparkwright.core.config import Config
from sparkwright.core.kernels import AUTO, KernelChoice


@click.group()
def kernels() -> None:
    """Show what computes the ops of a model here."""


@kernels.command("list")
@model_option
@config_options
@json_option
@click.pass_context
def list_(
    ctx: click.Context, config_file: Path | None, sets: tuple[str, ...], model: str | None, as_json: bool
) -> None:
    """Per op: what would run here, and why.

    Which kernel covers an op depends on the weights' formats and sizes, so with --model the model is loaded and asked.
    Without it, the ops that installed plugins declare are listed, with the backends that would be asked in order.
    """
    config = read_config(ctx, config_file, sets, {} if model is None else {"target.model": (model, "--model")})
    warn(config.warnings)
    data = _declared(config) if config.slots["target"].model is None else _chosen(config, as_json)
    if as_json:
        print_json(data)
        return
    asked = f", asked in this order: {', '.join(data['asked'])}" if "asked" in data else ""
    stdout.print(Text(f"device {data['device']}; kernels.use = {', '.join(config.kernels.use)}{asked}"))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in data["columns"]:
        table.add_column(heading, no_wrap=heading == "op", overflow="fold")
    # Widths and the kind of each owner are for --json: a terminal has 80 columns; what differs only in them is one row.
    for row in dict.fromkeys(tuple(_shown(op[heading]) for heading in data["columns"]) for op in data["ops"]):
        table.add_row(*map(Text, row))
    stdout.print(table)


def _shown(value: Any) -> str:
    return ", ".join(str(one).rpartition(" ")[2] for one in value) if isinstance(value, (list, tuple)) else str(value)


def _chosen(config: Config, quiet: bool) -> dict[str, Any]:
    from sparkwright.core.assembly import assemble, device_name

    with ProgressLine(not quiet) as line, assemble(config, progress=line.update) as engine:
        choices: tuple[KernelChoice, ...] = engine.run(lambda parts: parts.kernel_choices)
    ops = [{**attrs.asdict(one), "runs": one.backend, "why": _why(one)} for one in choices]
    return {
        "device": device_name(),
        "columns": ["op", "dtype", "format", "runs", "why"],
        "ops": sorted(ops, key=lambda op: op["op"]),
    }


def _why(one: KernelChoice) -> str:
    if one.override:
        return "kernels.ops names it"
    said = [
        f"{name} declined" + (f" ({why})" if why else "") for name, why in zip(one.declined, one.reasons, strict=True)
    ]
    reason = " and ".join(said) or "first in kernels.use"
    return f"{reason}; the reference" if one.is_reference else reason


def _declared(config: Config) -> dict[str, Any]:
    """Ops of installed plugins, by name, and the backends in the order in which they would be asked."""
    from sparkwright.core.assembly import device_name

    names = [n for name in config.kernels.use for n in (AUTO if name == "auto" else (name,))]
    order = [name for name in dict.fromkeys(names) if config.catalogue.find("kernels", name) is not None]
    found: dict[str, dict[str, Any]] = {}
    for item in config.catalogue.installed:
        for op in item.provider.ops:
            entry = found.setdefault(op.name, {"op": op.name, "of": [], "asked": order, "summary": op.summary})
            entry["of"].append(f"{item.provider.kind} {item.provider.name}")
            entry["asked"] = [config.kernel_ops[op.name]] if op.name in config.kernel_ops else order
            entry["reference"] = op.reference
    return {
        "device": device_name(),
        "asked": order,
        "columns": ["op", *(["asked"] if config.kernel_ops else []), "of", "summary"],
        "ops": [found[name] for name in sorted(found)],
    }
