"""Prompt lookup: the text so far is the draft model. It is not a language model and needs no weights.

The last n tokens are searched in the prompt and the text; what followed them last time is drafted. The longest n-gram
that occurs wins, and among its occurrences the most recent. A copy that runs into its own end goes on copying what it
has just drafted, so that a loop of any period fills a whole block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from sparkwright.core.contracts import WIDEST_VERIFY, Draft, DrafterFacts, PointMass, Provider, Site, option
from sparkwright.core.errors import ConfigError
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx


@attrs.frozen
class LookupOptions:
    max_n: int = option(4, "longest n-gram searched for", attrs.validators.in_(range(1, 65)))
    min_n: int = option(
        2, "shortest n-gram that may draft; 1 drafts often and badly", attrs.validators.in_(range(1, 65))
    )
    block: int = option(5, "most drafts at once", attrs.validators.in_(range(1, WIDEST_VERIFY)))


@attrs.define(eq=False)
class History:
    """The observed tokens, and for each n the place right after the latest occurrence of each n-gram.

    Every observed token adds one entry for each n, so observing is O(max_n - min_n + 1) whatever the length, and a
    search is as many dictionary look-ups.
    """

    min_n: int
    max_n: int
    tokens: list[int] = attrs.field(factory=list)
    after: dict[tuple[int, ...], int] = attrs.field(factory=dict)

    def observe(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.tokens.append(int(token))
            end = len(self.tokens)
            for n in range(self.min_n, min(self.max_n, end) + 1):
                self.after[tuple(self.tokens[end - n :])] = end

    def continuation(self, anchor: int, limit: int) -> list[int]:
        """What followed the longest known suffix of tokens + [anchor]: `limit` tokens, or none."""
        text = [*self.tokens[-self.max_n :], anchor]
        for n in range(min(self.max_n, len(self.tokens) + 1), self.min_n - 1, -1):
            start = self.after.get(tuple(text[len(text) - n :]))
            if start is not None:
                break
        else:
            return []
        # Position len(tokens) is the anchor, those after it are this block's own drafts.
        drafts: list[int] = []
        for source in range(start, start + limit):
            past = source - len(self.tokens)
            drafts.append(self.tokens[source] if past < 0 else anchor if past == 0 else drafts[past - 1])
        return drafts


@attrs.define(eq=False)
class Lookup:
    options: LookupOptions

    @hookimpl
    def sparkwright_drafter_start(self, prompt: Sequence[int], shape: Callable[[mx.array], mx.array]) -> History:
        return History(self.options.min_n, self.options.max_n)

    @hookimpl
    def sparkwright_drafter_draft(self, state: History, anchor: int, limit: int, keys: mx.array) -> Draft:
        import mlx.core as mx

        drafts = state.continuation(anchor, min(limit, self.options.block))
        return Draft(mx.array(drafts, dtype=mx.int32), PointMass())

    @hookimpl
    def sparkwright_drafter_observe(self, state: History, tokens: Sequence[int], taps: mx.array | None) -> None:
        state.observe(tokens)


def _describe(options: LookupOptions, site: Site) -> DrafterFacts:
    if options.min_n > options.max_n:
        raise ConfigError(
            f"drafter.lookup.min_n is {options.min_n} and drafter.lookup.max_n is {options.max_n}: "
            "expected min_n <= max_n; lower min_n or raise max_n"
        )
    return DrafterFacts(block=options.block)


@hookimpl
def sparkwright_register_drafters() -> list[Provider]:
    return [
        Provider(
            kind="drafter",
            name="lookup",
            summary="drafts what followed the same n-gram earlier in the prompt or text",
            build=lambda options, site: Lookup(options),
            describe=_describe,
            options=LookupOptions,
        )
    ]
