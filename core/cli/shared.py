"""What several commands share: configuration options, output of JSON, and bits of rich."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from sparkwright.core.config import Config, load_config
from sparkwright.core.errors import OutputError

F = TypeVar("F", bound=Callable[..., Any])


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # `main` knows what to do; rich would leave with a code of its own


stderr = Console(stderr=True, highlight=False)
stdout = _Console(highlight=False)


def config_options(function: F) -> F:
    """--config FILE and --set KEY=VALUE."""
    options = [
        click.option(
            "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="A TOML configuration."
        ),
        click.option(
            "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set one value (drafter.use=lookup). Repeatable."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")(function)


def read_config(
    ctx: click.Context, file: Path | None, sets: tuple[str, ...], flags: dict[str, tuple[Any, str]] | None = None
) -> Config:
    strict = bool(ctx.obj and ctx.obj.get("strict_plugins"))
    return load_config(file, sets=sets, flags=flags, strict_plugins=strict)


def print_json(data: Any) -> None:
    write(json.dumps(data, ensure_ascii=False, indent=2) + "\n")


def write(text: str) -> None:
    """Text to standard output, at once. A reader that has gone is no error here: `main` ends quietly."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except UnicodeEncodeError as error:
        raise OutputError(
            f"standard output takes {sys.stdout.encoding} and cannot show {error.object[error.start]!r}; "
            "set PYTHONIOENCODING=utf-8"
        ) from error
    except OSError as error:
        # What is still buffered would fail again at exit, loudly.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"standard output cannot be written: {error.strerror}") from error


EVERY = 5.0
"""Seconds between two lines of progress where standard error is no terminal; what is done sooner says nothing."""


class ProgressLine:
    """Progress as one line of standard error that rewrites itself; gone at the end, and not written again by a thread
    that is still at work (Ctrl-C does not wait for it). Where that is no terminal, a line every EVERY seconds."""

    def __init__(self, enabled: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._enabled, self._open, self._lock = enabled, False, threading.Lock()
        self._terminal, self._clock, self._said = sys.stderr.isatty(), clock, clock()

    def update(self, what: str, done: int, total: int) -> None:
        with self._lock:
            if not self._enabled:
                return
            if self._terminal:
                sys.stderr.write(f"\r\x1b[K{what} {done:,}/{total:,}")
                self._open = True
            elif (now := self._clock()) - self._said >= EVERY:
                self._said = now
                sys.stderr.write(f"{what} {done:,}/{total:,}\n")
            else:
                return
            sys.stderr.flush()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._enabled = False
            if self._open:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                self._open = False

    end = __exit__


def model_option(function: F) -> F:
    return click.option("--model", metavar="PATH", help="The model folder (same as --set target.model=PATH).")(function)


def warn(messages: tuple[str, ...] | list[str]) -> None:
    for message in messages:
        click.echo(f"warning: {message}", err=True)
