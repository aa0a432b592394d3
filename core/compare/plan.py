"""Which runs a comparison makes, in which order; a pure function of the seed.

A group is one prompt run once by every arm; a pair is the base's run and a candidate's within a group. Two arms go in
ABBA order: a seeded coin chooses the order of an even group, the next group has it reversed, so that a drift that is
linear in time cancels in the mean of the two. Several candidates take a random permutation and its reverse. Within a
group all arms use the same seed, hence the same randomness keys.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs

from sparkwright.core.compare.records import CompareError, Prompt


@attrs.frozen
class Group:
    """index: from 0. prompt: index into the prompts. seed: of every run in the group. order: arm names."""

    index: int
    prompt: int
    seed: int
    order: tuple[str, ...]


@attrs.frozen
class Plan:
    """references: groups before which the base repeats one fixed prompt, to see the machine drift; the
    number of groups stands for the end."""

    groups: tuple[Group, ...]
    references: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)


def orders(names: Sequence[str], groups: int, seed: int) -> list[tuple[str, ...]]:
    """The order of arms in each group: a seeded permutation, then its reverse, then a new permutation."""
    coin = random.Random(seed)
    result: list[tuple[str, ...]] = []
    for index in range(groups):
        if index % 2:
            result.append(result[-1][::-1])
        else:
            order = list(names)
            coin.shuffle(order)
            result.append(tuple(order))
    return result


def interleaved(prompts: Sequence[Prompt]) -> list[int]:
    """Indices of prompts with the kinds taking turns, so that a short run sees all of them."""
    kinds: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        kinds.setdefault(prompt.kind, []).append(index)
    turns = max((len(queue) for queue in kinds.values()), default=0)
    return [queue[turn] for turn in range(turns) for queue in kinds.values() if turn < len(queue)]


def make_plan(names: Sequence[str], prompts: Sequence[Prompt], pairs: int, seed: int, stretches: int = 1) -> Plan:
    """`pairs` groups over the prompts, `stretches` times, each with a coin of its own (a self-test repeats a
    comparison). Prompts that run out are used again with the next seed."""
    if pairs < 1:
        raise CompareError(f"--pairs is {pairs}, but a comparison needs at least one pair (two for an interval)")
    if not prompts:
        raise CompareError("there are no prompts; give --prompts a file with at least one, or a bundled set")
    turn = interleaved(prompts)
    sequence = [order for stretch in range(stretches) for order in orders(names, pairs, seed + stretch)]
    groups = tuple(
        Group(index, turn[index % len(turn)], seed + index // len(turn), order) for index, order in enumerate(sequence)
    )
    checkpoints = max(1, min(4, len(groups) // 5))  # a short run has little time to drift in
    between = {2 * round(k * len(groups) / checkpoints / 2) for k in range(checkpoints)}  # never inside an ABBA
    references = sorted({*(at for at in between if at < len(groups)), len(groups)})
    return Plan(groups, tuple(references))
