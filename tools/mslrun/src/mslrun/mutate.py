"""Planting faults: every barrier of a source, deleted one at a time.

A test of a kernel is worth something when each of its barriers is missed by it: for every mutant the checked run must
report a race, an uninitialised read or an order dependence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

BARRIERS = ("threadgroup_barrier", "simdgroup_barrier")


@dataclass(frozen=True)
class Mutant:
    """A source without one barrier; `line` is where it stood (from 1), `what` its text."""

    line: int
    what: str
    text: str


def without_barriers(source: str, names: Sequence[str] = BARRIERS) -> list[Mutant]:
    """One mutant per barrier call of `source`, in order.

    names: the functions or macros that are barriers. Comments are looked into too: keep barriers out of them.
    """
    argument = r"(?:[^()]|\([^()]*\))*"
    call = re.compile(rf"(?:metal::)?\b(?:{'|'.join(map(re.escape, names))})\s*\({argument}\)\s*;")
    out = []
    for found in call.finditer(source):
        line = source.count("\n", 0, found.start()) + 1
        gap = "\n" * found.group().count("\n")
        out.append(Mutant(line, found.group(), source[: found.start()] + ";" + gap + source[found.end() :]))
    return out
