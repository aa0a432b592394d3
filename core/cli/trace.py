"""`sparkwright trace`: what is in a trace file."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from sparkwright.core.cli.shared import json_option, print_json, stdout
from sparkwright.core.notices import who_declined
from sparkwright.core.trace_show import TraceSummary, read_trace


@click.group()
def trace() -> None:
    """Read traces that `generate --trace FILE` wrote."""


@trace.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
def show(file: Path, as_json: bool) -> None:
    """Summarise the rounds in FILE, request by request."""
    requests = read_trace(file)
    if as_json:
        print_json([request.to_dict() for request in requests])
        return
    for number, request in enumerate(requests, 1):
        _print(request, number, len(requests))


def _print(t: TraceSummary, number: int, total: int) -> None:
    def say(line: str) -> None:
        stdout.print(line, markup=False, soft_wrap=True)

    head = f"request {number} of {total}: " if total > 1 else ""
    asked = "prompt unknown" if t.prompt_tokens is None else f"{t.prompt_tokens} prompt tokens, seed {t.seed}"
    end = "the trace ends before the request did" if t.finish is None else f"ended by {t.finish}"
    say(f"{head}{asked}; {t.tokens} tokens in {t.rounds} rounds, {end}")
    if t.decode_rate is not None:
        say(f"decode {t.decode_rate:.1f} tokens/s over {t.seconds:.3f} s of rounds")
    tau = "not measured" if t.tau is None else f"{t.tau:.2f}"
    say(
        f"{t.drafting_rounds} rounds with drafts: tau {tau}; {t.accepted} of {t.submitted} submitted drafts accepted "
        f"({t.drafted} drafted)"
    )
    declined = who_declined(t.declined_rounds, t.parked_rounds or 0, t.unsubmitted_rounds)
    if declined:
        say(f"rounds without drafts: {declined}")
    say(
        f"{t.transfers} transfers; {t.repeated_rounds} rounds repeated in full, {t.empty_residuals} empty residuals, "
        f"{t.cut_rounds} rounds cut by a stop rule"
    )
    if not t.rounds:
        return
    stages = Table("stage", "ms a round", "share", box=None, padding=(0, 2, 0, 0))
    for name in ("draft", "verify", "rest"):
        seconds = getattr(t, f"{name}_seconds")
        stages.add_row(name, f"{1000 * seconds / t.rounds:.3f}", f"{seconds / t.seconds:.0%}" if t.seconds else "-")
    stdout.print(stages)
    lengths = Table("tokens a round", "rounds", "", box=None, padding=(0, 2, 0, 0))
    for n, count in enumerate(t.lengths, 1):
        lengths.add_row(str(n), str(count), "#" * round(40 * count / max(t.lengths)))
    stdout.print(lengths)
    if t.acceptance:
        shares = (f"{k}: {'-' if share is None else format(share, '.0%')}" for k, share in enumerate(t.acceptance, 1))
        say("acceptance by position  " + "  ".join(shares))
    say("slowest rounds  " + "  ".join(f"{index}: {1000 * seconds:.2f} ms" for index, seconds in t.slowest))
