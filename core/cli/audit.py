"""`sparkwright audit`: the promises of a configuration, checked. Exit status 0 is a pass, 8 is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from sparkwright.core.blas import ensure_blas
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

if TYPE_CHECKING:
    from sparkwright.core.audit import LawResult, Subject

ENGINES = ("identity", "kernels")
"""Audits that name the hash of the engine (plugins and cost curves included), not of the configuration alone."""
FAILED, UNDECIDED = 8, 9
"""Exit statuses of an audit that found something wrong, and of one that compared too little to find anything."""
FIRST = 3
"""Failed tests of the law that are named; the rest are counted."""


@click.group()
def audit() -> None:
    """Check what is promised: one audit for each kind of promise.

    Every audit says which promise is in force, the hash of the configuration, and in one sentence what its outcome
    proves and what it does not. The exit status is 0 for a pass, 8 where something is wrong, and 9 where nothing or too
    little was compared to say anything (1..7 are errors, as everywhere).
    """
    ensure_blas()  # before anything imports MLX: an audit must multiply as the engine does


def common(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (json_option, config_options, model_option):
        function = option(function)
    return function


def configuration(ctx: click.Context, file: Path | None, sets: tuple[str, ...], model: str | None) -> Config:
    flags = {} if model is None else {"target.model": (model, "--model")}
    config = read_config(ctx, file, sets, flags)
    warn(config.warnings)
    return config


prompts_option = click.option(
    "--prompts", type=click.Path(path_type=Path), metavar="FILE",
    help="UTF-8, one prompt a line. Default: a few built-in ones.",
)  # fmt: skip
text_option = click.option(
    "--text", type=click.Path(path_type=Path), metavar="FILE",
    help="The text to run over, UTF-8. Default: the prompts that `compare` brings.",
)  # fmt: skip


def finish(
    ctx: click.Context, name: str, data: dict[str, Any], as_json: bool, *tables: Table, below: Sequence[str] = ()
) -> None:
    """Print one outcome and leave with its status. data: passed, undecided, promise, config_sha256, meaning, and what
    was seen. below: lines under the tables."""
    outcome = "passed" if data["passed"] else "UNDECIDED" if data["undecided"] else "NOT PASSED"
    if as_json:
        print_json(finite({"audit": name, **data}))
    else:
        for table in tables:
            if table.row_count:
                stdout.print(table)
        for line in below:
            stdout.print(Text(line), soft_wrap=True)
        of = "engine" if name in ENGINES else "configuration"
        stdout.print(Text(f"promise: {data['promise']}; {of} {data['config_sha256'][:12]}"))
        stdout.print(Text(data["meaning"]), soft_wrap=True)
        stdout.print(Text(f"audit {name}: {outcome}"), style="bold")
    ctx.exit({"passed": 0, "UNDECIDED": UNDECIDED, "NOT PASSED": FAILED}[outcome])


def finite(value: Any) -> Any:
    """The same data as JSON can say it: None for what is infinite or not a number."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table_of(headings: tuple[str, ...], rows: list[tuple[Any, ...]], title: str = "") -> Table:
    table = Table(*headings, box=None, padding=(0, 2, 0, 0), title=title or None, title_justify="left")
    for row in rows:
        table.add_row(*(Text(f"{cell:.3g}" if isinstance(cell, float) else str(cell)) for cell in row))
    return table


# -------------------------------------------------------------------------------------------------------- the law


@audit.command()
@click.option("--trials", type=click.IntRange(1), metavar="N", help="Texts for each kind of draft. Default: 300000.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the trials and the small model.")
@click.option("--drafts", multiple=True, type=click.Choice(["dense", "sparse", "point"]),
              help="Kind of draft. Repeatable. Default: all that the verifier takes.")  # fmt: skip
@common
@click.pass_context
def law(
    ctx: click.Context, config_file: Path | None, sets: tuple[str, ...], model: str | None, as_json: bool,
    trials: int | None, seed: int, drafts: tuple[Any, ...],
) -> None:  # fmt: skip
    """Does speculation emit the target's distribution? On exact small models, by statistics.

    Sampler, scheduler and verifier are the configured ones. The joint law of three tokens, and of each token after each
    prefix, is compared with plain decoding's, which is known exactly here. No model is loaded. `same`: texts that are
    plain decoding's for the same seed, where that is promised; in brackets: how many tests failed.
    """
    from sparkwright.core.audit import audit_law, subjects_of
    from sparkwright.core.audit.configured import KINDS
    from sparkwright.core.audit.law import TRIALS

    config = configuration(ctx, config_file, sets, model)
    subjects = subjects_of(config, drafts or KINDS, seed=seed)
    single = subjects[0].one_at_a_time
    if single and not as_json:
        do = "does" if len(single) == 1 else "do"
        click.echo(f"one text at a time: {' and '.join(single)} {do} not take leading axes; this is slow", err=True)
    kinds = [one.name.split(" x ")[1] for one in subjects]
    with ProgressLine(not as_json) as line:

        def law_of(kind: str, one: Subject) -> LawResult:
            def tell(what: str, done: int, total: int) -> None:
                line.update(f"{what} with {kind} drafts", done, total)

            return audit_law(one, trials or TRIALS, seed=seed, progress=tell)

        results = [law_of(kind, one) for kind, one in zip(kinds, subjects, strict=True)]
    failed = next((r for r in results if r.failed), None)
    undecided = next((r for r in results if r.undecided), None)
    slots = (config.slots[kind].use for kind in ("sampler", "scheduler", "verifier"))
    title = f"{' x '.join(slots)}, {results[0].trials:,} texts a row; bounds and power at 99%"
    data = {
        "passed": failed is None and undecided is None,
        "undecided": failed is None and undecided is not None,
        "promise": results[0].promise,
        "config_sha256": config.sha256,
        "meaning": (failed or undecided or max(results, key=lambda r: r.smallest_bias)).meaning,
        "one_text_at_a_time": list(single),
        "results": [r.to_json() for r in results],
    }
    finish(ctx, "law", data, as_json, law_table(kinds, results, title), below=law_failures(kinds, results))


def law_table(kinds: Sequence[str], results: Sequence[LawResult], title: str) -> Table:
    """One row for each kind of draft, within 80 columns whatever was found. `same`: texts that are plain decoding's."""
    rows = []
    for kind, r in zip(kinds, results, strict=True):
        outcome = "undecided" if r.undecided else f"NOT PASSED ({len(r.failed)})" if r.failed else "passed"
        same = "-" if r.identical is None else f"{r.identical / r.trials:.0%}"
        rows.append(
            (kind, f"{r.joint.statistic:.0f}/{r.joint.df}", f"{r.joint.p_value:.2g}", f"{r.variation_bound:.2%}",
             f"{r.smallest_bias:.2%}", same, f"{r.tau:.2f}", outcome)
        )  # fmt: skip
    return table_of(("drafts", "chi2/df", "p", "TV below", "bias seen", "same", "tau", "outcome"), rows, title)


def law_failures(kinds: Sequence[str], results: Sequence[LawResult]) -> list[str]:
    """For each kind of draft that failed, a line with the first tests that did."""
    lines = []
    for kind, r in zip(kinds, results, strict=True):
        if r.failed:
            more = f" (+{len(r.failed) - FIRST})" if len(r.failed) > FIRST else ""
            lines.append(f"{kind}: {'; '.join(r.failed[:FIRST])}{more}")
    return ["failed tests, the first of each kind of draft (all of them: --json):", *lines] if lines else []


# --------------------------------------------------------------------------------------------------- live models


@audit.command()
@prompts_option
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Texts a prompt.")
@click.option("--seed", type=int, default=0, show_default=True, help="The first of them.")
@click.option("--tokens", type=click.IntRange(1), default=64, show_default=True, help="Tokens of each text.")
@common
@click.pass_context
def identity(
    ctx: click.Context, config_file: Path | None, sets: tuple[str, ...], model: str | None, as_json: bool,
    prompts: Path | None, seeds: int, seed: int, tokens: int,
) -> None:  # fmt: skip
    """Is speculative text plain decoding's text? For verifiers that promise identity.

    Every first difference is explained: which tokens, by what margin, and whether rounding or a near tie accounts for
    it.
    """
    from sparkwright.core.audit.identity import audit_identity
    from sparkwright.core.audit.texts import prompts_from

    config = configuration(ctx, config_file, sets, model)
    asked = prompts_from(prompts)
    with ProgressLine(not as_json) as line:
        result = audit_identity(config, asked, seeds=range(seed, seed + seeds), max_tokens=tokens, progress=line.update)
    if not as_json:
        stdout.print(
            f"{result.identical} of {result.texts} texts identical; {result.matching_tokens} of {result.tokens} tokens "
            f"before a difference; {result.submitted} drafts submitted"
        )
        for one in result.divergences[:20]:
            stdout.print(Text(f"  {one}"), soft_wrap=True)
    finish(ctx, "identity", result.to_dict(), as_json)


@audit.command()
@text_option
@click.option("--tokens", type=click.IntRange(16), metavar="N",
              help="Tokens of the text. Default: past every turn of the target, at most 2200.")  # fmt: skip
@click.option("--reference", type=click.IntRange(0), metavar="N",
              help="Tokens held against the target's float64 reference, if it offers one; 0 for none. Default: all, or "
              "none for weights over 4 GB, which take hours.")  # fmt: skip
@common
@click.pass_context
def consistency(
    ctx: click.Context, config_file: Path | None, sets: tuple[str, ...], model: str | None, as_json: bool,
    text: Path | None, tokens: int | None, reference: int | None,
) -> None:  # fmt: skip
    """Are decode, verify and prefill one function, and the model's? Logits of a text, in blocks of every width.

    Rows that attend to other positions or go to other experts are told apart from rounding. Where the target offers a
    reference (its definition in float64, computed apart from it), decoding is held against that too.
    """
    from sparkwright.core.assembly import promise_of
    from sparkwright.core.audit.consistency import audit_consistency
    from sparkwright.core.audit.texts import text_from

    config = configuration(ctx, config_file, sets, model)
    content = text_from(text)
    promise = promise_of(config)
    with ProgressLine(not as_json) as line:
        result = audit_consistency(config, content, limit=tokens, reference=reference, progress=line.update)
    rows = [
        (w.mode, w.rows, w.forwards, w.compared, w.largest, w.position if w.largest else "-", w.ties, w.structural,
         w.numeric)
        for w in sorted(result.widths, key=lambda w: (w.mode, w.rows))
    ]  # fmt: skip
    heads = ("mode", "rows", "forwards", "compared", "largest", "at", "ties", "structural", "numeric")
    if not as_json:
        chose = ", ".join(result.choices) or "none (only logits)"
        stdout.print(
            f"{result.tokens} tokens, around positions {', '.join(map(str, result.turns))}; choices compared: {chose}; "
            f"rounding explains up to {result.rounding:.3g} of {result.scale:.3g}; verdict: {result.verdict}",
            soft_wrap=True,
        )
        for one in result.findings[:5]:
            stdout.print(Text(f"  {one.kind}: {one}"), soft_wrap=True)
    about = {"promise": promise, "config_sha256": config.sha256}
    finish(ctx, "consistency", result.to_dict() | about, as_json, table_of(heads, rows))


@audit.command()
@text_option
@click.option("--tokens", type=click.IntRange(36), default=256, show_default=True, help="Tokens of the text.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random rounds.")
@common
@click.pass_context
def rollback(
    ctx: click.Context, config_file: Path | None, sets: tuple[str, ...], model: str | None, as_json: bool,
    text: Path | None, tokens: int, seed: int,
) -> None:  # fmt: skip
    """Do rejected rows leave a trace? Random rounds with random rejections, against a clean run."""
    from sparkwright.core.assembly import assemble, promise_of
    from sparkwright.core.audit.identity import without_drafter
    from sparkwright.core.audit.rollback import audit_rollback
    from sparkwright.core.audit.texts import text_from

    config = configuration(ctx, config_file, sets, model)
    content = text_from(text)
    promise = promise_of(config)
    with (
        ProgressLine(not as_json) as line,
        assemble(without_drafter(config), progress=line.update) as engine,
    ):
        ids = engine.target.encode(content)[: min(tokens, engine.target.facts.context)]
        result = engine.run(lambda parts: audit_rollback(parts.target, ids, seed=seed, progress=line.update))
    if not as_json:
        stdout.print(
            f"{result.rounds} rounds, {result.forwarded} rows forwarded, {result.committed} kept, {result.checks} "
            f"checks; largest difference {result.worst:.3g} (position {result.worst_position}), allowed "
            f"{result.bound:.3g}",
            soft_wrap=True,
        )
    about = {"promise": promise, "config_sha256": config.sha256}
    finish(ctx, "rollback", result.to_dict() | about, as_json)


@audit.command()
@prompts_option
@click.option("--tokens", type=click.IntRange(1), default=32, show_default=True, help="Tokens of each text.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the texts.")
@common
@click.pass_context
def kernels(
    ctx: click.Context, config_file: Path | None, sets: tuple[str, ...], model: str | None, as_json: bool,
    prompts: Path | None, tokens: int, seed: int,
) -> None:  # fmt: skip
    """Do the selected kernels compute what their ops mean? Side by side with the reference, on live inputs."""
    from sparkwright.core.audit.kernels import audit_kernels
    from sparkwright.core.audit.texts import prompts_from

    config = configuration(ctx, config_file, sets, model)
    asked = prompts_from(prompts)
    with ProgressLine(not as_json) as line:
        result = audit_kernels(config, asked, seed=seed, max_tokens=tokens, progress=line.update)
    rows = [
        (op.op, op.backend, op.calls, ",".join(map(str, sorted(op.rows))), op.worst, f"{op.call}, {op.row}", op.ties,
         "within bounds" if op.excess is None else op.excess.fault)
        for op in result.ops
    ]  # fmt: skip
    heads = ("op", "backend", "calls", "rows", "worst/bound", "call, row", "ties", "outcome")
    if result.references and not as_json:
        stdout.print(Text(f"run as their references: {', '.join(result.references)}"), soft_wrap=True)
    data = result.to_dict() | {"undecided": not result.passed and result.first is None}
    finish(ctx, "kernels", data, as_json, table_of(heads, rows))
