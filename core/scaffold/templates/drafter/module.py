"""Drafter `my_plugin`: drafts what followed each token last time.

That is the template's; say here what yours is, and what it is not.

The contract: `sparkwright_drafter_*` in sparkwright.core.hookspecs; `Draft`, `Proposal`, `DrafterFacts` in
sparkwright.core.contracts. Importing this module must not import MLX; methods may.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs
from sparkwright.core.contracts import WIDEST_VERIFY, Draft, DrafterFacts, PointMass, Provider, Site, option
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx


@attrs.frozen
class Options:
    """Table [drafter.my_plugin]. Every option needs a default and a help text."""

    block: int = option(4, "most drafts at once", attrs.validators.in_(range(1, WIDEST_VERIFY)))


@attrs.define(eq=False)
class State:
    """What is remembered of one request's text: for every token, the one that followed it last."""

    following: dict[int, int] = attrs.field(factory=dict)
    last: int | None = None


@attrs.define(eq=False)
class Drafter:
    options: Options

    @hookimpl
    def sparkwright_drafter_start(self, prompt: Sequence[int], shape: Callable[[mx.array], mx.array]) -> State:
        """A new request. The prompt comes through `observe` too, so there is nothing to read from it here.

        shape: temperature and filters, logits -> log q; for drafters that draw (`Dense`, `Sparse`).
        """
        return State()

    @hookimpl
    def sparkwright_drafter_draft(self, state: State, anchor: int, limit: int, keys: mx.array) -> Draft:
        """At most `limit` tokens after the anchor, which is not observed yet. Fewer, or none, are fine.

        Deterministic drafts are a `PointMass()`. A drafter that draws does so with `gumbel(keys[k])` from
        sparkwright.core.randomness, and hands over exactly the q it drew from: `Dense(log_q)` or `Sparse(ids, log_q)`.
        """
        import mlx.core as mx

        drafts: list[int] = []
        token = anchor
        while len(drafts) < min(limit, self.options.block) and token in state.following:
            token = state.following[token]
            drafts.append(token)
        return Draft(mx.array(drafts, dtype=mx.int32), PointMass())

    @hookimpl
    def sparkwright_drafter_observe(self, state: State, tokens: Sequence[int], taps: mx.array | None) -> None:
        """Tokens that are now part of the text, in order: the prompt, the anchor, accepted drafts. Nothing else is.

        taps: the target's hidden states at these positions, if DrafterFacts(taps=...) asks for layers.
        """
        for token in tokens:
            if state.last is not None:
                state.following[state.last] = token
            state.last = token


def describe(options: Options, site: Site) -> DrafterFacts:
    """What is known before anything is loaded; the engine refuses what does not fit together by it."""
    return DrafterFacts(block=options.block, proposal="point")


def build(options: Options, site: Site) -> Drafter:
    """site: the target's facts, embedding and head, its tokenizer, your model's folder. See contracts.Site."""
    return Drafter(options)


@hookimpl
def sparkwright_register_drafters() -> list[Provider]:
    return [
        Provider(
            kind="drafter",
            name="my_plugin",
            summary="drafts what followed each token last time",
            build=build,
            describe=describe,
            options=Options,
        )
    ]
