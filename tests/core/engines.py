"""Engines from a dict and toy plugins: what the tests of the engine are written with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import attrs
import numpy as np

from sparkwright.core.assembly import assemble
from sparkwright.core.config import Config, load_config
from sparkwright.core.contracts import Provider
from sparkwright.core.engine import Engine
from sparkwright.core.generation import RoundTrace
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.plugins import Catalogue, discover
from sparkwright.core.testing import ground, toys
from sparkwright.core.testing.ground import near as near

V = 11


@cache
def installed() -> Catalogue:
    return discover()


def table(seed: int = 0, size: int = V) -> np.ndarray[Any, Any]:
    """The kit's Markov chain, of these tests' size."""
    return ground.table(size, seed)


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(copy.deepcopy(dict(base)))
    for key, value in more.items():
        nested = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = merged(out[key], value) if nested else value
    return out


GREEDY: dict[str, Any] = {
    "target": {"use": "markov"},
    "drafter": {"use": "none"},
    "scheduler": {"use": "fixed"},
    "verifier": {"use": "greedy"},
    "sampler": {"use": "greedy"},
    "engine": {"costs": "none"},
    "generation": {"max_tokens": 30, "ignore_eos": False},
}
SAMPLED: dict[str, Any] = merged(GREEDY, {"verifier": {"use": "coupled"}, "sampler": {"use": "plain"}})


def toy_config(settings: Mapping[str, Any], *providers: Provider, base: Mapping[str, Any] = GREEDY) -> Config:
    """providers replace the default toys: target markov, drafters table and random, sampler plain."""
    defaults = (
        toys.markov_target(table()),
        toys.table_drafter(near(table()), proposal="point", block=7),
        toys.random_drafter(),
        toys.plain_sampler(),
    )
    catalogue = installed().with_providers(*defaults).with_providers(*providers)
    return load_config(merged(base, settings), environ={}, catalogue=catalogue)


def toy_engine(
    settings: Mapping[str, Any], *providers: Provider, base: Mapping[str, Any] = GREEDY, **how: Any
) -> Engine:
    return assemble(toy_config(settings, *providers, base=base), **how)


def watched(provider: Provider, change: Callable[[Any], Any] | None = None) -> tuple[Provider, list[Any]]:
    """The provider, and a list of everything that it builds; `change` may replace what is built."""
    built: list[Any] = []

    def build(options: Any, site: Any) -> Any:
        made = provider.build(options, site)
        built.append(made if change is None else change(made))
        return built[-1]

    return attrs.evolve(provider, build=build), built


@attrs.define(eq=False)
class Rounds:
    """An observer that keeps every round."""

    seen: list[RoundTrace] = attrs.field(factory=list)

    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        self.seen.append(trace)


def rounds_observer() -> tuple[Provider, list[RoundTrace]]:
    rounds = Rounds()
    return Provider(
        kind="observer", name="rounds", summary="toy: keeps rounds", build=lambda options, site: rounds
    ), rounds.seen


def letters(text: str) -> list[int]:
    return toys.ToyText().encode(text)
