"""`sparkwright plugin check`: the conformance checks of `sparkwright.core.testing`, from a shell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from sparkwright.core.cli.shared import ProgressLine, config_options, json_option, print_json, stdout
from sparkwright.core.contracts import Provider
from sparkwright.core.errors import ConfigError, did_you_mean
from sparkwright.core.layers import from_assignments, from_file, merge
from sparkwright.core.plugins import discover

STYLE = {"passed": "green", "failed": "bold red", "skipped": "dim", "expected": "yellow"}


@click.command()
@click.argument("what", metavar="NAME|PATH")
@click.option("--fast", is_flag=True, help="Leave out the statistical and other slow checks.")
@click.option("--only", "only", multiple=True, metavar="CHECK", help="Run this check alone. Repeatable.")
@click.option("--list", "names_only", is_flag=True, help="List the checks and what each proves; run none.")
@config_options
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    what: str,
    fast: bool,
    only: tuple[str, ...],
    names_only: bool,
    config_file: Path | None,
    sets: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check a plugin against its contract: an installed one by NAME (KIND:NAME where several have it), or the one in a
    .py file or package folder by PATH. Plugins that cannot work with toys take the rest of their engine from --config
    and --set, and so do their options. The exit status is 1 if a check fails.
    """
    from sparkwright.core.blas import ensure_blas
    from sparkwright.core.testing.check import Check
    from sparkwright.core.testing.find import find
    from sparkwright.core.testing.kit import checks_for

    providers = find(what, discover(strict=bool(ctx.obj and ctx.obj.get("strict_plugins"))))
    config = _config(config_file, sets)
    checks: list[tuple[Provider, Check]] = [(p, one) for p in providers for one in checks_for(p, config=config)]
    _known(only, [one.name for _, one in checks])
    checks = [(p, one) for p, one in checks if not (fast and one.slow) and (not only or one.name in only)]
    if names_only:
        _list([one for _, one in checks], as_json)
        return
    ensure_blas()
    rows: list[dict[str, Any]] = []
    with ProgressLine(not as_json) as progress:
        for done, (provider, one) in enumerate(checks):
            progress.update(f"{provider.name}: {one.name}", done, len(checks))
            ended = one.outcome()
            rows.append(
                {
                    "kind": provider.kind, "plugin": provider.name, "check": one.name, "proves": one.proves,
                    "status": ended.status, "message": ended.message, "seconds": round(ended.seconds, 3),
                }
            )  # fmt: skip
    counts = {status: sum(row["status"] == status for row in rows) for status in STYLE}
    if as_json:
        print_json({"passed": not counts["failed"], "counts": counts, "checks": rows})
    else:
        _show(rows, counts)
    ctx.exit(1 if counts["failed"] else 0)


def _config(file: Path | None, sets: tuple[str, ...]) -> dict[str, Any]:
    """The given configuration as nested tables; relative model paths start from the file's folder."""
    flat = merge([*(from_file(file) if file is not None else []), from_assignments(sets)])
    out: dict[str, Any] = {}
    for key, value in flat.items():
        *tables, name = key.split(".")
        table = out
        for part in tables:
            table = table.setdefault(part, {})
        given = value.value
        if name == "model" and isinstance(given, str) and value.base is not None:
            given = str(value.base / Path(given).expanduser())
        table[name] = given
    return out


def _known(only: tuple[str, ...], names: list[str]) -> None:
    wrong = [name for name in only if name not in names]
    if wrong:
        known = ", ".join(dict.fromkeys(names))
        raise ConfigError(f"--only: no check is called '{wrong[0]}'{did_you_mean(wrong[0], names)}; checks: {known}")


def _list(checks: list[Any], as_json: bool) -> None:
    if as_json:
        print_json([{"kind": c.kind, "plugin": c.provider, "check": c.name, "proves": c.proves} for c in checks])
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("check", "proves"):
        table.add_column(heading, overflow="fold")
    for one in checks:
        table.add_row(Text(one.name + (" (slow)" if one.slow else "")), Text(one.proves))
    stdout.print(table)


def _show(rows: list[dict[str, Any]], counts: dict[str, int]) -> None:
    several = len({(row["kind"], row["plugin"]) for row in rows}) > 1
    table = Table(box=None, pad_edge=False)
    for heading in (*(["plugin"] if several else []), "check", "result", "seconds"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [Text(f"{row['kind']} {row['plugin']}")] if several else []
        result = Text(row["status"], style=STYLE[row["status"]])
        table.add_row(*cells, Text(row["check"]), result, f"{row['seconds']:.2f}")
    stdout.print(table)
    said: dict[tuple[str, str, str], list[str]] = {}  # several checks often fail, or say nothing, for one reason
    for row in rows:
        who = f"{row['kind']} '{row['plugin']}'"
        reason = row["message"].removeprefix(f"{who}, check '{row['check']}': ")
        if row["status"] != "passed":
            said.setdefault((row["status"], who, reason), []).append(row["check"])
    for (status, who, reason), names in said.items():
        stdout.print(Text(f"{status}: {who}, {'; '.join(names)}: {reason}", style=STYLE[status]))
    stdout.print(Text(", ".join(f"{n} {status}" for status, n in counts.items() if n) or "no checks"))
