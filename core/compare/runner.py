"""Runs a plan: assembles the arms, checks them, measures what is not on disk yet, and leaves it there.

It draws no conclusions (`analysis` does) and knows no engine: arms come from an Opener.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import attrs

from sparkwright.core.compare.difference import check_effective
from sparkwright.core.compare.plan import Group, Plan
from sparkwright.core.compare.records import (
    Arm,
    ArmSpec,
    CompareError,
    Opener,
    Prompt,
    RunRecord,
    first_difference,
)
from sparkwright.core.compare.store import Entry, Store
from sparkwright.core.errors import SparkwrightError

Progress = Callable[[str, int, int], None]
EXACT_SLOTS = ("target", "kernels", "sampler", "engine")
"""What must be equal for two arms to owe each other the same text."""


def no_progress(what: str, done: int, total: int) -> None:
    return None


@attrs.frozen
class Settings:
    """tokens: of each timed run. gate: prompts run by every arm before timing (they warm up, too), `gate_tokens` each.
    profile: prompts run afterwards with the stages timed apart. cooldown: seconds to wait before each timed run."""

    tokens: int = 128
    ignore_eos: bool = True
    seed: int = 0
    gate: int = 3
    gate_tokens: int = 48
    profile: int = 3
    cooldown: float = 0.0


@attrs.frozen
class GateCheck:
    """What the texts of a prompt say about two arms. first: index of the first token that differs, or None."""

    prompt: str
    candidate: str
    promises: tuple[str, str]
    owed: bool
    first: int | None
    lengths: tuple[int, int]
    sha256: tuple[str, str]

    @property
    def failed(self) -> bool:
        return self.owed and self.first is not None and self.promises == ("identity", "identity")


def gate_checks(specs: Sequence[ArmSpec], entry: Entry) -> list[GateCheck]:
    """The base's text against every candidate's, for one measured prompt."""
    base = entry.runs[specs[0].name]
    checks = []
    for spec in specs[1:]:
        run = entry.runs[spec.name]
        promises = (base.promise, run.promise)
        owed = _same_text_is_owed(specs[0].config, spec.config) and all(p.startswith("identity") for p in promises)
        checks.append(
            GateCheck(
                entry.prompt,
                spec.name,
                promises,
                owed,
                first_difference(base.tokens, run.tokens),
                (len(base.tokens), len(run.tokens)),
                (base.tokens_sha256, run.tokens_sha256),
            )  # fmt: skip
        )
    return checks


def _same_text_is_owed(a: Mapping[str, object], b: Mapping[str, object]) -> bool:
    return all(a.get(key) == b.get(key) for key in {*a, *b} if key.partition(".")[0] in EXACT_SLOTS)


class Runner:
    """One comparison under way. `run` can be called on a store of any completeness; it measures what is missing."""

    def __init__(
        self,
        specs: Sequence[ArmSpec],
        prompts: Sequence[Prompt],
        plan: Plan,
        settings: Settings,
        opener: Opener,
        store: Store,
        *,
        progress: Progress = no_progress,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.specs, self.prompts, self.plan, self.settings = specs, prompts, plan, settings
        self.opener, self.store, self.progress = opener, store, progress
        self._sleep, self._clock, self._start = sleep, clock, clock()
        self._labels = {spec.name: f"arm {spec.name} ({spec.label})" for spec in specs}

    def run(self) -> None:
        if self._timing_is_complete():
            self._require_gate()
        else:
            arms = self._open(stages=False)
            try:
                self._gate(arms)
                self._time(arms)
            finally:
                _close(arms)
        if self.settings.profile and not self.store.has("profile", self._profiled()[-1]):
            arms = self._open(stages=True)
            try:
                self._profile(arms)
            finally:
                _close(arms)

    # -- assembling ----------------------------------------------------------------------------------------------

    def _open(self, *, stages: bool) -> dict[str, Arm]:
        arms: dict[str, Arm] = {}
        try:
            for number, spec in enumerate(self.specs):
                self.progress("assemble", number, len(self.specs))
                try:
                    arms[spec.name] = self.opener(spec, stages=stages)
                except Exception as error:
                    self._fail(f"{self._labels[spec.name]} cannot be assembled", error)
            self.progress("assemble", len(self.specs), len(self.specs))
            base = self.specs[0]
            for spec in self.specs[1:]:
                check_effective(base, spec, arms[base.name].effective, arms[spec.name].effective)
        except BaseException:
            _close(arms)
            raise
        return arms

    def _fail(self, what: str, error: Exception) -> NoReturn:
        """One message for a fault of an arm, ours or a plugin's: what failed, why, and what is kept."""
        why = str(error) if isinstance(error, SparkwrightError) else f"{type(error).__name__}: {error}"
        kept, total = len(self.store.pairs), len(self.plan.groups)
        after = (
            f"{kept} of {total} pairs are kept in {self.store.directory}; the same command continues from them"
            if kept
            else "nothing was measured yet"
        )
        raise CompareError(f"{what}: {why.rstrip('.')}. {after[0].upper()}{after[1:]}") from error

    # -- measuring -----------------------------------------------------------------------------------------------

    def _complete(
        self, arms: Mapping[str, Arm], name: str, prompt: Prompt, tokens: int, seed: int, what: str
    ) -> RunRecord:
        try:
            return arms[name].complete(prompt, max_tokens=tokens, seed=seed, ignore_eos=self.settings.ignore_eos)
        except Exception as error:
            self._fail(f"{self._labels[name]} failed in {what}, prompt {prompt.id!r}", error)

    def _gate(self, arms: Mapping[str, Arm]) -> None:
        """Warm every arm up on the gate's prompts; the first process to do so records what they said."""
        chosen = self._gated()
        for number, index in enumerate(chosen):
            prompt = self.prompts[index]
            tokens = min(self.settings.tokens, self.settings.gate_tokens)
            runs = {
                spec.name: self._complete(arms, spec.name, prompt, tokens, self.settings.seed, "the gate before timing")
                for spec in self.specs
            }
            if not self.store.has("gate", number):
                self.store.add(Entry("gate", number, prompt.id, runs, self._now()))
            self.progress("gate", number + 1, len(chosen))
        self._require_gate()

    def _require_gate(self) -> None:
        for entry in self.store.entries:
            if entry.kind != "gate":
                continue
            for check in gate_checks(self.specs, entry):
                if check.failed:
                    base, other = entry.runs[self.specs[0].name].tokens, entry.runs[check.candidate].tokens
                    at = check.first or 0
                    raise CompareError(
                        f"the gate before timing failed on prompt {entry.prompt!r}: "
                        f"{self._labels[self.specs[0].name]} and "
                        f"{self._labels[check.candidate]} both promise identity, but their texts differ from token "
                        f"{at} on "
                        f"({_at(base, at)} against {_at(other, at)}). One of them is wrong, so its speed means "
                        f"nothing: "
                        "run `sparkwright audit` on both"
                    )

    def _time(self, arms: Mapping[str, Arm]) -> None:
        total = len(self.plan.groups)
        for group in self.plan.groups:
            if not self.store.has("pair", group.index):
                self._reference(arms, group.index)
                self._group(arms, group)
            self.progress("pairs", group.index + 1, total)
        self._reference(arms, total)

    def _group(self, arms: Mapping[str, Arm], group: Group) -> None:
        prompt = self.prompts[group.prompt]
        what = f"pair {group.index + 1} of {len(self.plan.groups)}"
        runs: dict[str, RunRecord] = {}
        for name in group.order:
            if self.settings.cooldown > 0:
                self._sleep(self.settings.cooldown)
            runs[name] = self._complete(arms, name, prompt, self.settings.tokens, group.seed, what)
            self._require_same_engine(name, runs[name])
        self.store.add(Entry("pair", group.index, prompt.id, runs, self._now()))

    def _require_same_engine(self, name: str, run: RunRecord) -> None:
        """A resumed run must measure the engine that it began with (its cost curves may have been measured anew)."""
        before = {e.runs[name].config_sha256 for e in self.store.entries if e.kind == "pair"}
        if before - {run.config_sha256}:
            raise CompareError(
                f"{self._labels[name]} is not the engine that the {len(self.store.pairs)} pairs in "
                f"{self.store.directory} "
                "were measured with: plugin versions or cost curves have changed since. Choose another --out"
            )

    def _reference(self, arms: Mapping[str, Arm], before: int) -> None:
        """The base on one fixed prompt, now and then: a thermometer of the machine."""
        if before in self.plan.references and not self.store.has("reference", before):
            prompt, name = self.prompts[self.plan.groups[0].prompt], self.specs[0].name
            run = self._complete(arms, name, prompt, self.settings.tokens, self.settings.seed, "a reference run")
            self.store.add(Entry("reference", before, prompt.id, {name: run}, self._now()))

    def _profile(self, arms: Mapping[str, Arm]) -> None:
        chosen = self._profiled()
        for number in chosen:
            prompt = self.prompts[self.plan.groups[number].prompt]
            runs = {
                spec.name: self._complete(
                    arms, spec.name, prompt, self.settings.tokens, self.settings.seed, "the profile"
                )
                for spec in self.specs
            }
            if not self.store.has("profile", number):
                self.store.add(Entry("profile", number, prompt.id, runs, self._now()))
            self.progress("profile", number + 1, len(chosen))

    # -- what is missing -----------------------------------------------------------------------------------------

    def _timing_is_complete(self) -> bool:
        groups = all(self.store.has("pair", group.index) for group in self.plan.groups)
        return groups and self.store.has("reference", len(self.plan.groups))

    def _gated(self) -> list[int]:
        """The gate's prompts: the first different ones of the plan; at least one, so that every arm is warm."""
        different = list(dict.fromkeys(group.prompt for group in self.plan.groups))
        return different[: max(1, self.settings.gate)]

    def _profiled(self) -> list[int]:
        return list(range(min(self.settings.profile, len(self.plan.groups))))

    def _now(self) -> float:
        return round(self._clock() - self._start, 3)


def _close(arms: Mapping[str, Arm]) -> None:
    for arm in arms.values():
        arm.close()


def _at(tokens: Sequence[int], index: int) -> str:
    return f"token id {tokens[index]}" if index < len(tokens) else "the end"
