"""The `greedy` sampler: the largest logit, the lower id on a tie. No options; `chain` has penalties for T = 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from sparkwright.core.contracts import Distribution, NoOptions, Provider, SamplerFacts, Site
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx


@attrs.define(eq=False)
class Greedy:
    """Rows have no context and a request has no state. Hook methods take leading batch axes."""

    leading_axes = True

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Sequence[int]) -> None:
        return None

    @hookimpl
    def sparkwright_sampler_rows(self, state: Any, drafts: mx.array) -> None:
        return None

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: Any, full: bool) -> Distribution:
        import mlx.core as mx

        from sparkwright.plugins.samplers import filters

        bad = filters.non_finite(logits)
        mode = filters.first_largest(logits)
        flags = filters.flags(bad, mx.zeros_like(bad))
        return Distribution(filters.one_hot(mode, logits.shape[-1]), flags, mode)

    @hookimpl
    def sparkwright_sampler_advance(self, state: Any, tokens: Sequence[int]) -> None:
        return None

    @hookimpl
    def sparkwright_sampler_shape(self, logits: mx.array) -> mx.array:
        from sparkwright.plugins.samplers import filters

        return filters.one_hot(filters.first_largest(logits), logits.shape[-1])


def build(options: NoOptions, site: Site) -> Greedy:
    return Greedy()


def describe(options: NoOptions, site: Site) -> SamplerFacts:
    return SamplerFacts(deterministic=True)


@hookimpl
def sparkwright_register_samplers() -> list[Provider]:
    return [
        Provider(
            kind="sampler",
            name="greedy",
            summary="the largest logit, without randomness",
            build=build,
            describe=describe,
        )
    ]
