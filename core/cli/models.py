"""`sparkwright models`: what a checkpoint is, and its conversion for MLX.

Knows no model family. A target's Provider names its tools ("package.module:function"), and a command calls those of
the target that recognises the checkpoint best: `inspect(path, device) -> dict`, from headers alone, and
`convert(source, destination, options, progress) -> dict`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sparkwright.core.cli.shared import json_option, print_json, stderr, stdout
from sparkwright.core.contracts import Provider
from sparkwright.core.errors import ModelError, PluginError
from sparkwright.core.plugins import Catalogue, discover

LISTED = 20
"""Tensors of each kind of problem that are printed; --json has all."""


@click.group()
def models() -> None:
    """Inspect and convert checkpoints."""


_directory = click.Path(path_type=Path, exists=False)
_target = click.option(
    "--target", "name", metavar="NAME", help="The target plugin to ask; by default the one that knows it."
)


@models.command()
@click.argument("path", type=_directory)
@_target
@json_option
@click.pass_context
def inspect(ctx: click.Context, path: Path, name: str | None, as_json: bool) -> None:
    """What the checkpoint in PATH is, whether it is complete, and the memory it needs. Reads headers only."""
    from sparkwright.core.assembly import device_name

    tool = _tool(ctx, "inspect", path.expanduser(), name)
    data = tool(path.expanduser(), device_name())
    if as_json:
        print_json(data)
    else:
        _print(data)
    if not data["contract"]["fits"]:
        ctx.exit(ModelError.exit_code)


@models.command()
@click.argument("source", type=_directory)
@click.argument("destination", type=_directory)
@click.option("--experts", metavar="mxfp4|affine4|affine3|affine2", help="Form of the routed experts.")
@click.option("--dense", metavar="mxfp8|affine8|bf16", help="Form of the projections and shared experts.")
@click.option(
    "--drafter-experts", metavar="mxfp4|affine4|affine3|affine2", help="Form of the drafter's experts (default: exact)."
)
@_target
@json_option
@click.pass_context
def convert(
    ctx: click.Context,
    source: Path,
    destination: Path,
    experts: str | None,
    dense: str | None,
    drafter_experts: str | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Rewrite the checkpoint in SOURCE for MLX into DESTINATION, shard by shard.

    An interrupted conversion goes on where it was when the same command is run again.
    """
    given = {"experts": experts, "dense": dense, "drafter_experts": drafter_experts}
    options = {key: value for key, value in given.items() if value is not None}
    source, destination = source.expanduser(), destination.expanduser()
    tool = _tool(ctx, "convert", source, name)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=stderr, transient=True) as bar:
        task = bar.add_task("convert", total=None)
        data = tool(
            source, destination, options, lambda what, done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        print_json(data)
        return
    again = f", {data['resumed_after']} of them already there" if data["resumed_after"] else ""
    sizes = f"{_size(data['bytes'])} (from {_size(data['source_bytes'])})"
    stdout.print(Text(f"{data['destination']}: {data['shards']} shards{again}, {sizes}"))


def _tool(ctx: click.Context, what: str, path: Path, name: str | None) -> Callable[..., Any]:
    """The function of the target that knows the checkpoint. ModelError if none does."""
    catalogue = discover(strict=bool(ctx.obj and ctx.obj.get("strict_plugins")))
    if name is not None:
        provider = catalogue.get("target", name, "--target").provider
        if what not in provider.tools:
            raise PluginError(f"target '{name}' has no tool '{what}'; it offers {', '.join(provider.tools) or 'none'}")
        return _resolve(provider, what)
    able = [item.provider for item in catalogue.of_kind("target") if what in item.provider.tools]
    if not able:
        raise PluginError(f"no installed target plugin can {what} checkpoints")
    if not path.is_dir():
        raise ModelError(
            f"{path}: {'not a directory' if path.exists() else 'no such directory'}; expected a model directory"
        )
    sure = [0 if provider.recognises is None else provider.recognises(path) for provider in able]
    if max(sure) > 0:
        return _resolve(able[sure.index(max(sure))], what)
    known = ", ".join(provider.name for provider in able)
    raise ModelError(f"{path}: {_found(path, catalogue)}; targets that {what} checkpoints: {known}")


def _found(path: Path, catalogue: Catalogue) -> str:
    """What is in a folder that no tool is for."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except OSError:
        return "holds no config.json that can be read, so it is no model folder"
    except ValueError:
        return "its config.json is not JSON"
    model_type = config.get("model_type") if isinstance(config, dict) else None
    providers = (item.provider for item in catalogue.of_kind("target"))
    runs = [p.name for p in providers if p.recognises is not None and p.recognises(path)]
    ran = f"which target {' and '.join(runs)} runs as it is" if runs else "which no installed target knows"
    return f"holds a model of type {model_type!r}, {ran}"


def _resolve(provider: Provider, what: str) -> Callable[..., Any]:
    module, _, function = provider.tools[what].partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"target '{provider.name}': its tool '{what}' cannot be loaded ({error})") from None
    return found


def _print(data: dict[str, Any]) -> None:
    contract, memory = data["contract"], data["memory"]
    present = "unknown" if memory["present"] is None else _size(memory["present"])
    rows = [
        ("architecture", data["architecture"]),
        ("variant", f"{data['variant']}, {data['layers']} layers, {data['drafter_stages']} drafter stages"),
        ("layout", data["layout"]),
        ("formats", "; ".join(f"{where} {', '.join(forms)}" for where, forms in data["formats"].items())),
        (
            "size",
            f"{data['tensors']:,} tensors in {data['files']} files, {data['bytes']:,} bytes ({_size(data['bytes'])})",
        ),
        *((f"  {part}", _size(size)) for part, size in data["bytes_by_part"].items()),
        ("contract", "complete" if contract["fits"] else "NOT met"),
        (
            "memory",
            f"{_size(memory['weights'])} of weights, {_size(memory['while_loading'])} more while loading; "
            f"{memory['device']} has {present}: {'fits' if memory['fits'] else 'does NOT fit'}",
        ),
        ("fingerprint", data["fingerprint"]),
    ]
    table = Table(box=None, show_header=False, pad_edge=False)
    for row in rows:
        table.add_row(*map(Text, row))
    stdout.print(table)
    for kind in ("missing", "misshapen", "extra"):
        names = contract[kind]
        if names:
            stdout.print(Text(f"{kind} ({len(names)}):"))
            for name in names[:LISTED]:
                stdout.print(Text(f"  {name}"))
            if len(names) > LISTED:
                stdout.print(Text(f"  and {len(names) - LISTED} more (--json lists all)"))


def _size(count: int) -> str:
    for unit, bits in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 1 << bits:
            return f"{count / (1 << bits):.2f} {unit}"
    return f"{count} bytes"
