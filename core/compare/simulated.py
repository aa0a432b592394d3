"""A simulated engine with a known effect: what the statistics, the runner and the reports are tested on.

Its tokens are a hash of prompt, seed and position; its times come from a model of a machine: a base rate for each
prompt, an effect for the arm, a drift linear in the machine's own run counter, and noise for each run. No clock is
read, so a run that was interrupted and resumed gives the very records of one that was not (drift apart, which follows
the counter of the process).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, Literal

import attrs
import numpy as np

from sparkwright.core.compare.records import Arm, ArmSpec, Prompt, RunRecord
from sparkwright.core.errors import SparkwrightError

Noise = Literal["lognormal", "t3"]


@attrs.define(eq=False)
class Machine:
    """What the arms of one process share: a counter of runs, so that they drift together. drift: per run, in logs."""

    drift: float = 0.0
    runs: int = 0


@attrs.frozen(eq=False)
class SimulatedArm:
    """tau: mean accepted length of a block of `block` drafts (1: never drafts). fail_at: raises at that run."""

    name: str
    machine: Machine
    effect: float = 0.0
    noise: float = 0.02
    tail: Noise = "lognormal"
    block: int = 0
    accept: float = 0.7
    promise: str = "identity"
    salt: str = ""
    fail_at: int = -1
    before: Callable[[], None] | None = None

    @property
    def effective(self) -> dict[str, str]:
        return {"drafter": "simulated"}

    def complete(self, prompt: Prompt, *, max_tokens: int, seed: int, ignore_eos: bool) -> RunRecord:
        if self.before is not None:
            self.before()
        if self.machine.runs == self.fail_at:
            raise SparkwrightError("plugin 'simulated' raised in the middle of a round: as it was told to")
        rng = np.random.default_rng(_number(self.name, prompt.id, seed))
        text = np.random.default_rng(_number("text", self.salt, prompt.id, seed))
        speed = 100.0 * math.exp(0.3 * (_number("speed", prompt.id) % 1000 / 500 - 1))
        wobble = rng.normal() if self.tail == "lognormal" else rng.standard_t(3) / math.sqrt(3)
        rate = speed * math.exp(self.effect + self.noise * wobble - self.machine.drift * self.machine.runs)
        self.machine.runs += 1
        tokens = tuple(int(t) for t in text.integers(0, 49_152, max_tokens))
        return self._record(prompt, tokens, (max_tokens - 1) / rate, rng)

    def close(self) -> None:
        return None

    def _record(self, prompt: Prompt, tokens: tuple[int, ...], seconds: float, rng: np.random.Generator) -> RunRecord:
        left, rounds, drafting = len(tokens) - 1, 0, 0
        submitted, accepted = [0] * self.block, [0] * self.block
        while left > 0:
            limit = min(self.block, left - 1)
            kept = 0
            while kept < limit and rng.random() < self.accept:
                kept += 1
            for k in range(limit):
                submitted[k] += 1
                accepted[k] += k < kept
            rounds, drafting, left = rounds + 1, drafting + (limit > 0), left - kept - 1
        share = 0.2 if self.block else 0.0
        return RunRecord(
            tokens, "max_tokens", self.promise, len(prompt.text.split()), 0.01, seconds, rounds, drafting,
            sum(submitted), sum(submitted), sum(accepted), drafting, tuple(submitted), tuple(accepted),
            share * seconds, (0.9 - share) * seconds, 0.1 * seconds,
        )  # fmt: skip


def _number(*parts: Any) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(map(str, parts)).encode()).digest()[:8], "big")


@attrs.define(eq=False)
class SimulatedOpener:
    """Opens simulated arms on one machine; `spec.source` holds the arguments of SimulatedArm."""

    machine: Machine = attrs.field(factory=Machine)
    opened: list[str] = attrs.field(factory=list)

    def __call__(self, spec: ArmSpec, *, stages: bool = False) -> Arm:
        if spec.source.get("refuse"):
            raise SparkwrightError(str(spec.source["refuse"]))
        self.opened.append(spec.name)
        return SimulatedArm(spec.name, self.machine, **spec.source)


def simulated_spec(name: str, label: str = "", **source: Any) -> ArmSpec:
    """An arm whose whole configuration is what is simulated."""
    config = {f"drafter.simulated.{key}": value for key, value in source.items() if not callable(value)}
    digest = hashlib.sha256(repr(sorted(config.items())).encode()).hexdigest()
    return ArmSpec(name, label or ("base" if name == "A" else f"candidate {name}"), config, digest, source)
