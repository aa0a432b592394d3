"""The target with a real model: SmolLM2 as examples/models/smollm2.py makes it (marker `model`)."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tests.mlx_lm_target import tiny

from sparkwright.core.text import Detokenizer
from sparkwright.plugins.targets import mlx_lm
from sparkwright.plugins.targets.mlx_lm import MlxLmTarget

pytestmark = pytest.mark.model
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
TEXT = "In 1998, naïve cafés cost 12.50 € — “really” 😀, 価格は高い.\n\tdef f(x):  return x**2\n"


@pytest.fixture(scope="module")
def directory() -> Path:
    path = os.environ.get("SPARKWRIGHT_TEST_MODEL")
    if not path:
        pytest.fail("SPARKWRIGHT_TEST_MODEL is not set: make the model with `python examples/models/smollm2.py DIR`")
    return Path(path)


@pytest.fixture(scope="module")
def target(directory: Path) -> MlxLmTarget:
    return tiny.load(directory, taps=(-1, 14, 29))


def test_its_facts(directory: Path) -> None:
    facts = mlx_lm.describe(mlx_lm.Options(), tiny.site(directory))
    assert (facts.vocab_size, facts.context, facts.hidden, facts.layers, facts.eos) == (49152, 8192, 576, 30, (2,))


def test_it_answers_a_question(target: MlxLmTarget) -> None:
    state = target.sparkwright_target_new_state()
    rows = target.text.encode_chat(QUESTION)
    detokenizer, answer = Detokenizer(target.text), ""
    for _ in range(20):
        logits = target.sparkwright_target_forward(mx.array(rows, mx.int32), state, "last").logits
        assert logits is not None
        rows = [int(np.argmax(np.array(logits[0])))]
        if rows[0] == 2:
            break
        answer += detokenizer.push(rows[0])
    assert answer + detokenizer.finish() == "The capital of France is Paris."


def test_verified_rows_are_decoded_rows_bit_for_bit(target: MlxLmTarget) -> None:
    ids = target.text.encode(TEXT)[:40]
    ids += ids[: 48 - len(ids)]
    states = [target.sparkwright_target_new_state() for _ in range(2)]
    for state in states:
        target.sparkwright_target_forward(mx.array(ids[:40], mx.int32), state, "none")
    block = target.sparkwright_target_forward(mx.array(ids[40:], mx.int32), states[0], "all")
    for row, token in enumerate(ids[40:]):
        one = target.sparkwright_target_forward(mx.array([token], mx.int32), states[1], "all")
        for a, b in ((one.logits, block.logits), (one.taps, block.taps)):
            assert a is not None
            assert b is not None
            np.testing.assert_array_equal(np.array(a[0]), np.array(b[row]))


def test_its_tokenizer_gives_back_any_text_piece_by_piece(target: MlxLmTarget) -> None:
    ids = target.text.encode(TEXT)
    detokenizer = Detokenizer(target.text)
    pieces = [detokenizer.push(t) for t in ids]
    assert "".join(pieces) + detokenizer.finish() == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert len(ids) < 70
