"""Right live: a model generates the same tokens with kernels run from their Metal source as with the reference ops.

Greedy and speculative: blocks of mixed lengths whose drafts are partly wrong, commit and rollback included.
"""

from __future__ import annotations

from typing import Any

import pytest
from mslrun import mlx_hook
from tests.kernels.generate import agree

import sparkwright.plugins.targets.deepseek_v4 as v4
from sparkwright.core.assembly import assemble
from sparkwright.plugins.kernels.fused import launcher

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("tiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_tiny_v4_generates_the_same_tokens(tiles: bool) -> None:
    log: list[dict[str, object]] = []
    with mlx_hook.emulate(check=False, log=log):
        agree(tiles)
    assert len(log) > 500, "the kernels must have been run from their Metal source"


PROMPT = "def median(values):\n    ordered = sorted(values)\n"


def completed(settings: dict[str, Any], tokens: int = 40) -> Any:
    """Greedy tokens of the bundled model with its own drafter, three drafts a round."""
    path = v4.bundled()
    assert path is not None
    config = {
        "target": {"use": "deepseek_v4", "model": str(path)},
        "drafter": {"use": "dspark"}, "scheduler": {"use": "fixed", "fixed": {"depth": 3}},
        "sampler": {"chain": {"temperature": 0.0}}, "kernels": settings,
    }  # fmt: skip
    with assemble(config) as engine:
        return engine.complete(PROMPT, seed=0, max_tokens=tokens, ignore_eos=True)


@pytest.mark.slow  # compiles some two hundred kernels
def test_the_bundled_model_generates_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = completed({"use": ["unfused"]})
    monkeypatch.setattr(launcher, "here", lambda device: launcher.Launcher("metal"))
    log: list[dict[str, object]] = []
    with mlx_hook.emulate(check=False, log=log):
        fused = completed({"use": ["fused", "unfused"], "fused": {"metal": True}})
        checked = completed({"use": ["fused", "unfused"], "fused": {"metal": True}, "check": True}, 8)
    assert fused.tokens == plain.tokens and len(plain.tokens) == 40
    assert 0 < fused.stats.accepted < fused.stats.submitted, "rounds must have been both kept and rolled back"
    assert len(log) > 1000, "the kernels must have been run from their Metal source"
    assert checked.tokens == plain.tokens[:8], "the live check must change nothing, the drafter's chain included"
