"""Observer `trace`: a request's rounds as JSON lines, for `sparkwright trace show` and for anything that reads JSON."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, TextIO

import attrs

from sparkwright.core.contracts import Provider, Site, option
from sparkwright.core.errors import ConfigError, OutputError
from sparkwright.core.generation import RequestInfo, Result, RoundTrace
from sparkwright.core.hookspecs import hookimpl


@attrs.frozen
class TraceOptions:
    path: str = option("", "file to write; it is replaced")


@attrs.define(eq=False)
class Trace:
    """One line for each event: {"event": "request" | "round" | "result", ...}."""

    file: TextIO

    def _write(self, event: str, data: dict[str, Any]) -> None:
        try:
            self.file.write(json.dumps({"event": event, **data}, ensure_ascii=False) + "\n")
            self.file.flush()
        except OSError:
            with suppress(OSError):  # it is switched off now, and nobody will tell it that the engine is closed
                self.file.close()
            raise

    @hookimpl
    def sparkwright_request_started(self, request: RequestInfo) -> None:
        self._write("request", {**attrs.asdict(request), "eos": sorted(request.eos)})

    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        self._write("round", attrs.asdict(trace))

    @hookimpl
    def sparkwright_request_finished(self, result: Result) -> None:
        self._write("result", result.to_dict())

    @hookimpl
    def sparkwright_engine_closed(self) -> None:
        self.file.close()


def build(options: TraceOptions, site: Site) -> Trace:
    if not options.path:
        raise ConfigError("observers.trace.path is not set; the trace observer needs a file to write")
    try:
        return Trace(open(options.path, "w", encoding="utf-8"))
    except OSError as error:
        raise OutputError(f"trace file {options.path} cannot be written: {error.strerror}") from error


@hookimpl
def sparkwright_register_observers() -> list[Provider]:
    return [
        Provider(
            kind="observer",
            name="trace",
            summary="writes every round as a JSON line",
            options=TraceOptions,
            build=build,
        )
    ]
