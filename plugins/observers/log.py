"""Observer `log`: requests and rounds through structlog, on stderr."""

from __future__ import annotations

import sys
from typing import Any, Literal

import attrs
import structlog

from sparkwright.core.contracts import Provider, Site, option
from sparkwright.core.generation import RequestInfo, Result, RoundTrace
from sparkwright.core.hookspecs import hookimpl


@attrs.frozen
class LogOptions:
    format: Literal["console", "json"] = option("console", "lines for people, or JSON lines")
    rounds: bool = option(False, "log every round, not only requests")


@attrs.define(eq=False)
class Log:
    logger: Any
    rounds: bool

    @hookimpl
    def sparkwright_request_started(self, request: RequestInfo) -> None:
        self.logger.info(
            "request_started", prompt_tokens=len(request.prompt), max_tokens=request.max_tokens, seed=request.seed
        )

    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        if self.rounds:
            self.logger.info("round_finished", **attrs.asdict(trace))

    @hookimpl
    def sparkwright_request_finished(self, result: Result) -> None:
        stats = result.stats
        self.logger.info(
            "request_finished", finish=result.finish, tokens=stats.tokens, rounds=stats.rounds, tau=stats.tau,
            decode_rate=stats.decode_rate, promise=result.promise, config=result.config_sha256[:12],
        )  # fmt: skip

    @hookimpl
    def sparkwright_plugin_broken(self, name: str, error: str) -> None:
        self.logger.warning("plugin_broken", plugin=name, error=error)


def build(options: LogOptions, site: Site) -> Log:
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if options.format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    processors = [structlog.processors.add_log_level, structlog.processors.TimeStamper(fmt="iso"), renderer]
    return Log(structlog.wrap_logger(structlog.PrintLogger(sys.stderr), processors=processors), options.rounds)


@hookimpl
def sparkwright_register_observers() -> list[Provider]:
    return [
        Provider(
            kind="observer",
            name="log",
            summary="logs requests (and rounds) through structlog",
            options=LogOptions,
            build=build,
        )
    ]
