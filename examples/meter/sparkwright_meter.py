"""Observer `meter`: how many drafts get through, live while a text is generated and as a picture when it is done.

It writes on stderr only, so that a text can still go into a file. While a text runs, it draws only if stderr is a
terminal and stdout is not: two writers on one terminal would overwrite each other.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import attrs
from sparkwright.core.contracts import Provider, Site, option
from sparkwright.core.generation import RequestInfo, Result, RoundTrace
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.live import Live

BAR = 24


@attrs.frozen
class Options:
    live: Literal["auto", "always", "never"] = option(
        "auto", "draw while a text is generated; auto: if stderr is a terminal and stdout is not"
    )


@attrs.define(eq=False)
class Meter:
    """Hook methods run in the engine's thread, one after another: no lock is needed."""

    console: Console
    live: bool
    display: Live | None = None
    tokens: int = 0
    submitted: list[int] = attrs.field(factory=list)  # [k]: rounds in which draft k + 1 was verified
    accepted: list[int] = attrs.field(factory=list)

    @hookimpl
    def sparkwright_request_started(self, request: RequestInfo) -> None:
        self.tokens, self.submitted, self.accepted = 0, [], []
        if self.live:
            from rich.live import Live

            self.display = Live(console=self.console, transient=True, redirect_stdout=False, redirect_stderr=False)
            self.display.start()

    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        self.tokens += len(trace.tokens)
        if not trace.cut:  # what a stop rule cut off might have been accepted
            self._count(trace.submitted, trace.accepted)
        if self.display is not None:
            self.display.update(self.picture(f"{self.tokens} tokens"))

    @hookimpl
    def sparkwright_request_finished(self, result: Result) -> None:
        self._hide()
        tau = "none drafted" if result.stats.tau is None else f"{result.stats.tau:.2f} tokens a round that drafted"
        self.console.print(self.picture(f"{result.stats.tokens} tokens, {tau}, promise {result.promise}"))

    @hookimpl
    def sparkwright_engine_closed(self) -> None:
        self._hide()  # a request that failed never finished

    def picture(self, title: str) -> Group:
        """One bar for each position of the block: of its drafts that were verified, how many were accepted."""
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        for depth, (passed, tried) in enumerate(zip(self.accepted, self.submitted, strict=True), start=1):
            full = round(BAR * passed / tried)
            table.add_row(f"draft {depth}", "█" * full + "░" * (BAR - full), f"{passed / tried:.0%} of {tried}")
        return Group(title, table)

    def _count(self, submitted: int, accepted: int) -> None:
        more = submitted - len(self.submitted)
        self.submitted += [0] * more
        self.accepted += [0] * more
        for k in range(submitted):
            self.submitted[k] += 1
            self.accepted[k] += k < accepted

    def _hide(self) -> None:
        if self.display is not None:
            self.display.stop()
            self.display = None


def build(options: Options, site: Site) -> Meter:
    from rich.console import Console  # not above: every command imports every plugin, and rich is not light

    auto = sys.stderr.isatty() and not sys.stdout.isatty()
    return Meter(Console(stderr=True, highlight=False), options.live == "always" or (options.live == "auto" and auto))


@hookimpl
def sparkwright_register_observers() -> list[Provider]:
    return [
        Provider(
            kind="observer",
            name="meter",
            summary="acceptance by position of the block, live on stderr",
            build=build,
            options=Options,
        )
    ]
