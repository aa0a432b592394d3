"""The sampler keeps its contract, and whatever is drawn with it is JSON.

The toy target of the conformance checks knows eleven letters, with which no JSON can be written; so they run with the
small DeepSeek-V4 that comes with sparkwright, and with short texts, which are enough.
"""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from sparkwright.core.testing import Check, parametrize_with_checks
from sparkwright_json import Options, Sampler, State, complete, sparkwright_register_samplers, step

MODEL = {"target": {"use": "deepseek_v4"}, "generation": {"max_tokens": 12}}


@parametrize_with_checks(sparkwright_register_samplers(), config=MODEL)
def test_conformance(check: Check) -> None:
    check.run()


@pytest.mark.parametrize(
    "text", ['{"a": [1, 2.5e-3, -0, true], "b":{"c":null}}', "[]", '"x\\u00e9\\n"', "-12.0E+5", "0", "{}", "[[],{}]"]
)
def test_json_is_accepted(text: str) -> None:
    json.loads(text)
    assert complete(step(("value",), text))


@pytest.mark.parametrize("text", ["01", "{a", "[1,]", '{"a":1,}', '"\n"', "tru e", "1.", "--1", "[1 ,2]", "{}{}", '"'])
def test_other_texts_are_not(text: str) -> None:
    assert not complete(step(("value",), text))


def test_random_tokens_become_json_and_drafts_see_the_mask_of_their_own_position() -> None:
    characters = [chr(i) for i in range(32, 127)]
    pieces = [*characters, 'a":', "[[", "]]", ""]  # the last one ends the text
    end = len(pieces) - 1
    sampler = Sampler(Options(), pieces, (end,))
    rng = np.random.default_rng(0)
    closing = np.isin(pieces, list(']}",0')) * 4.0  # so that a random text ends now and then
    closing[end] = 3.0
    longest = 0
    for _ in range(40):
        state: State = sampler.sparkwright_sampler_start()
        text = ""
        while True:
            logits = mx.array((rng.normal(size=(1, len(pieces))) + closing).astype(np.float32))
            rows = sampler.sparkwright_sampler_rows(state, mx.zeros((0,), dtype=mx.int32))
            token = int(np.argmax(np.array(sampler.sparkwright_sampler_distribution(logits, rows).log_p[0])))
            after = sampler.sparkwright_sampler_advance(state, [token])
            block = sampler.sparkwright_sampler_rows(state, mx.array([token], dtype=mx.int32))
            alone = sampler.sparkwright_sampler_rows(after, mx.zeros((0,), dtype=mx.int32))
            assert mx.array_equal(block[0], rows[0]) and mx.array_equal(block[1], alone[0])
            if token == end:
                break
            text, state = text + pieces[token], after
        json.loads(text)
        longest = max(longest, len(text))
    assert longest > 10
