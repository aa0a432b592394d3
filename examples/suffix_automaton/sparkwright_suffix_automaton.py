"""Drafter `suffix_automaton`: the longest suffix of the text that occurred before, whatever its length, is continued.

It is not a language model and has no weights. Unlike an n-gram table it knows no longest n: a suffix automaton holds
every substring of the text in at most two states a token (Blumer et al. 1985, "The smallest automaton recognizing the
subwords of a text"), and is extended by one token in amortised constant time.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from sparkwright.core.contracts import WIDEST_VERIFY, Draft, DrafterFacts, PointMass, Provider, Site, option
from sparkwright.core.hookspecs import hookimpl


@attrs.frozen
class Options:
    min_match: int = option(2, "shortest repeated suffix that may draft", attrs.validators.ge(1))
    block: int = option(5, "most drafts at once", attrs.validators.in_(range(1, WIDEST_VERIFY)))


@attrs.define(eq=False)
class Automaton:
    """The observed tokens and the automaton of all their substrings; state 0 is the empty one.

    A state stands for substrings that end at the same places: `length` of the longest of them, `link` to the state of
    their longest suffix that ends elsewhere too, `end` the index right after their first occurrence.
    """

    tokens: list[int] = attrs.field(factory=list)
    following: list[dict[int, int]] = attrs.field(factory=lambda: [{}])
    link: list[int] = attrs.field(factory=lambda: [-1])
    length: list[int] = attrs.field(factory=lambda: [0])
    end: list[int] = attrs.field(factory=lambda: [0])
    last: int = 0

    def _state(self, following: dict[int, int], link: int, length: int, end: int) -> int:
        self.following.append(following)
        self.link.append(link)
        self.length.append(length)
        self.end.append(end)
        return len(self.link) - 1

    def add(self, token: int) -> None:
        """One more token of the text."""
        self.tokens.append(token)
        new = self._state({}, 0, self.length[self.last] + 1, len(self.tokens))
        at, self.last = self.last, new
        while at >= 0 and token not in self.following[at]:
            self.following[at][token] = new
            at = self.link[at]
        if at < 0:
            return
        known = self.following[at][token]
        if self.length[known] == self.length[at] + 1:
            self.link[new] = known
            return
        # `known` also holds longer substrings, which do not end here: the shorter ones get a state of their own.
        twin = self._state(dict(self.following[known]), self.link[known], self.length[at] + 1, self.end[known])
        self.link[known] = self.link[new] = twin
        while at >= 0 and self.following[at].get(token) == known:
            self.following[at][token] = twin
            at = self.link[at]

    def match(self, anchor: int) -> tuple[int, int]:
        """The longest suffix of tokens + [anchor] that occurs in tokens: its length, and the index after it there."""
        at = self.last
        while at >= 0 and anchor not in self.following[at]:
            at = self.link[at]
        return (0, 0) if at < 0 else (self.length[at] + 1, self.end[self.following[at][anchor]])

    def continuation(self, anchor: int, limit: int, min_match: int) -> list[int]:
        """What followed that suffix; a copy that runs into the end of the text goes on with its own drafts."""
        length, start = self.match(anchor)
        if length < min_match:
            return []
        text = [*self.tokens[start:], anchor]
        drafts: list[int] = []
        for i in range(limit):
            drafts.append(text[i] if i < len(text) else drafts[i - len(text)])
        return drafts


@attrs.define(eq=False)
class Drafter:
    options: Options

    @hookimpl
    def sparkwright_drafter_start(self) -> Automaton:
        return Automaton()

    @hookimpl
    def sparkwright_drafter_draft(self, state: Automaton, anchor: int, limit: int) -> Draft:
        import mlx.core as mx

        drafts = state.continuation(anchor, min(limit, self.options.block), self.options.min_match)
        return Draft(mx.array(drafts, dtype=mx.int32), PointMass())

    @hookimpl
    def sparkwright_drafter_observe(self, state: Automaton, tokens: Sequence[int]) -> None:
        for token in tokens:
            state.add(token)


def describe(options: Options, site: Site) -> DrafterFacts:
    return DrafterFacts(block=options.block)


@hookimpl
def sparkwright_register_drafters() -> list[Provider]:
    return [
        Provider(
            kind="drafter",
            name="suffix_automaton",
            summary="continues the longest suffix that occurred before, of any length",
            build=lambda options, site: Drafter(options),
            describe=describe,
            options=Options,
        )
    ]
