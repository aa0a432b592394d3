"""A simulated comparison in one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparkwright.core.compare.api import compare_specs
from sparkwright.core.compare.records import ArmSpec, Prompt
from sparkwright.core.compare.result import CompareResult
from sparkwright.core.compare.runner import Settings
from sparkwright.core.compare.simulated import SimulatedOpener, simulated_spec

PROMPTS = tuple(Prompt(f"{kind}-{i}", kind, f"the {kind} text {i}") for kind in ("code", "prose") for i in range(5))


@attrs.define
class Simulated:
    """Runs `compare_specs` on simulated arms with small defaults; every call opens its own machine unless given one."""

    folder: Path

    def __call__(self, *specs: ArmSpec, out: Path | None = None, **options: Any) -> CompareResult:
        arms = specs or (simulated_spec("A"), simulated_spec("B", "swap", effect=0.1, block=4))
        options.setdefault("pairs", 6)
        opener = options.pop("opener", None) or SimulatedOpener()
        prompts = options.pop("prompts", PROMPTS)
        settings = options.pop("settings", Settings(tokens=24, gate=2, gate_tokens=8, profile=2))
        return compare_specs(arms, prompts, opener, settings, out=out or self.folder / "out", **options)


@pytest.fixture
def simulated(tmp_path: Path) -> Callable[..., CompareResult]:
    return Simulated(tmp_path)
