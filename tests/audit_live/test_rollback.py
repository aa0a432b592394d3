"""The audit of rollback passes a target that takes rows back and fails one that keeps a trace of them."""

from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from tests.audit_live import live
from tests.core.engines import toy_config

from sparkwright.core.assembly import assemble
from sparkwright.core.audit.rollback import RollbackResult, audit_rollback
from sparkwright.core.errors import RequestError
from sparkwright.plugins.deepseek_v4.state import CompressorState, Ring


def audit(folder: Any, prompt: int = 16) -> RollbackResult:
    ids = [int(t) for t in np.random.default_rng(3).integers(2, 250, 72)]
    with assemble(live.config(folder, {"drafter": {"use": "none"}})) as engine:
        result: RollbackResult = engine.run(lambda parts: audit_rollback(parts.target, ids, prompt=prompt, every=4))
        return result


def test_a_right_rollback_passes(folder: Any) -> None:
    result = audit(folder)
    assert result.passed and result.worst == 0 and result.rounds > 10 and result.checks >= 3
    assert result.forwarded > result.committed + 20, "hardly anything was rejected"


def test_emitted_rows_that_stay_are_found(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKWRIGHT_DEBUG")
    monkeypatch.setattr(CompressorState, "truncate", lambda self, end: self.raw.truncate(end))
    result = audit(folder)
    assert not result.passed and result.worst > 100 * result.bound and "broken" in result.meaning


def test_a_ring_that_overwrites_what_a_rollback_needs_is_found(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings without room for rejected rows. Clean blocks suffer from it too, which must not widen the bound."""
    monkeypatch.delenv("SPARKWRIGHT_DEBUG")
    right = Ring.__init__

    def short(self: Ring, width: int, keep: int, dtype: mx.Dtype) -> None:
        right(self, width, keep, dtype)
        self.array = mx.zeros((keep + 1, width), dtype=dtype)

    monkeypatch.setattr(Ring, "__init__", short)
    monkeypatch.setattr(Ring, "reserve", lambda self, committed, end: None)
    result = audit(folder, prompt=1)
    assert not result.passed and result.bound < 1e-2 * result.scale


def test_a_target_that_cannot_take_back_and_a_short_text_are_refused() -> None:
    with assemble(toy_config({})) as engine:
        target = engine.target
        with pytest.raises(RequestError, match="at least 36 are needed"):
            audit_rollback(target, [1] * 35)
        target.facts = attrs.evolve(target.facts, rollback=None)
        with pytest.raises(RequestError, match="does not take rows back"):
            audit_rollback(target, [1] * 60)
