"""Observer `my_plugin`: one line on stderr when a text is finished.

That is the template's; say here what yours is, and what it is not.

The contract: the observer hooks of sparkwright.core.hookspecs (implement those you need); `RequestInfo`, `RoundTrace`,
`Result` in sparkwright.core.generation. An observer watches: it returns nothing and changes nothing. One that raises is
reported and switched off, and the request goes on.
"""

from __future__ import annotations

import sys

import attrs
from sparkwright.core.contracts import Provider, Site, option
from sparkwright.core.generation import RequestInfo, Result, RoundTrace
from sparkwright.core.hookspecs import hookimpl


@attrs.frozen
class Options:
    """Table [observers.my_plugin]. Every option needs a default and a help text."""

    rounds: bool = option(False, "a line for every round too", attrs.validators.instance_of(bool))


@attrs.define(eq=False)
class Observer:
    """Hook methods run in the engine's thread, one after another."""

    options: Options

    @hookimpl
    def sparkwright_request_started(self, request: RequestInfo) -> None:
        self.say(f"{len(request.prompt)} prompt tokens, seed {request.seed}")

    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        if self.options.rounds:
            self.say(f"round {trace.index}: {trace.accepted} of {trace.submitted} drafts accepted")

    @hookimpl
    def sparkwright_request_finished(self, result: Result) -> None:
        stats = result.stats
        self.say(f"{stats.tokens} tokens in {stats.rounds} rounds, {stats.accepted} of {stats.submitted} accepted")

    def say(self, line: str) -> None:
        # stdout is the text's; on a terminal that shows both, its line is not ended yet.
        begin = "\n" if sys.stdout.isatty() and sys.stderr.isatty() else ""
        print(f"{begin}my_plugin: {line}", file=sys.stderr)


def build(options: Options, site: Site) -> Observer:
    return Observer(options)


@hookimpl
def sparkwright_register_observers() -> list[Provider]:
    return [
        Provider(
            kind="observer",
            name="my_plugin",
            summary="a line when a text is finished",
            build=build,
            options=Options,
        )
    ]
