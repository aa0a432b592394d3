"""Proof that two arms differ in what was asked and in nothing else, from their resolved configurations alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from sparkwright.core.compare.records import ArmSpec, CompareError
from sparkwright.core.errors import did_you_mean

ABSENT = "(absent)"


@attrs.frozen
class Difference:
    """One resolved value that is not the same in both arms; ABSENT where an arm does not have the key."""

    key: str
    base: Any
    candidate: Any

    @property
    def slot(self) -> str:
        return self.key.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.base)} -> {_shown(self.candidate)}".replace(repr(ABSENT), ABSENT)


LONGEST = 160
"""Characters of a value that are shown; the whole one is in result.json."""


def _shown(value: Any) -> str:
    """A value as it is written, its middle left out where it is long."""
    whole = repr(value)
    if len(whole) <= LONGEST:
        return whole
    size = f"{len(value)} entries" if isinstance(value, (list, tuple, dict)) else f"{len(whole)} characters"
    return f"{whole[: LONGEST // 2]} ... {whole[-LONGEST // 3 :]} ({size})"


def diff(base: Mapping[str, Any], candidate: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every key whose value differs, sorted."""
    found = []
    for key in sorted({*base, *candidate}):
        a, b = base.get(key, ABSENT), candidate.get(key, ABSENT)
        if a != b or type(a) is not type(b):
            found.append(Difference(key, a, b))
    return tuple(found)


def check(
    base: ArmSpec, candidate: ArmSpec, asked: Sequence[str] | None, allow: Iterable[str] = ()
) -> tuple[Difference, ...]:
    """The differences of a candidate, or CompareError if there is one that nobody asked for.

    asked: the keys given to `--swap`, or None when whole files are compared; then the differences must lie in one slot.
    A key `slot.use` brings the option tables of the plugin that left and of the one that came. allow: slots, or single
    keys, that may differ besides.
    """
    found = diff(base.config, candidate.config)
    allowed = set(allow)
    known = {key for d in found for key in (d.key, d.slot)}
    for name in sorted(allowed):
        if name not in known and name not in {k.partition(".")[0] for k in (*base.config, *candidate.config)}:
            hint = did_you_mean(name, known)
            raise CompareError(f"--allow {name}: no such slot or key in the configuration{hint}")
    if not found:
        raise CompareError(
            f"arm {candidate.name} ({candidate.label}) resolves to the same configuration as the base, so there is "
            "nothing to compare; to measure A against A on purpose use --self-test"
        )
    open_ = [d for d in found if d.key not in allowed and d.slot not in allowed]
    hidden = [d for d in open_ if not _was_asked(d, asked)] if asked is not None else _beyond_one_slot(open_)
    if hidden:
        lines = "\n".join(f"  {d}" for d in hidden)
        meant = f"only {', '.join(asked)} was to differ" if asked is not None else "the arms may differ in one slot"
        slots = " ".join(f"--allow {slot}" for slot in sorted({d.slot for d in hidden}))
        raise CompareError(
            f"arm {candidate.name} ({candidate.label}) has a second difference: {meant}, but these differ too:\n"
            f"{lines}\nMake them equal, or say that it is meant: {slots}"
        )
    return found


def _was_asked(d: Difference, asked: Sequence[str]) -> bool:
    for key in asked:
        if d.key == key or d.key.startswith(f"{key}."):
            return True
        slot, _, rest = key.partition(".")
        parts = d.key.split(".")
        # another plugin in a slot: the option table of the one that left or came is absent on the other side
        of_a_plugin = len(parts) > 2 and parts[0] == slot and parts[1] != "ops"
        if rest == "use" and of_a_plugin and ABSENT in (d.base, d.candidate):
            return True
    return False


def _beyond_one_slot(found: Sequence[Difference]) -> list[Difference]:
    """All differences if they span more than one slot: which of them was meant is not ours to guess."""
    return list(found) if len({d.slot for d in found}) > 1 else []


def check_effective(base: ArmSpec, candidate: ArmSpec, a: Mapping[str, str], b: Mapping[str, str]) -> None:
    """CompareError if assembled arms differ in a slot or a kernel that their configurations do not differ in.

    a, b: `Arm.effective`. Ops that only one arm has belong to a plugin that was swapped. Kernels may change with the
    target, whose shapes decide which backend covers an op; cost curves belong to a target and drafter, and change with
    either, or because `engine.costs` says so.
    """
    meant = {d.slot for d in diff(base.config, candidate.config)}
    hidden = [
        f"{key} is {a[key]!r} in one and {b[key]!r} in the other"
        for key in sorted({*a} & {*b})
        if a[key] != b[key]
        and key.partition(".")[0] not in meant
        and not (key.startswith("kernels.") and "target" in meant)
        and not (key == "costs" and meant & {"target", "drafter", "engine", "kernels"})
    ]
    if hidden:
        raise CompareError(
            f"arm {candidate.name} ({candidate.label}) was assembled with a second difference: {'; '.join(hidden)}, "
            "although the configurations say the same there. Name the plugin in both instead of 'auto'"
        )


def described(candidate: ArmSpec, found: Sequence[Difference]) -> list[str]:
    """The differences in lines for people: the proof that is printed before anything runs."""
    who = f"arm {candidate.name} ({candidate.label})"
    return [f"{who} differs from the base in {len(found)} resolved values, no others:", *(f"  {d}" for d in found)]
