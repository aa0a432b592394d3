"""A real model: greedy speculative text equals greedy plain text, and coupled equals plain at temperature > 0."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright import assemble, load_config
from sparkwright.core.plugins import discover
from sparkwright.core.store import WeightStore
from sparkwright.core.testing.toys import random_drafter

PROMPTS = [
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Once upon a time, in a small village by the sea,",
    "import os\nimport sys\n\ndef main():\n",
    "Water boils at 100 degrees. Water freezes at",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 2, 3, 4, 5, 6, 7,",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    "The capital of France is Paris. The capital of Italy is",
    "Q: What is a prime number?\nA:",
    "for i in range(10):\n    print(i)\nfor i in range(10):\n",
    "She opened the letter and read it twice.",
    "To make bread you need flour, water, salt and",
    "SELECT name, age FROM people WHERE",
    "In 1969 humans first landed on the Moon. In",
    "a b c d e f g h i j k",
    "The theory of evolution explains",
    '{"name": "Ada", "born": 1815, "field":',
    "My favourite colour is blue because",
    "while True:\n    line = input()\n    if not line:\n        break\n",
]


def model() -> Path:
    path = os.environ.get("SPARKWRIGHT_TEST_MODEL")
    assert path, "set SPARKWRIGHT_TEST_MODEL to the folder that examples/models/smollm2.py wrote"
    return Path(path).resolve()


@pytest.fixture(scope="module")
def store() -> Iterator[WeightStore]:
    yield WeightStore()


def tokens(
    store: WeightStore, drafter: str, verifier: str, temperature: float, prompts: list[str], length: int, seed: int = 0
) -> list[tuple[int, ...]]:
    config: dict[str, Any] = {
        "target": {"use": "mlx_lm", "model": str(model()), "mlx_lm": {"dtype": "float32"}},
        "drafter": {"use": drafter},
        "scheduler": {"use": "fixed"},
        "verifier": {"use": verifier},
        "sampler": {"use": "chain", "chain": {"temperature": temperature}},
    }
    loaded = load_config(config, environ={}, catalogue=discover().with_providers(random_drafter(block=3)))
    with assemble(loaded, store=store) as engine:
        return [engine.complete(p, max_tokens=length, seed=seed, ignore_eos=True).tokens for p in prompts]


@pytest.mark.model
def test_greedy_speculative_text_is_the_plain_text(store: WeightStore) -> None:
    plain = tokens(store, "none", "greedy", 0.0, PROMPTS[:3], 32)
    assert tokens(store, "lookup", "greedy", 0.0, PROMPTS[:3], 32) == plain


@pytest.mark.model
@pytest.mark.parametrize(("temperature", "prompt"), [(0.5, 0), (1.0, 1), (1.5, 3)])
def test_coupled_text_is_the_plain_text(store: WeightStore, temperature: float, prompt: int) -> None:
    plain = tokens(store, "none", "coupled", temperature, PROMPTS[prompt : prompt + 1], 20, seed=5)
    for drafter in ("lookup", "random"):
        assert tokens(store, drafter, "coupled", temperature, PROMPTS[prompt : prompt + 1], 20, seed=5) == plain


@pytest.mark.slow
def test_greedy_identity_on_twenty_prompts(store: WeightStore) -> None:
    plain = tokens(store, "none", "greedy", 0.0, PROMPTS, 128)
    assert tokens(store, "lookup", "greedy", 0.0, PROMPTS, 128) == plain


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_coupled_identity_at_every_temperature(store: WeightStore, temperature: float) -> None:
    for seed in range(3):
        plain = tokens(store, "none", "coupled", temperature, PROMPTS[:5], 64, seed)
        for drafter in ("lookup", "random"):
            assert tokens(store, drafter, "coupled", temperature, PROMPTS[:5], 64, seed) == plain
