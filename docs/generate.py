"""Writes docs/reference/: hooks, contracts, plugins, configuration, the command line and its exit statuses.

    python docs/generate.py           write
    python docs/generate.py --check   fail if what is committed differs from what would be written

Everything comes from the code itself (hookspecs, contracts, Providers, option classes, click commands), so that a hook,
an option or a flag cannot exist without being documented, nor be documented after it is gone.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, get_type_hints

import attrs
import click

from sparkwright.core import contracts as contracts_module
from sparkwright.core import hookspecs
from sparkwright.core.cli import COMMANDS, cli
from sparkwright.core.config import SLOTS, TABLES
from sparkwright.core.contracts import KINDS
from sparkwright.core.convert import expected
from sparkwright.core.errors import SparkwrightError
from sparkwright.core.plugins import GROUP, Catalogue, discover

FOLDER = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py; change the code, not this page. -->\n\n"


def bundled() -> Catalogue:
    """What this package brings, whatever else is installed beside it."""
    ours = [e for e in entry_points(group=GROUP) if e.dist is not None and e.dist.name == "sparkwright"]
    return discover(entries=ours, allow=",".join(e.name for e in ours), strict=True)


def hooks() -> Iterator[str]:
    yield "# Hooks\n\n" + NOTE + textwrap.dedent(inspect.getdoc(hookspecs) or "") + "\n"
    source = inspect.getsource(hookspecs)
    for part in re.split(r"^# =+$", source, flags=re.M)[1:]:
        title = re.match(r"\s*# (.+)\s*\Z", part)
        if title:
            yield f"\n## {title[1]}\n"
        for name in re.findall(r"^def (sparkwright_\w+)", part, flags=re.M):
            hook = getattr(hookspecs, name)
            arguments = ", ".join(
                f"{p.name}: {p.annotation}" if p.annotation is not p.empty else p.name
                for p in inspect.signature(hook).parameters.values()
            )
            returns = inspect.signature(hook).return_annotation
            yield f"\n### `{name}`\n\n```text\n{name}({arguments}) -> {returns}\n```\n\n{inspect.getdoc(hook)}\n"


def contracts() -> Iterator[str]:
    yield "# Contracts\n\n" + NOTE + textwrap.dedent(inspect.getdoc(contracts_module) or "") + "\n"
    yield "\n## Versions, kinds and promises\n"
    source = inspect.getsource(contracts_module)
    lines = source.splitlines()
    titles = {
        n + 1: lines[n][2:]
        for n in range(1, len(lines))
        if lines[n - 1].startswith("# ---") and lines[n][2:3].isalpha()
    }
    body = ast.parse(source).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        for at in [at for at in titles if at < node.lineno]:
            yield f"\n## {titles.pop(at)}\n"
        name = getattr(node, "name", None)
        if isinstance(node, (ast.AnnAssign, ast.Assign)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            name = target.id if isinstance(target, ast.Name) else None
        if name is None or name.startswith("_"):
            continue
        yield f"\n### `{name}`\n"
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            first, _, more = (ast.get_docstring(node) or "").partition("\n\n")
            yield f"\n{first}\n" if first else ""
            yield _text(more)
            if isinstance(node, ast.FunctionDef):
                yield _text(_signature(node, lines))
            else:
                bases = [b for b in map(ast.unparse, node.bases) if b != "Protocol"]
                yield f"\nA {', '.join(bases)}.\n" if bases else ""
                yield _text(_members(node, lines))
        else:
            yield _text(_source(node, lines))
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                yield f"\n{inspect.cleandoc(str(after.value.value))}\n"


def _text(block: str) -> str:
    return f"\n```text\n{block.rstrip()}\n```\n" if block.strip() else ""


def _source(node: ast.stmt, lines: list[str]) -> str:
    return textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))


def _signature(node: ast.FunctionDef, lines: list[str]) -> str:
    """`name(arguments) -> result:` as it is written, without its body."""
    end = max(node.lineno, node.body[0].lineno - 1)
    return textwrap.dedent("\n".join(lines[node.lineno - 1 : end])).removesuffix(" ...").removesuffix(":")


def _members(node: ast.ClassDef, lines: list[str]) -> str:
    """Fields and public methods of a class, as they are written."""
    shown = []
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            shown.append(_source(member, lines))
        elif isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name == "__call__"):
            decorators = [f"@{ast.unparse(d)}" for d in member.decorator_list]
            doc = textwrap.indent(ast.get_docstring(member) or "", "    ")
            shown.append("\n".join(part for part in (*decorators, _signature(member, lines), doc) if part))
    return "\n".join(shown)


def options_table(cls: type) -> str:
    hints = get_type_hints(cls)
    lines = ["| option | type | default | what it does |", "|---|---|---|---|"]
    for field in attrs.fields(cls):
        default: Any = getattr(cls(), field.name)
        shown = "not set" if default is None else f"`{default!r}`"
        cells = (f"`{field.name}`", expected(hints[field.name]), shown, field.metadata["help"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def plugins() -> Iterator[str]:
    yield "# Bundled plugins\n\n" + NOTE
    catalogue = bundled()
    for kind in KINDS:
        items = sorted(catalogue.of_kind(kind), key=lambda i: i.provider.name)
        if items:
            yield f"\n## {kind.capitalize()}\n"
        for item in items:
            provider = item.provider
            yield f"\n### {kind} `{provider.name}`\n\n{provider.summary[0].upper()}{provider.summary[1:]}.\n"
            if provider.requires or provider.provides:
                needs, gives = (", ".join(sorted(x)) or "nothing" for x in (provider.requires, provider.provides))
                yield f"\nRequires {needs}; provides {gives}.\n"
            if provider.ops:
                yield "\nOps: " + ", ".join(f"`{op.name}` ({op.summary})" for op in provider.ops) + ".\n"
            if attrs.fields(provider.options):
                slot = {"kernels": "kernels", "observer": "observers"}.get(kind, kind)
                yield f"\nTable `[{slot}.{provider.name}]`:\n\n" + options_table(provider.options)


def configuration() -> Iterator[str]:
    yield "# Configuration\n\n" + NOTE
    yield (
        "One table for each slot; a plugin's options live under its own name, so swapping a plugin changes one key.\n\n"
        "| slot | `use` by default |\n|---|---|\n"
    )
    for slot, default in SLOTS.items():
        yield f"| `[{slot}]` | `{default}` |\n"
    yield (
        "\nEach slot also takes `model`, a path: the target's model folder, or a drafter's own checkpoint. A relative "
        "path starts from the folder of the file that holds it. A file may name others with "
        '`extends = ["base.toml"]`.\n\n'
        "Precedence: defaults, `extends`, the file, environment (`SPARKWRIGHT_A__B=value` sets `a.b`), "
        "`--set a.b=value`, flags, the request. `sparkwright config show --resolved` prints every value "
        "with its origin.\n"
    )
    for table, cls in TABLES.items():
        yield f"\n## `[{table}]`\n\n{inspect.getdoc(cls)}\n\n" + options_table(cls)


def command_line() -> Iterator[str]:
    yield "# Command line\n\n" + NOTE

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
        context = click.Context(command, info_name=" ".join(path), terminal_width=100, max_content_width=100)
        context.help_option_names = ["-h", "--help"]
        yield f"\n## `{' '.join(path)}`\n\n```text\n{command.get_help(context)}\n```\n"
        if isinstance(command, click.Group):
            for name in sorted(command.list_commands(context)):
                child = command.get_command(context, name)
                assert child is not None
                yield from walk(child, (*path, name))

    assert COMMANDS
    yield from walk(cli, ("sparkwright",))


EXITS: dict[str, dict[int, str]] = {
    "audit consistency": {8: "something is wrong"},
    "audit identity": {8: "something is wrong", 9: "too little was compared to say anything"},
    "audit kernels": {8: "something is wrong", 9: "nothing was compared"},
    "audit law": {8: "something is wrong", 9: "too little was compared to say anything"},
    "audit rollback": {8: "something is wrong", 9: "too little was compared to say anything"},
    "bench": {},
    "calibrate": {},
    "compare": {},
    "config show": {},
    "doctor": {1: "something will not work; the advice says what to do"},
    "evidence": {8: "an audit did not pass", 9: "a step could not be run"},
    "evidence show": {9: "the bundle is damaged"},
    "generate": {130: "Ctrl-C; the text until then and its numbers are printed"},
    "kernels list": {},
    "models convert": {},
    "models inspect": {4: "the checkpoint cannot be read, or does not hold what its config asks for"},
    "plugin check": {1: "a check failed"},
    "plugin new": {},
    "plugins list": {},
    "plugins show": {},
    "trace show": {},
}
"""What a command's own exit statuses mean, beside those that all share."""


def errors() -> Iterator[type[SparkwrightError]]:
    """Every class of error that the commands can meet, its base first."""
    import_module("sparkwright.core.compare")  # imported only once it runs; the others came with their commands
    found = [SparkwrightError]
    for cls in found:
        found += [sub for sub in cls.__subclasses__() if sub.__module__.startswith("sparkwright.core")]
    return iter(found)


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The commands that do something: "audit law"."""
    if path and (not isinstance(command, click.Group) or command.invoke_without_command):
        yield " ".join(path)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in sorted(command.list_commands(context)):
            child = command.get_command(context, name)
            assert child is not None
            yield from leaves(child, (*path, name))


def exit_statuses() -> Iterator[str]:
    found = set(leaves(cli))  # imports every command
    yield "# Exit statuses\n\n" + NOTE
    yield (
        "An error that you can mend is one message on standard error and an exit status; nothing prints a traceback "
        "unless `SPARKWRIGHT_DEBUG=1` is set.\n\n## Of all commands\n\n| status | means |\n|---|---|\n| 0 | done |\n"
    )
    by_status: dict[int, list[str]] = {}
    for cls in errors():
        if cls is not SparkwrightError:
            summary = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
            by_status.setdefault(cls.exit_code, []).append(summary.split(". ")[0].split("; `")[0].rstrip("."))
    by_status.setdefault(2, []).insert(0, "Arguments that the command does not take")
    by_status |= {
        70: ["A fault in sparkwright itself"],
        130: ["Interrupted (Ctrl-C)"],
        141: ["Whoever read the output has gone (`| head`)"],
    }
    for status in sorted(by_status):
        yield f"| {status} | {'; '.join(by_status[status])} |\n"
    if found != set(EXITS):
        raise SystemExit(
            f"docs/generate.py: EXITS and the command line differ: {', '.join(sorted(found ^ set(EXITS)))}; say there "
            "what the exit statuses of a new command mean, or take out a command that is gone"
        )
    yield "\n## Of one command\n\n| command | besides |\n|---|---|\n"
    for command in sorted(EXITS):
        own = "; ".join(f"{status}: {means}" for status, means in sorted(EXITS[command].items())) or "nothing"
        yield f"| `sparkwright {command}` | {own} |\n"


def plugin_checks() -> Iterator[str]:
    from sparkwright.core.testing import common, form
    from sparkwright.core.testing.kit import entries_for

    yield "# Conformance checks\n\n" + NOTE
    yield (
        "Every check of `sparkwright plugin check` and `sparkwright.core.testing`, by kind of plugin; how they work, "
        "and what they can and cannot find, is in [plugin checks](../plugin-checks.md). Slow ones are statistical "
        "or take many forwards; `--fast` leaves them out.\n"
    )
    every = {entry.name: entry for entry in (*form.FIRST, *common.LAST, common.MODEL)}
    lists = [("Every kind", list(every.values()))]
    lists += [(k.capitalize(), [e for e in entries_for(k) if e.name not in every or e != every[e.name]]) for k in KINDS]
    for title, entries in lists:
        yield f"\n## {title}\n\n| check | what a pass shows |\n|---|---|\n"
        for entry in entries:
            slow = " (slow)" if entry.slow else ""
            only = " (targets and drafters)" if entry == common.MODEL else ""
            yield f"| `{entry.name}`{slow} | {entry.proves}{only} |\n"


PAGES = {
    "plugin-checks.md": plugin_checks,
    "hooks.md": hooks,
    "contracts.md": contracts,
    "plugins.md": plugins,
    "configuration.md": configuration,
    "command-line.md": command_line,
    "exit-codes.md": exit_statuses,
}


def main(check: bool) -> int:
    """Write the pages, or report which differ; returns the exit status."""
    stale = []
    FOLDER.mkdir(exist_ok=True)
    for name, write in PAGES.items():
        text = "".join(write()).rstrip() + "\n"
        path = FOLDER / name
        if check and (not path.is_file() or path.read_text(encoding="utf-8") != text):
            stale.append(str(path.relative_to(FOLDER.parent.parent)))
        elif not check:
            path.write_text(text, encoding="utf-8")
    if stale:
        print(f"out of date: {', '.join(stale)}; run python docs/generate.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
