"""The drafter that never drafts: plain decoding through the same round loop. It is the baseline arm of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from sparkwright.core.contracts import Draft, DrafterFacts, NoOptions, PointMass, Provider, Site
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx


@attrs.define(eq=False)
class NoDrafter:
    """Answers every call, drafts nothing, and remembers nothing."""

    @hookimpl
    def sparkwright_drafter_start(self, prompt: Sequence[int], shape: Callable[[mx.array], mx.array]) -> str:
        return "none"  # a state must not be None: a first-result hook reads None as "no answer"

    @hookimpl
    def sparkwright_drafter_draft(self, state: str, anchor: int, limit: int, keys: mx.array) -> Draft:
        import mlx.core as mx

        return Draft(mx.zeros((0,), dtype=mx.int32), PointMass())

    @hookimpl
    def sparkwright_drafter_observe(self, state: str, tokens: Sequence[int], taps: mx.array | None) -> None:
        return None


def _describe(options: NoOptions, site: Site) -> DrafterFacts:
    return DrafterFacts(block=0)


@hookimpl
def sparkwright_register_drafters() -> list[Provider]:
    return [
        Provider(
            kind="drafter",
            name="none",
            summary="plain decoding: nothing is drafted",
            build=lambda options, site: NoDrafter(),
            describe=_describe,
        )
    ]
