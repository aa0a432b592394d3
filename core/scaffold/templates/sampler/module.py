"""Sampler `my_plugin`: a temperature and nothing else.

That is the template's; say here what yours is, and what it is not.

The contract: `sparkwright_sampler_*` in sparkwright.core.hookspecs; `Distribution`, `SamplerFacts` in
sparkwright.core.contracts. A sampler does not draw: it says what is drawn from, one row for each position of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
from sparkwright.core.contracts import NON_FINITE, Distribution, Provider, SamplerFacts, Site, option
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx

GREEDY_BELOW = 1e-5
"""Dividing by less only turns logits into infinities."""


@attrs.frozen
class Options:
    """Table [sampler.my_plugin]. Every option needs a default and a help text."""

    temperature: float = option(1.0, "divides the logits; 1e-5 and below is greedy", attrs.validators.ge(0.0))

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_BELOW


@attrs.define(eq=False)
class Sampler:
    """`leading_axes`: `rows` and `distribution` take axes in front, for `sparkwright audit law`."""

    leading_axes = True
    options: Options

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Sequence[int]) -> None:
        """The state of a new request: a value that is never changed, or None."""
        return None

    @hookimpl
    def sparkwright_sampler_advance(self, state: None, tokens: Sequence[int]) -> None:
        """The state after these emitted tokens: another value."""
        return None

    @hookimpl
    def sparkwright_sampler_rows(self, state: None, drafts: mx.array) -> None:
        """What `distribution` needs to know of each row: row i follows every emitted token and drafts[:i]."""
        return None

    @hookimpl
    def sparkwright_sampler_shape(self, logits: mx.array) -> mx.array:
        """logits [..., V] -> log probabilities float32, by temperature and filters alone; drafters may draw from it."""
        import mlx.core as mx

        if self.options.greedy:
            best = mx.arange(logits.shape[-1]) == mx.argmax(logits, axis=-1, keepdims=True)
            return mx.where(best, 0.0, -mx.inf)
        x = logits.astype(mx.float32) / self.options.temperature
        return x - mx.logsumexp(x, axis=-1, keepdims=True)

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: None, full: bool) -> Distribution:
        """logits float32 [..., r, V] -> one distribution a row, each from its own logits and context alone."""
        import mlx.core as mx

        highest = mx.max(logits, axis=-1)
        bad = mx.any(mx.isnan(logits), axis=-1) | (mx.abs(highest) == mx.inf)
        mode = mx.argmax(logits, axis=-1).astype(mx.int32) if self.options.greedy else None
        return Distribution(self.sparkwright_sampler_shape(logits), (bad * NON_FINITE).astype(mx.int32), mode)


def describe(options: Options, site: Site) -> SamplerFacts:
    """host=True if `rows` reads the drafts to the host, as a grammar must: it costs a transfer a round."""
    return SamplerFacts(deterministic=options.greedy)


def build(options: Options, site: Site) -> Sampler:
    return Sampler(options)


@hookimpl
def sparkwright_register_samplers() -> list[Provider]:
    return [
        Provider(
            kind="sampler",
            name="my_plugin",
            summary="a temperature",
            build=build,
            describe=describe,
            options=Options,
        )
    ]
