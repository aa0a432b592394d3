"""Planting faults: every barrier of a source, deleted one at a time.

A test of a kernel is worth something when each of its barriers is missed by it: for every mutant the checked run must
report a race, an uninitialised read or an order dependence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

BARRIER = re.compile(
    r"(?:metal::)?\b(threadgroup_barrier|simdgroup_barrier)\s*\(([^()]*|[^()]*\([^()]*\)[^()]*)\)\s*;"
)


@dataclass(frozen=True)
class Mutant:
    """A source without one barrier; `line` is where it stood (from 1), `what` its text."""

    line: int
    what: str
    text: str


def without_barriers(source: str) -> list[Mutant]:
    """One mutant per barrier call of `source`, in order. Comments are not looked into: keep barriers out of them."""
    out = []
    for found in BARRIER.finditer(source):
        line = source.count("\n", 0, found.start()) + 1
        gap = "\n" * found.group().count("\n")
        out.append(Mutant(line, found.group(), source[: found.start()] + ";" + gap + source[found.end() :]))
    return out
