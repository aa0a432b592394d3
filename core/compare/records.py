"""What one run of one arm leaves behind, and what an arm is: the seam between a comparison and whatever it measures.

Knows no engine. The real engine (`engine_arm`), a process of its own (`isolated`) and the simulated one (`simulated`)
are adapters of `Arm`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from sparkwright.core.errors import SparkwrightError


class CompareError(SparkwrightError):
    """A comparison that cannot be started or go on; what was measured so far is kept."""

    exit_code = 7


@attrs.frozen
class Prompt:
    """One prompt. chat: whether it is put through the model's chat format (None: as the engine does by default)."""

    id: str
    kind: str
    text: str
    chat: bool | None = None


@attrs.frozen
class RunRecord:
    """One completion in numbers; seconds on the host. `tokens` is what was emitted, the prefill's token included."""

    tokens: tuple[int, ...]
    finish: str
    promise: str
    prompt_tokens: int
    prefill_seconds: float
    decode_seconds: float
    rounds: int = 0
    drafting_rounds: int = 0
    drafted: int = 0
    submitted: int = 0
    accepted: int = 0
    tau_rounds: int = 0  # rounds that drafted and were not cut: what tau and acceptance are counted over
    submitted_at: tuple[int, ...] = ()
    accepted_at: tuple[int, ...] = ()
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    rest_seconds: float = 0.0
    config_sha256: str = ""  # of the assembled engine, cost curves included
    notes: tuple[str, ...] = ()  # requested and effective plugins where they differ, and warnings

    @property
    def decode_rate(self) -> float | None:
        """Tokens after the first per second of rounds."""
        timed = len(self.tokens) - 1
        return timed / self.decode_seconds if timed > 0 and self.decode_seconds > 0 else None

    @property
    def prefill_rate(self) -> float | None:
        return self.prompt_tokens / self.prefill_seconds if self.prefill_seconds > 0 else None

    @property
    def tokens_sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.tokens, separators=(",", ":")).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunRecord:
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return cls(**values)


class Arm(Protocol):
    """One assembled side of a comparison. Raises SparkwrightError; the runner wraps whatever else it raises.

    effective: what fills each slot ("drafter": "lookup"), which backend computes each op ("kernels.gather": "fused"),
    and a hash of the cost curves in force ("costs").
    """

    @property
    def effective(self) -> Mapping[str, str]: ...

    def complete(self, prompt: Prompt, *, max_tokens: int, seed: int, ignore_eos: bool) -> RunRecord: ...

    def close(self) -> None: ...


@attrs.frozen
class ArmSpec:
    """An arm before it is assembled.

    name:   "A" for the base, "B", "C", ... for candidates
    label:  what it stands for in a table ("base", "drafter.use=none")
    config: resolved values by dotted key
    sha256: hash of the resolved configuration
    source: plain data from which `Opener` makes the arm, in this process or another
    """

    name: str
    label: str
    config: Mapping[str, Any]
    sha256: str
    source: Mapping[str, Any] = attrs.field(factory=dict)


class Opener(Protocol):
    """Assembles arms. stages: so that the times of drafting and verifying are known apart (slower)."""

    def __call__(self, spec: ArmSpec, *, stages: bool = False) -> Arm: ...


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token that differs, the shorter length if one is a prefix of the other, None if equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))
