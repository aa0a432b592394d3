"""The sampler chain against a float64 reference written from its description, and against mlx-lm's own functions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest

from sparkwright.core.contracts import INCOMPLETE, NON_FINITE, Distribution, Site, TargetFacts
from sparkwright.core.errors import ConfigError
from sparkwright.plugins.samplers import chain, filters, greedy
from sparkwright.plugins.samplers.chain import ChainOptions

RNG = np.random.default_rng(20240801)


def sampler(**options: Any) -> chain.Chain:
    return chain.build(ChainOptions(**options), Site())


def run(
    options: dict[str, Any], logits: Any, prompt: Sequence[int] = (), drafts: Sequence[int] = (), full: bool = False
) -> Distribution:
    """Rows of one block: logits [n + 1, V] after a prompt and drafts."""
    s = sampler(**options)
    state = s.sparkwright_sampler_start(list(prompt))
    context = s.sparkwright_sampler_rows(state, mx.array(list(drafts), dtype=mx.int32))
    return s.sparkwright_sampler_distribution(mx.array(logits, dtype=mx.float32), context, full)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max())
    return e / e.sum()


def reference(options: ChainOptions, logits: Any, prompt: Sequence[int], text: Sequence[int]) -> Any:
    """Probabilities [V] of one row in float64: the default order, from its documentation."""
    x = np.array(logits, dtype=np.float64)
    everything = [*prompt, *text]
    if options.penalty_window:
        everything = everything[-options.penalty_window :]
        text = list(text)[-options.penalty_window :]
    for token in set(everything):
        x[token] = x[token] * options.repetition_penalty if x[token] < 0 else x[token] / options.repetition_penalty
    for token, times in Counter(text).items():
        x[token] -= options.presence_penalty + options.frequency_penalty * times
    for token, value in options.logit_bias.items():
        x[token] += value
    p = softmax(x / options.temperature)
    if 0 < options.top_k < len(p):
        p = np.where(p >= np.sort(p)[-options.top_k], p, 0)
        p /= p.sum()
    if options.top_p < 1:
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        smallest = p[order][before < options.top_p][-1]
        p = np.where(p >= smallest, p, 0)
        p /= p.sum()
    if options.min_p > 0:
        p = np.where(p >= options.min_p * p.max(), p, 0)
        p /= p.sum()
    return p


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 1.7, "top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"repetition_penalty": 1.2, "presence_penalty": -0.5, "penalty_window": 3, "top_p": 0.9},
    {"logit_bias": {3: 4.0, 7: -50.0}, "top_k": 7, "temperature": 0.5},
    {"repetition_penalty": 0.8, "frequency_penalty": 1.5, "logit_bias": {0: 2.0}, "temperature": 1.3, "min_p": 0.02},
]


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab", [9, 53])
def test_every_row_is_the_documented_function_of_its_own_prefix(options: dict[str, Any], vocab: int) -> None:
    prompt, drafts = [1, 4, 4, 8, 2], [3, 3, 7, 1]
    logits = RNG.normal(size=(5, vocab)) * 3
    p = run(options, logits, prompt, drafts)
    assert np.array(p.flags).tolist() == [0] * 5
    assert p.mode is None and p.log_p.dtype == mx.float32
    for row in range(5):
        wanted = reference(ChainOptions(**options), logits[row].astype(np.float32), prompt, drafts[:row])
        got = np.exp(np.array(p.log_p[row], dtype=np.float64))
        assert (got > 0).tolist() == (wanted > 0).tolist()
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("options", [*SETTINGS, {"temperature": 0.0, "presence_penalty": 2.0}], ids=str)
def test_a_block_and_one_token_at_a_time_give_the_same_bits(options: dict[str, Any]) -> None:
    prompt, drafts = [1, 4, 2], [3, 3, 6]
    logits = mx.array(RNG.normal(size=(4, 31)).astype(np.float32) * 3)
    block = run(options, logits, prompt, drafts)
    s = sampler(**options)
    state = s.sparkwright_sampler_start(prompt)
    for row in range(4):
        context = s.sparkwright_sampler_rows(state, mx.zeros((0,), dtype=mx.int32))
        one = s.sparkwright_sampler_distribution(logits[row : row + 1], context, False)
        assert mx.array_equal(one.log_p[0], block.log_p[row])
        if row < 3:
            state = s.sparkwright_sampler_advance(state, [drafts[row]])


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_leading_axes_give_the_same_bits_as_single_blocks(options: dict[str, Any]) -> None:
    prompt = [1, 4, 4, 2]
    logits = mx.array(RNG.normal(size=(2, 3, 4, 11)).astype(np.float32) * 2)
    drafts = mx.array(RNG.integers(0, 11, size=(2, 3, 3)).astype(np.int32))
    s = sampler(**options)
    state = s.sparkwright_sampler_start(prompt)
    many = s.sparkwright_sampler_distribution(logits, s.sparkwright_sampler_rows(state, drafts), False)
    assert many.flags.shape == (2, 3, 4)
    for i in range(2):
        for j in range(3):
            context = s.sparkwright_sampler_rows(state, drafts[i, j])
            one = s.sparkwright_sampler_distribution(logits[i, j], context, False)
            assert mx.array_equal(one.log_p, many.log_p[i, j])


def mlx_lm_row(options: ChainOptions, logits: Any, tokens: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What mlx-lm would draw from, [V] probabilities: its processors, its log-softmax, its sampler chain."""
    from mlx_lm import sample_utils

    seen: list[mx.array] = []

    def spy(logits: mx.array, temp: float) -> mx.array:
        seen.append(mx.softmax(logits * (1.0 / temp), axis=-1))
        return mx.argmax(logits, axis=-1)

    monkeypatch.setattr(sample_utils, "categorical_sampling", spy)
    x = mx.array(logits, dtype=mx.float32)[None]
    for process in sample_utils.make_logits_processors(
        dict(options.logit_bias) or None,
        options.repetition_penalty if options.repetition_penalty != 1.0 else None,
        20,
        options.presence_penalty,
        20,
        options.frequency_penalty,
        20,
    ):
        x = process(mx.array(list(tokens)), x)
    log_p = x - mx.logsumexp(x, keepdims=True)
    sample_utils.make_sampler(
        options.temperature, options.top_p if options.top_p < 1 else 0.0, options.min_p, top_k=options.top_k
    )(log_p)
    return np.array(seen[0][0], dtype=np.float64)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.4, "top_p": 0.8},
        {"temperature": 1.6, "top_p": 0.9, "min_p": 0.03, "top_k": 12},
        {"temperature": 0.7, "min_p": 0.2},
        {"top_k": 3, "temperature": 2.0},
        {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.3, "logit_bias": {5: 3.0, 2: -2.0}},
        {"repetition_penalty": 1.5, "logit_bias": {5: 6.0}, "top_p": 0.7, "temperature": 1.4},
    ],
    ids=str,
)
def test_mlx_lm_order_is_mlx_lms(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    vocab = 40
    for trial in range(20):
        prompt = RNG.integers(0, vocab, size=3 + 2 * trial).tolist()  # shorter and longer than the window of 20
        drafts = RNG.integers(0, vocab, size=2).tolist()
        logits = RNG.normal(size=(3, vocab)).astype(np.float32) * 3
        p = run({**options, "order": "mlx_lm"}, logits, prompt, drafts)
        for row in range(3):
            wanted = mlx_lm_row(ChainOptions(**options), logits[row], prompt + drafts[:row], monkeypatch)
            got = np.exp(np.array(p.log_p[row], dtype=np.float64))
            assert (got > 0).tolist() == (wanted > 0).tolist()
            np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=1e-7)


def test_the_two_orders_differ_where_they_should() -> None:
    logits = RNG.normal(size=(1, 40)) * 3
    one, other = (run({"temperature": 2.0, "top_p": 0.8, "order": o}, logits).log_p for o in ("default", "mlx_lm"))
    assert int((one > -mx.inf).sum()) > int((other > -mx.inf).sum())


def test_top_k_and_min_p_keep_ties_and_top_p_keeps_ties_at_its_edge() -> None:
    logits = [[2.0, 1.0, 1.0, 1.0, 0.0]]
    assert (np.array(run({"top_k": 2}, logits).log_p) > -np.inf).tolist() == [[True, True, True, True, False]]
    assert (np.array(run({"top_p": 0.5}, logits).log_p) > -np.inf).tolist() == [[True, True, True, True, False]]
    assert (np.array(run({"min_p": 0.3}, logits).log_p) > -np.inf).tolist() == [[True, True, True, True, False]]


def test_a_top_k_of_the_vocabulary_or_more_keeps_all() -> None:
    assert mx.all(run({"top_k": 100}, RNG.normal(size=(1, 10))).log_p > -mx.inf)


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1e-5])
def test_tiny_temperatures_are_greedy_after_penalties_and_bias(temperature: float) -> None:
    logits = [[1.0, 3.0, 3.0, 2.9]] * 2
    p = run({"temperature": temperature, "presence_penalty": 1.0}, logits, [0], [1])
    assert p.mode is not None and p.mode.tolist() == [1, 2]  # the lower id of a tie; then token 1 is penalised
    assert np.exp(np.array(p.log_p)).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]
    biased = run({"temperature": temperature, "logit_bias": {0: 9.0}, "top_k": 1, "top_p": 0.1}, logits)
    assert biased.mode is not None and biased.mode.tolist() == [0, 0]
    assert chain.describe(ChainOptions(temperature=temperature), Site()).deterministic
    assert not chain.describe(ChainOptions(temperature=2e-5), Site()).deterministic


# --------------------------------------------------------------------------------------------------------------
# The top-p shortcut
# --------------------------------------------------------------------------------------------------------------


def wide_and_narrow(vocab: int = 3000) -> Any:
    """Rows [3, V]: a nucleus of a few, one of about 2,700 tokens, one of a few."""
    return np.stack([RNG.normal(size=vocab) * 6, RNG.normal(size=vocab) * 0.01, RNG.normal(size=vocab) * 6])


def test_a_nucleus_wider_than_the_shortcut_is_marked_and_full_repairs_only_it() -> None:
    logits = wide_and_narrow()
    fast, full = (run({"top_p": 0.9}, logits, full=f) for f in (False, True))
    assert fast.flags.tolist() == [0, INCOMPLETE, 0] and full.flags.tolist() == [0, 0, 0]
    for row in (0, 2):
        assert mx.array_equal(fast.log_p[row], full.log_p[row])
    wanted = reference(ChainOptions(top_p=0.9), logits[1].astype(np.float32), [], [])
    got = np.exp(np.array(full.log_p[1], dtype=np.float64))
    assert abs(int((got > 0).sum()) - int((wanted > 0).sum())) <= 1  # float32 sums decide the last entry
    assert int((got > 0).sum()) > filters.CANDIDATES


def test_top_k_before_top_p_needs_no_repeat() -> None:
    p = run({"top_p": 0.999, "top_k": 200}, wide_and_narrow())
    assert p.flags.tolist() == [0, 0, 0]
    assert ((p.log_p > -mx.inf).sum(axis=-1) <= 200).tolist() == [True] * 3


def test_shape_is_normalised_and_filtered_without_penalties_even_where_the_shortcut_falls_short() -> None:
    logits = mx.array(wide_and_narrow(), dtype=mx.float32)
    q = sampler(top_p=0.9, presence_penalty=1.0).sparkwright_sampler_shape(logits)
    np.testing.assert_allclose(np.exp(np.array(q, dtype=np.float64)).sum(axis=-1), 1.0, rtol=1e-5)
    assert mx.array_equal(q[0], run({"top_p": 0.9}, logits).log_p[0])
    point = sampler(temperature=0).sparkwright_sampler_shape(logits)
    assert np.exp(np.array(point)).sum(axis=-1).tolist() == [1, 1, 1]


# --------------------------------------------------------------------------------------------------------------
# Flags
# --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [lambda: sampler(top_p=0.9), lambda: sampler(temperature=0), greedy.Greedy], ids=["T", "0", "g"]
)
@pytest.mark.parametrize("vocab", [5, 2049])
def test_rows_that_are_not_finite_are_flagged_and_masks_are_not(make: Any, vocab: int) -> None:
    logits = RNG.normal(size=(6, vocab)).astype(np.float32)
    logits[1, vocab - 1] = math.nan
    logits[2, 2] = math.inf
    logits[3] = -math.inf
    logits[4, 1:] = -math.inf  # a mask that leaves one token
    logits[5, 0] = math.nan
    logits[5, 1] = math.inf
    p = make().sparkwright_sampler_distribution(mx.array(logits), None, False)
    n = NON_FINITE
    assert (p.flags & n).tolist() == [0, n, n, n, 0, n]
    assert float(mx.exp(p.log_p[4, 0])) == 1.0


def test_greedy_is_the_first_largest_logit() -> None:
    p = greedy.Greedy().sparkwright_sampler_distribution(mx.array([[0.0, 2.0, 2.0], [5.0, -1.0, 0.0]]), None, False)
    assert p.mode is not None and p.mode.tolist() == [1, 0]
    assert greedy.describe(None, Site()).deterministic  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------------------
# State and options
# --------------------------------------------------------------------------------------------------------------


def test_advance_leaves_the_old_state_as_it_was() -> None:
    s = sampler(frequency_penalty=1.0)
    before = s.sparkwright_sampler_start([1, 1, 2])
    assert before is not None
    after = s.sparkwright_sampler_advance(before, [5, 5])
    assert after is not None and before.ids.tolist() == [1, 2] and after.ids.tolist() == [1, 2, 5, 5]
    assert before.seen.tolist() == [2, 1] and before.text.tolist() == [0, 0] and after.text.tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        after.ids[0] = 9


def test_without_penalties_a_request_has_no_state() -> None:
    s = sampler(top_p=0.9)
    assert s.sparkwright_sampler_start([1, 2]) is None
    assert s.sparkwright_sampler_rows(None, mx.array([1])) is None
    assert s.sparkwright_sampler_advance(None, [1]) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, r"temperature must be a number in \[0, inf\), not -0.1; 0 is greedy"),
        ({"temperature": math.nan}, "temperature must be a number"),
        ({"temperature": math.inf}, "temperature must be a number"),
        ({"top_k": -1}, "top_k must be a whole number of at least 0, not -1; 0 keeps all"),
        ({"top_k": 2.5}, "top_k must be a whole number"),
        ({"top_p": 0.0}, r"top_p must be a number in \(0, 1\], not 0.0; 1 keeps all"),
        ({"top_p": 1.5}, "top_p must be"),
        ({"min_p": 1.01}, r"min_p must be a number in \[0, 1\]"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty must be a number in \(0, inf\), not 0.0; 1 is off"),
        ({"presence_penalty": math.inf}, r"presence_penalty must be a number in \(-inf, inf\)"),
        ({"frequency_penalty": "a"}, "frequency_penalty must be"),
        ({"penalty_window": -2}, "penalty_window must be a whole number"),
        ({"logit_bias": {-1: 1.0}}, "-1 is not a token id"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of token 1 must be a finite number, not nan"),
        ({"order": "vllm"}, 'order must be "default" or "mlx_lm", not \'vllm\''),
    ],
    ids=str,
)
def test_bad_options_say_what_would_be_right(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChainOptions(**options)


def test_a_bias_outside_the_vocabulary_is_refused_before_anything_is_built() -> None:
    facts = TargetFacts(vocab_size=10, context=8, hidden=4, layers=1, eos=(0,), model_type="x", rollback="trim")
    for function in (chain.describe, chain.build):
        with pytest.raises(ConfigError, match=r"names token 10, but the target's vocabulary has 10 tokens"):
            function(ChainOptions(logit_bias={3: 1.0, 10: 1.0}), Site(target=facts))


def test_every_option_has_help() -> None:
    assert all(field.metadata["help"] for field in attrs.fields(ChainOptions))
