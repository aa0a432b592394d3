"""Samplers with one thing wrong. The good twin lowers what has been emitted, by how often it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import mlx.core as mx
from tests.kit.bad.twin import Twin, provider

from sparkwright.core.contracts import Distribution, Provider, SamplerFacts, Site
from sparkwright.core.hookspecs import hookimpl


def normalised(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


@attrs.define(eq=False)
class Tired:
    """The state is a tuple of the emitted tokens."""

    leading_axes = True
    vocab: int

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Sequence[int]) -> tuple[int, ...]:
        return ()

    @hookimpl
    def sparkwright_sampler_advance(self, state: tuple[int, ...], tokens: Sequence[int]) -> tuple[int, ...]:
        return (*state, *tokens)

    @hookimpl
    def sparkwright_sampler_rows(self, state: tuple[int, ...], drafts: mx.array) -> mx.array:
        """How often each row's past holds each token, float32 [..., n + 1, V] for drafts [..., n]."""
        ids = mx.arange(self.vocab)
        emitted = (mx.array([*state, -1])[:, None] == ids).sum(axis=0)
        own = mx.cumsum((drafts[..., None] == ids).astype(mx.int32), axis=-2)
        none = mx.zeros((*drafts.shape[:-1], 1, self.vocab), dtype=mx.int32)
        return (mx.concatenate([none, own], axis=-2) + emitted).astype(mx.float32)

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: mx.array) -> Distribution:
        largest = mx.max(logits, axis=-1)
        flags = mx.where(mx.isfinite(largest), 0, 4).astype(mx.int32)
        return Distribution(normalised(logits - 0.5 * context), flags)

    @hookimpl
    def sparkwright_sampler_shape(self, logits: mx.array) -> mx.array:
        return normalised(logits)


class NextRow(Tired):
    """A row is drawn a little towards the one after it."""

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: mx.array) -> Distribution:
        after = mx.concatenate([logits[1:], logits[-1:]])
        return super().sparkwright_sampler_distribution(logits + 0.1 * after, context)


class OncePerRound(Tired):
    @hookimpl
    def sparkwright_sampler_rows(self, state: tuple[int, ...], drafts: mx.array) -> mx.array:
        rows = super().sparkwright_sampler_rows(state, drafts)
        return mx.broadcast_to(rows[:1], rows.shape)


@attrs.define(eq=False)
class Hidden(Tired):
    """Remembers what it emitted in itself, and not in the state."""

    emitted: tuple[int, ...] = ()

    @hookimpl
    def sparkwright_sampler_advance(self, state: Any, tokens: Sequence[int]) -> Any:
        self.emitted = (*self.emitted, *tokens)
        return state

    @hookimpl
    def sparkwright_sampler_rows(self, state: Any, drafts: mx.array) -> mx.array:
        return super().sparkwright_sampler_rows(self.emitted, drafts)


class Impure(Tired):
    """The state is a list that advance changes."""

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Sequence[int]) -> Any:
        return []

    @hookimpl
    def sparkwright_sampler_advance(self, state: Any, tokens: Sequence[int]) -> Any:
        state += tokens
        return state


class Careless(Tired):
    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: mx.array) -> Distribution:
        p = super().sparkwright_sampler_distribution(logits, context)
        return Distribution(p.log_p, mx.zeros_like(p.flags))


class FirstBlock(Tired):
    """Claims leading axes, and counts the first block's drafts for all."""

    @hookimpl
    def sparkwright_sampler_rows(self, state: tuple[int, ...], drafts: mx.array) -> mx.array:
        return super().sparkwright_sampler_rows(state, drafts.reshape(-1, drafts.shape[-1])[0])


class OneBlock(Tired):
    """Claims leading axes, and puts the row without drafts in front along the first axis, whatever that is."""

    @hookimpl
    def sparkwright_sampler_rows(self, state: tuple[int, ...], drafts: mx.array) -> mx.array:
        rows = super().sparkwright_sampler_rows(state, drafts)
        return rows if drafts.ndim == 1 else mx.concatenate([rows[:1], rows])


class Unnormalised(Tired):
    """Tokens below a floor are cut and nobody divides by the rest."""

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: mx.array) -> Distribution:
        p = super().sparkwright_sampler_distribution(logits, context)
        return Distribution(mx.where(p.log_p > -3.0, p.log_p, -mx.inf), p.flags)


class OneForAll(Tired):
    """The emitted tokens of the class: right for one engine at a time."""

    emitted: Any = ()

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Sequence[int]) -> tuple[int, ...]:
        OneForAll.emitted = ()
        return ()

    @hookimpl
    def sparkwright_sampler_advance(self, state: tuple[int, ...], tokens: Sequence[int]) -> tuple[int, ...]:
        OneForAll.emitted = (*OneForAll.emitted, *tokens)
        return ()

    @hookimpl
    def sparkwright_sampler_rows(self, state: tuple[int, ...], drafts: mx.array) -> mx.array:
        return super().sparkwright_sampler_rows(OneForAll.emitted, drafts)


def make(kind: type[Tired]) -> Provider:
    def build(site: Site) -> Tired:
        assert site.target is not None
        return kind(site.target.vocab_size)

    return provider("sampler", build, SamplerFacts())


GOOD = make(Tired)
TWINS = [
    Twin("a row sees the next one", "later rows do not matter", make(NextRow), GOOD),
    Twin("penalties once per round", "a row is its own decode", make(OncePerRound), GOOD),
    Twin("hidden state", "states are values", make(Hidden), GOOD),
    Twin("advance changes its state", "states are values", make(Impure), GOOD),
    Twin("does not mark NaN", "not finite", make(Careless), GOOD),
    Twin("p is not normalised", "distributions are well formed", make(Unnormalised), GOOD),
    Twin("leading axes with one block's drafts", "leading axes", make(FirstBlock), GOOD),
    Twin("leading axes of another shape", "leading axes", make(OneBlock), GOOD),
    Twin("one state for all engines", "two engines at once", make(OneForAll), GOOD),
]
