"""Providers that say something wrong of themselves, or whose module does something while it is imported."""

from __future__ import annotations

from typing import Any

import attrs
from tests.kit.bad import clean
from tests.kit.bad.twin import Twin

from sparkwright.core.contracts import HOOK_API, Provider, SchedulerFacts, Site, option

(GOOD,) = clean.sparkwright_register_schedulers()


def from_module(name: str) -> Provider:
    """The provider as if this module had made it; the module itself is not imported here."""

    def build(options: Any, site: Site) -> clean.Two:
        return clean.Two()

    build.__module__ = f"tests.kit.bad.{name}"
    return attrs.evolve(GOOD, name="elsewhere", build=build)


def _double(x: int) -> int:
    return 2 * x


@attrs.frozen
class Doubling:
    depth: int = attrs.field(default=2, converter=_double, metadata={"help": "twice what was asked"})


@attrs.frozen
class Depth:
    depth: int = option(2, "how many", attrs.validators.ge(0))


@attrs.frozen
class AnyDepth:
    depth: Any = attrs.field(default=2, metadata={"help": "how many, or whatever else"})


class Counting:
    calls = 0


def _describe_counts(options: Any, site: Site) -> SchedulerFacts:
    Counting.calls += 1
    return SchedulerFacts(costs=Counting.calls % 2 == 0)


def fields(**more: Any) -> Provider:
    return attrs.evolve(GOOD, **more)


WITH_OPTIONS = fields(options=Depth)
TWINS = [
    Twin("a name with capitals", "provider", fields(name="Two-Drafts"), GOOD),
    Twin("a newer API", "provider", fields(hook_api=HOOK_API + 1), GOOD),
    Twin("a summary of two lines", "provider", fields(summary="two\nlines"), GOOD),
    Twin("another name than it registers", "provider", fields(name="three"), GOOD),
    Twin("a converter that changes options", "options round trip", fields(options=Doubling), WITH_OPTIONS),
    Twin("an option of any type", "options round trip", fields(options=AnyDepth), WITH_OPTIONS),
    Twin("facts that change", "described before built", fields(describe=_describe_counts), GOOD),
    Twin("imports MLX", "metadata without mlx", from_module("imports_mlx"), GOOD),
    Twin("patches MLX", "import changes nothing", from_module("patches_mlx"), GOOD),
    Twin("seeds Python", "import changes nothing", from_module("seeds_python"), GOOD),
]
