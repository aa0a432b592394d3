"""The trained model that ships with sparkwright: it loads, it has learnt its text, and its drafter is worth having."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import sparkwright.plugins.targets.deepseek_v4 as plugin
from sparkwright.core import costs
from sparkwright.core.assembly import assemble, load_target

PROMPT = (
    '"""Sorting."""\n\nfrom __future__ import annotations\n\n\ndef quicksort(items):\n    """Return a new sorted list'
)
TEXT = '''class Stack:
    """A list of items, of which the last one is taken first."""

    def __init__(self, items=None):
        self.items = list(items or [])

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
'''


@pytest.fixture(scope="module")
def folder() -> Path:
    path = plugin.bundled()
    assert path is not None
    return path


def test_it_is_small_enough_for_a_wheel(folder: Path) -> None:
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 25e6


def test_it_predicts_code_far_better_than_chance(folder: Path) -> None:
    """Nats a token of a text written for this test; uniform is 8.3, its trigram baseline on held-out text 3.6."""
    import mlx.core as mx

    target = load_target(folder)
    ids = target.text.encode(TEXT)
    assert ids[0] == 0 and target.text.decode(ids[1:]) == TEXT
    found = target.forward(mx.array(ids), target.new_state(), "all").logits
    assert found is not None
    logits = found.astype(mx.float32)
    log_p = np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    loss = -log_p[np.arange(len(ids) - 1), ids[1:]].mean()
    assert loss < 2.6


def test_without_a_model_it_is_what_generates_and_it_drafts() -> None:
    with assemble(
        {"generation": {"seed": 3, "max_tokens": 64, "ignore_eos": True}, "scheduler": {"use": "fixed"}}
    ) as engine:
        assert engine.slots["target"].effective == "deepseek_v4"
        assert "no model was named" in engine.slots["target"].reason
        result = engine.complete(PROMPT)
    stats = result.stats
    assert stats.tokens == 64 and stats.drafting_rounds > 0
    assert stats.tau is not None and stats.tau > 1.4  # 1.0 is a drafter that is never right


def test_costs_and_temperatures_come_along(folder: Path) -> None:
    target = load_target(folder)
    curves = costs.shipped(folder, target.facts.fingerprint, "dspark", "cpu")
    assert curves is not None and len(curves.temperatures) == 5
    assert costs.shipped(folder, "another", "dspark", "cpu") is None
    config = json.loads((folder / "config.json").read_text())
    assert len(config["dspark_target_layer_ids"]) == 3
