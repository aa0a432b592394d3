"""A known-bad plugin, the check that must catch it, and the good twin that must pass that check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from sparkwright.core.contracts import Facts, Provider, Site


@attrs.frozen(eq=False)
class Twin:
    fault: str
    check: str
    bad: Provider
    good: Provider
    options: Mapping[str, Any] = attrs.field(factory=dict)

    def __str__(self) -> str:
        return f"{self.bad.kind}-{self.fault.replace(' ', '-')}"


def provider(kind: Any, make: Callable[[Site], object], facts: Facts, **more: Any) -> Provider:
    """A provider named `twin` of what `make` builds."""
    values: dict[str, Any] = {
        "kind": kind,
        "name": "twin",
        "summary": "a twin",
        "build": lambda options, site: make(site),
    }
    if facts is not None:
        values["describe"] = lambda options, site: facts
    return Provider(**(values | more))
