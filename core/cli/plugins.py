"""`sparkwright plugins`: what is installed, what is broken, and what a plugin takes."""

from __future__ import annotations

from typing import Any, get_type_hints

import attrs
import click
from rich.table import Table
from rich.text import Text

from sparkwright.core.cli.shared import json_option, print_json, stdout
from sparkwright.core.contracts import KINDS
from sparkwright.core.convert import expected
from sparkwright.core.errors import PluginError, did_you_mean
from sparkwright.core.plugins import Catalogue, Installed, discover


@click.group()
def plugins() -> None:
    """List the installed plugins, and show one."""


def _catalogue(ctx: click.Context) -> Catalogue:
    return discover(strict=bool(ctx.obj and ctx.obj.get("strict_plugins")))


def describe(item: Installed) -> dict[str, Any]:
    """A provider as plain data: what `plugins show --json` prints."""
    provider = item.provider
    hints = get_type_hints(provider.options)
    options = [
        {
            "name": field.name,
            "type": expected(hints[field.name]),
            "default": getattr(provider.options(), field.name),
            "help": field.metadata["help"],
        }
        for field in attrs.fields(provider.options)
    ]
    return {
        "name": provider.name,
        "kind": provider.kind,
        "summary": provider.summary,
        "plugin": item.entry,
        "distribution": item.distribution,
        "version": item.version,
        "hook_api": provider.hook_api,
        "requires": sorted(provider.requires),
        "provides": sorted(provider.provides),
        "ops": [{"name": op.name, "summary": op.summary, "reference": op.reference} for op in provider.ops],
        "options": options,
    }


@plugins.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """Every plugin by slot, and those that are broken, in conflict or ignored, with the reason."""
    catalogue = _catalogue(ctx)
    items = sorted(catalogue.installed, key=lambda i: (KINDS.index(i.provider.kind), i.provider.name))
    if as_json:
        unusable = [{**attrs.asdict(u), "names": sorted(map(list, u.names))} for u in catalogue.unusable]
        print_json({"installed": [describe(item) for item in items], "unusable": unusable})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("slot", "name"):
        table.add_column(heading, no_wrap=True)
    table.add_column("summary", overflow="fold")
    for item in items:
        foreign = "" if item.distribution == "sparkwright" else f" (from {item.origin})"
        table.add_row(item.provider.kind, item.provider.name, Text(item.provider.summary + foreign))
    stdout.print(table)
    for left_out in catalogue.unusable:
        stdout.print(Text(f"{left_out.why}: {left_out}"))


@plugins.command()
@click.argument("name")
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, as_json: bool) -> None:
    """What the plugin NAME is and takes. Of several kinds with one name, all are shown; KIND:NAME is one of them."""
    catalogue = _catalogue(ctx)
    kind, colon, rest = name.partition(":")
    wanted = (kind, rest) if colon else (None, name)
    found = [i for i in catalogue.installed if i.provider.name == wanted[1] and wanted[0] in (None, i.provider.kind)]
    if not found:
        known = sorted({i.provider.name for i in catalogue.installed})
        hint = did_you_mean(wanted[1], known)
        lines = [f"no plugin is named '{name}'{hint}; installed: {', '.join(known) or 'none'}"]
        lines += [f"  {u.why}: {u}" for u in catalogue.unusable if u.why != "ignored"]
        raise PluginError("\n".join(lines))
    if as_json:
        print_json([describe(item) for item in found])
        return
    for item in found:
        data = describe(item)
        stdout.print(Text(f"{data['kind']} '{data['name']}': {data['summary']}"))
        stdout.print(Text(f"from {item.origin}, plugin {item.entry}, hook API {data['hook_api']}"))
        for word in ("requires", "provides"):
            if data[word]:
                stdout.print(Text(f"{word}: {', '.join(data[word])}"))
        if data["ops"]:
            stdout.print(Text("ops: " + ", ".join(op["name"] for op in data["ops"])))
        if data["options"]:
            table = Table(box=None, pad_edge=False)
            for heading in ("option", "type", "default", "help"):
                table.add_column(heading, overflow="fold")
            for option in data["options"]:
                default = "(not set)" if option["default"] is None else repr(option["default"])
                table.add_row(option["name"], Text(option["type"]), Text(default), Text(option["help"]))
            stdout.print(table)
        else:
            stdout.print("no options")
        slot = {"kernels": "kernels", "observer": "observers"}.get(data["kind"], data["kind"])
        stdout.print(Text(f"configure in [{slot}.{data['name']}]"), style="dim")
