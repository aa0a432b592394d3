"""`sparkwright evidence`: measure everything on this machine into one file to send, and show such a file."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from sparkwright.core.cli.shared import config_options, json_option, model_option, print_json, stderr, stdout, write
from sparkwright.core.errors import OutputError
from sparkwright.core.evidence.bundle import Bundle
from sparkwright.core.evidence.run import Report, StepReport, gather
from sparkwright.core.evidence.steps import STEPS, Settings

NOT_PASSED = 8
"""Exit status when an audit found something wrong, as of `audit`."""
NOT_WHOLE = 9
"""Exit status when a step could not be run, or a bundle is damaged."""
STYLES = {"ok": "green", "not passed": "red", "failed": "red", "not applicable": "yellow", "not run": "dim"}


@click.group(invoke_without_command=True)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.zip", help="The bundle to write. Required.")
@model_option
@config_options
@click.option("--only", multiple=True, metavar="STEP",
              help=f"Run this step alone ({', '.join(s.name for s in STEPS)}). Repeatable.")  # fmt: skip
@click.option("--pairs", type=click.IntRange(2, 1000), metavar="N",
              help=f"Pairs of plain and speculative runs. Default: {Settings().pairs}.")  # fmt: skip
@click.option("--quick", is_flag=True, help="Very little of everything: does it work here? Not for sending.")
@click.option("--force", is_flag=True, help="Start anew, and replace the file if it exists.")
@json_option
@click.pass_context
def evidence(
    ctx: click.Context, out: Path | None, model: str | None, config_file: Path | None, sets: tuple[str, ...],
    only: tuple[str, ...], pairs: int | None, quick: bool, force: bool, as_json: bool,
) -> None:  # fmt: skip
    """Measure what a model does on this machine, in one file that can be sent to the project.

    Seven steps: machine, checkpoint, doctor, audit of the kernels on the device, audit of consistency over a thousand
    compressed rows, calibration, plain decoding against speculation at temperature 1. Nothing personal goes into the
    file, only JSON; `evidence show FILE.zip` shows all of it. A step that fails is recorded and the others go on. What
    is finished is kept beside the file: after Ctrl-C, a crash or a failed step, the same command goes on from there.

    \b
    sparkwright evidence --model ~/models/DeepSeek-V4-Flash --out evidence.zip
    sparkwright evidence show evidence.zip --html evidence.html

    Exit status: 0 everything ran and passed (or had nothing to check); 8 an audit did not pass; 9 a step could not be
    run; 1 to 7 errors before there was anything to write; 130 after Ctrl-C.
    """
    if ctx.invoked_subcommand is not None:
        return
    if out is None:
        raise click.UsageError("--out FILE.zip is missing: where should the bundle go?")
    if model is not None:
        sets = (*sets, f"target.model={model}")
    settings = Settings.quick() if quick else Settings()
    if pairs is not None:
        import attrs

        settings = attrs.evolve(settings, pairs=pairs)
    lines = _Lines()
    try:
        report = gather(
            out, config_file=config_file, sets=sets, only=only, settings=settings, force=force,
            progress=lines.update, finished=lines.finished,
        )  # fmt: skip
    except KeyboardInterrupt:
        lines.clear()
        click.echo(f"what is finished is kept in {out}.work; the same command goes on from there", err=True)
        raise
    finally:
        lines.clear()
    if as_json:
        print_json(report.to_dict())
    else:
        _say(report)
    ctx.exit(NOT_PASSED if not report.passed else NOT_WHOLE if not report.complete else 0)


def _say(report: Report) -> None:
    stdout.print(Text(f"{report.file}: {report.bytes:,} bytes, sha256 {report.sha256}"), soft_wrap=True)
    missing = [s.name for s in report.steps if s.status is None]
    failed = [s.name for s in report.steps if s.status == "failed"]
    if failed:
        stdout.print(
            f"could not be run: {', '.join(failed)}; the file says why. The same command tries them again, and keeps "
            f"the rest in {report.work}", markup=False, soft_wrap=True,
        )  # fmt: skip
    if missing:
        kept = f"; the command without --only goes on from {report.work}" if report.work is not None else ""
        stdout.print(f"not run yet: {', '.join(missing)}{kept}", markup=False, soft_wrap=True)
    shown = shlex.join(["sparkwright", "evidence", "show", str(report.file)])
    stdout.print(f"see what is in it before you send it: {shown}", markup=False, soft_wrap=True)


class _Lines:
    """Progress on standard error: a line for each finished step; on a terminal also one that rewrites itself."""

    def __init__(self) -> None:
        self._terminal, self._open = sys.stderr.isatty(), False
        self._of = ""

    def update(self, number: int, steps: int, step: str, what: str, done: int, total: int) -> None:
        self._of = f"[{number}/{steps}] "
        if self._terminal:
            count = f" {done:,}/{total:,}" if total else ""
            sys.stderr.write(f"\r\x1b[K{self._of}{step}: {what}{count}")
            sys.stderr.flush()
            self._open = True

    def finished(self, step: StepReport) -> None:
        self.clear()
        how = "finished before" if step.resumed else f"{step.seconds:.1f} s"
        line = Text.assemble(
            f"{step.name}: ", (str(step.status), STYLES[str(step.status)]), f" ({how}): {step.summary}"
        )
        stderr.print(line, soft_wrap=True)

    def clear(self) -> None:
        if self._open:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._open = False


@evidence.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.zip")
@click.option("--html", "html", type=click.Path(path_type=Path), metavar="OUT.html",
              help="Write one self-contained page instead.")  # fmt: skip
@json_option
def show(file: Path, html: Path | None, as_json: bool) -> None:
    """Show what a bundle holds, after verifying its hashes. Nothing in it is run, and nothing is unpacked to disk.

    Exit status: 0 if the bundle is whole, whatever its audits say; 9 if it is damaged, or no bundle.
    """
    from sparkwright.core.evidence import bundle
    from sparkwright.core.evidence.work import write_atomically

    if html is not None and as_json:
        raise click.UsageError("give --html or --json, not both")
    found = bundle.read(file.expanduser())
    if as_json:
        data = {"verified": True, "sha256": found.sha256, "bytes": found.bytes, "manifest": found.manifest,
                "parts": found.parts}  # fmt: skip
        write(json.dumps(data, indent=2) + "\n")  # ASCII: a terminal must not be steered by what a stranger wrote
        return
    if html is not None:
        from sparkwright.core.evidence.page import page

        target = html.expanduser()
        if not target.parent.is_dir():
            raise OutputError(f"the folder {target.parent} does not exist; create it, or choose another --html")
        if target.is_dir():
            raise OutputError(f"{target} is a folder; expected the name of a file")
        write_atomically(target, page(found).encode())
        stdout.print(f"{target}", markup=False, soft_wrap=True)
        return
    _show(found)


def _show(found: Bundle) -> None:
    from sparkwright.core.evidence import view

    _table(("what", "value"), view.overview(found))
    stdout.print()
    steps = view.sections(found)
    table = Table("step", "status", "seconds", "summary", box=None, padding=(0, 2, 0, 0))
    for s in steps:
        table.add_row(Text(s.name), Text(s.status, style=STYLES[s.status]), view.fixed(s.seconds, 1), Text(s.summary))
    stdout.print(table)
    for s in steps:
        for one in s.tables:
            if not one.detail:
                stdout.print(Text(f"\n{s.name}: {one.caption}", style="bold"))
                _table(one.head, one.rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in head:
        table.add_column(Text(name), overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    stdout.print(table)
