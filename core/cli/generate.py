"""`sparkwright generate`: a prompt in, text out, and what was measured."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sparkwright.core.cli.shared import (
    ProgressLine,
    config_options,
    json_option,
    print_json,
    read_config,
    stderr,
    warn,
    write,
)
from sparkwright.core.config import Config
from sparkwright.core.contracts import Provider
from sparkwright.core.errors import ConfigError, RequestError
from sparkwright.core.generation import Result
from sparkwright.core.notices import who_declined

SLOT_FLAGS = ("drafter", "scheduler", "verifier", "sampler")
SAMPLING_FLAGS = {"temp": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p"}


def _slot_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for slot in reversed(SLOT_FLAGS):
        help_text = f"The {slot} plugin (same as --set {slot}.use=NAME)."
        function = click.option(f"--{slot}", metavar="NAME", help=help_text)(function)
    return function


@click.command()
@click.argument("prompt", required=False)
@click.option("-f", "--prompt-file", type=click.Path(path_type=Path), help="Read the prompt from a UTF-8 file.")
@click.option("--model", help="The model folder (same as --set target.model=PATH).")
@config_options
@_slot_options
@click.option("--temp", "--temperature", "temp", type=float, help="Temperature; 0 is greedy.")
@click.option("--top-p", type=float, help="Nucleus sampling: keep this much probability.")
@click.option("--top-k", type=int, help="Keep this many tokens.")
@click.option("--min-p", type=float, help="Keep tokens at least this fraction as likely as the likeliest.")
@click.option("--seed", type=int, help="Seed; the same seed gives the same text.")
@click.option("-m", "--max-tokens", type=int, help="Most tokens to generate.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. Repeatable.")
@click.option("--ignore-eos", is_flag=True, default=None, help="Go on after an end-of-sequence token.")
@click.option("--chat/--raw", default=None, help="As a chat message or as is. Default: chat if the model has one.")
@click.option("--system", metavar="TEXT", help="A system message before the prompt (chat only).")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Write every round as a JSON line.")
@click.option("--force", is_flag=True, default=None, help="Load a model even if its memory does not seem to fit.")
@click.option("--quiet", is_flag=True, help="Print the text and nothing else.")
@json_option
@click.pass_context
def generate(
    ctx: click.Context,
    /,
    prompt: str | None,
    prompt_file: Path | None,
    config_file: Path | None,
    sets: tuple[str, ...],
    chat: bool | None,
    system: str | None,
    trace: Path | None,
    quiet: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Generate text from PROMPT ("-" reads it from standard input).

    Text goes to standard output as it is decided; what was measured goes to standard error. Ctrl-C ends the text
    after the round at hand and prints what was measured until then.
    """
    from sparkwright.core.assembly import assemble

    text = _prompt(prompt, prompt_file)
    if not text.strip() and chat is not False:
        raise RequestError(
            "the prompt is empty: give some text (--raw takes an empty prompt as it is: the model begins a text)"
        )
    config = _config(ctx, config_file, sets, trace, flags)
    if not quiet:
        warn(config.warnings)
    bars = _Bars(enabled=not (quiet or as_json))
    with bars, assemble(config, progress=bars.update) as engine:
        as_chat = engine.target.text.has_chat if chat is None else chat
        if system is not None and not as_chat:
            raise RequestError("--system needs a chat: the prompt is raw (use --chat, with a model that has a format)")
        messages = ([{"role": "system", "content": system}] if system is not None else []) + [
            {"role": "user", "content": text}
        ]
        result = _run(engine.stream(messages if as_chat else text), bars, show=not as_json)
    if as_json:
        print_json(result.to_dict())
    elif not quiet:
        warn(result.warnings[len(config.warnings) :])
        for line in summary(result):
            stderr.print(line, style="dim", markup=False, soft_wrap=True)
    if result.finish == "cancelled":
        ctx.exit(130)


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise click.UsageError("give one prompt: PROMPT, - for standard input, or --prompt-file FILE")
    if file is None and prompt != "-":
        assert prompt is not None
        return prompt
    where = "standard input" if file is None else str(file)
    try:
        data = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        raise RequestError(f"the prompt file {where} cannot be read: {error.strerror}") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"the prompt in {where} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}"
        ) from error


def _config(
    ctx: click.Context, file: Path | None, sets: tuple[str, ...], trace: Path | None, flags: dict[str, Any]
) -> Config:
    """The configuration with the flags as its last layer. Sampling flags go to the sampler that is in use."""
    given: dict[str, tuple[Any, str]] = {}

    def put(key: str, value: Any, flag: str) -> None:
        if value is not None:
            given[key] = (value, f"--{flag.replace('_', '-')}")

    put("target.model", flags["model"], "model")
    for slot in SLOT_FLAGS:
        put(f"{slot}.use", flags[slot], slot)
    for name in ("seed", "max_tokens", "ignore_eos"):
        put(f"generation.{name}", flags[name], name)
    put("engine.force", flags["force"], "force")
    put("generation.stop", list(flags["stop"]) or None, "stop")
    sampling = {flag: flags[flag] for flag in SAMPLING_FLAGS if flags[flag] is not None}
    if sampling or trace is not None:
        base = read_config(ctx, file, sets, given)
        sampler = base.catalogue.get("sampler", base.slots["sampler"].use, "sampler.use").provider
        for flag, value in sampling.items():
            option = SAMPLING_FLAGS[flag]
            if not _takes(sampler, option):
                able = [p.name for p in (i.provider for i in base.catalogue.of_kind("sampler")) if _takes(p, option)]
                raise ConfigError(
                    f"--{flag.replace('_', '-')} {value}: the sampler '{sampler.name}' has no {option} "
                    f"({sampler.summary}); use --sampler {' or '.join(able) or 'NAME'}, or leave the flag out"
                )
            put(f"sampler.{base.slots['sampler'].use}.{SAMPLING_FLAGS[flag]}", value, flag)
        if trace is not None:
            put("observers.use", [*(name for name in base.observers if name != "trace"), "trace"], "trace")
            put("observers.trace.path", str(trace), "trace")
    return read_config(ctx, file, sets, given)


def _takes(sampler: Provider, option: str) -> bool:
    return any(field.name == option for field in attrs.fields(sampler.options))


def _run(stream: Any, bars: _Bars, show: bool) -> Result:
    """Print pieces as they come. The first Ctrl-C ends the request; its result is still printed and returned."""
    shown = 0
    with stream:
        try:
            for piece in stream:
                bars.stop()
                if show and piece.text:
                    shown += len(piece.text)
                    write(printable(piece.text))
        except KeyboardInterrupt:
            stream.cancel()
        bars.stop()
        result: Result = stream.result
        if show:
            rest = result.text[shown:]  # what was decided while Ctrl-C was under way
            write(printable(rest) + ("" if result.text.endswith("\n") else "\n"))
        return result


def printable(text: str) -> str:
    """Text for a terminal: control characters other than newline and tab become visible, so a model cannot steer it."""
    if not sys.stdout.isatty():
        return text
    return "".join(c if c in "\n\t" or c.isprintable() or ord(c) > 0x9F else f"\\x{ord(c):02x}" for c in text)


def summary(result: Result) -> list[str]:
    """What was measured, in a few lines."""
    stats = result.stats

    def rate(value: float | None) -> str:
        return "not measured" if value is None else f"{value:.1f} tokens/s"

    lines = [
        "",
        f"{stats.tokens} tokens, ended by {result.finish}; prefill of {stats.prompt_tokens} tokens "
        f"{rate(stats.prefill_rate)}, decode {rate(stats.decode_rate)}",
    ]
    slots = {name: report.effective for name, report in result.slots.items()}
    if stats.drafting_rounds:
        tau = "not measured" if stats.tau is None else f"{stats.tau:.2f}"
        lines.append(
            f"{stats.rounds} rounds, {stats.drafting_rounds} with drafts: tau {tau}, "
            f"{stats.accepted} of {stats.submitted} submitted drafts accepted ({stats.drafted} drafted)"
        )
        shares = [f"{k}: {share:.0%}" for k, share in enumerate(stats.acceptance, 1) if share is not None]
        if shares:
            lines.append("acceptance by position  " + "  ".join(shares))
    else:
        lines.append(
            f"{stats.rounds} rounds, none with drafts (drafter {slots['drafter']}, scheduler {slots['scheduler']})"
        )
    if stats.drafting_rounds < stats.rounds / 10:  # it hardly drafts: who is to be looked at?
        said = who_declined(stats.declined_rounds, stats.parked_rounds, 0)
        if said:
            lines.append(f"rounds without drafts: {said}")
    lines.append(
        f"promise: {result.promise} (drafter {slots['drafter']}, scheduler {slots['scheduler']}, "
        f"verifier {slots['verifier']}, sampler {slots['sampler']}); "
        f"seed {result.seed}; engine {result.config_sha256[:12]}"
    )
    for slot, report in result.slots.items():
        if report.requested not in (report.effective, "auto"):
            lines.append(f"{slot}: asked for {report.requested}, ran {report.effective}: {report.reason}")
        elif report.reason and report.requested == report.effective:
            lines.append(f"{slot} {report.effective}: {report.reason}")
    return lines


class _Bars:
    """Progress of loading and prefill: bars on stderr until text comes; lines now and then if that is no terminal."""

    def __init__(self, enabled: bool) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        terminal = sys.stderr.isatty()
        self._progress = Progress(*columns, console=stderr, transient=True, disable=not (enabled and terminal))
        self._line = ProgressLine(enabled and not terminal)
        self._tasks: dict[str, Any] = {}
        self._running = False

    def update(self, what: str, done: int, total: int) -> None:
        """Called from the engine's thread; rich's Progress takes a lock of its own."""
        self._line.update(what, done, total)
        if what not in self._tasks:
            if not self._running:
                self._progress.start()
                self._running = True
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)

    def stop(self) -> None:
        if self._running:
            self._progress.stop()
            self._running = False

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
