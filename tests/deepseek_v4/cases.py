"""A tiny model with what the oracle says about one text, and the comparison that all tests of the target share."""

from __future__ import annotations

import copy
import ctypes
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
from tests.deepseek_v4 import tiny
from tests.oracles import deepseek_v4_numpy as oracle
from tests.oracles.deepseek_v4_numpy import Array, Weights

from sparkwright.plugins.deepseek_v4.model import Model
from sparkwright.plugins.deepseek_v4.state import State

TOKENS = 312
TAPS = (0, 2, 1)
TOLERANCE = 2e-5
"""Of the largest |logit|, float32 against the float64 oracle."""
SMALLEST_GAP = 1e-5
"""Seeds are chosen so that no selection is nearer to a tie than this; otherwise float32 may choose otherwise."""
SEEDS = {"tiny-A": 2, "pro-like": 0, "one-block": 0, "many-heads": 0}


def bundled_blas() -> bool:
    """Whether MLX multiplies with its own BLAS, whose rows do not depend on the number of rows (DESIGN section 7)."""
    own = sys.platform.startswith("linux") and mx.default_device().type == mx.DeviceType.cpu
    return own and not hasattr(ctypes.CDLL(None), "openblas_get_config")


@attrs.frozen(eq=False)
class Case:
    """A config with weights and a text; `logits` and `taps` are the oracle's for every position of the text."""

    raw: dict[str, Any]
    weights: Weights
    tokens: Array  # int32 [S]
    logits: Array  # float64 [S, V]
    taps: Array
    gaps: dict[int, float]  # position -> the narrowest selection at it
    model: Model
    rows: Array  # float32 [S, V], the model's own, from one forward over the whole text

    def feed(self, first: int, count: int) -> mx.array:
        return mx.array(self.tokens[first : first + count])

    def prefilled(self, count: int) -> State:
        state = self.model.new_state()
        if count:
            self.model.forward(self.feed(0, count), state, "none")
            mx.eval(state.arrays)
        return state

    def run(self, state: State, count: int) -> Array:
        """Logits of the next rows of the text, in one forward."""
        return np.array(self.model.forward(self.feed(state.position, count), state).logits)

    def check(self, logits: Array, first: int, what: str) -> None:
        """Rows `first` .. agree with the oracle, and bit for bit with the one-shot forward where BLAS allows it."""
        last = first + logits.shape[0]
        error = np.abs(logits - self.logits[first:last]).max() / np.abs(self.logits).max()
        assert error <= TOLERANCE, f"{what}: rows {first}..{last - 1} differ from the oracle by {error:.1e}"
        if bundled_blas():
            same = (logits.view(np.uint32) == self.rows[first:last].view(np.uint32)).all(axis=1)
            assert same.all(), f"{what}: row {first + int(np.argmin(same))} has other bits than the one-shot forward's"


@cache
def case(name: str) -> Case:
    """One of `tiny.CONFIGS`, made once a process."""
    raw = tiny.CONFIGS[name]
    return make(raw, SEEDS[name], TOKENS, TAPS)


def make(raw: dict[str, Any], seed: int, count: int, taps: tuple[int, ...], step: int = 0) -> Case:
    """step: rows of a forward for the model's own rows, 0 for all at once."""
    weights = tiny.random_weights(raw, seed)
    tokens = tiny.random_tokens(raw, count, seed).astype(np.int32)
    found: list[tuple[int, float]] = []
    logits, tapped = oracle.forward(tokens, weights, tiny.sizes(raw), taps=taps, gaps=found)
    gaps: dict[int, float] = {}
    for position, gap in found:
        gaps[position] = min(gap, gaps.get(position, gap))
    model = tiny.tiny_model(raw, weights, taps=taps)
    state = model.new_state()
    step = step or count
    rows = [np.array(model.forward(mx.array(tokens[i : i + step]), state).logits) for i in range(0, count, step)]
    return Case(
        raw=raw,
        weights=weights,
        tokens=tokens,
        logits=logits,
        taps=np.zeros((count, 0)) if tapped is None else tapped,
        gaps=gaps,
        model=model,
        rows=np.concatenate(rows),
    )


def fork(state: State) -> State:
    """An independent copy, so that one prefill serves many continuations."""
    mx.eval(state.arrays)
    return copy.deepcopy(state)


def boundaries(raw: dict[str, Any], below: int) -> list[int]:
    """Text lengths at which something turns: window, either ratio, the first sparse query; each and its neighbours."""
    k = 4 * (raw["index_topk"] + 1)
    turns: Iterable[int] = (raw["sliding_window"], 2 * raw["sliding_window"], 4, 8, k, 128, 256)
    lengths = {at + by for at in turns for by in (-5, -4, -3, -2, -1, 0, 1)}
    return sorted(n for n in lengths if 0 < n < below)


def garbage(tokens: Array, vocab: int) -> Array:
    """Tokens that are all wrong."""
    wrong: Array = ((tokens + 1 + np.arange(len(tokens)) * 37 % (vocab - 1)) % vocab).astype(np.int32)
    return wrong


def readable(state: State) -> list[Array]:
    """Everything of the state that a later forward may read, in order of position, whatever slot it lies in."""
    out = []
    for layer in state.layers:
        rings = [layer.window, *(c.raw for c in layer.compressors)]
        for ring in rings:
            first = max(0, state.position - ring.keep)
            out.append(np.array(ring.array)[ring.slots(first, state.position - first)])
        out += [np.array(c.rows.array)[: c.rows.count] for c in layer.compressors]
    return out


def assert_same_state(a: State, b: State, what: str) -> None:
    assert a.position == b.position, f"{what}: positions {a.position} and {b.position}"
    for i, (x, y) in enumerate(zip(readable(a), readable(b), strict=True)):
        assert x.shape == y.shape, f"{what}: array {i} has shapes {x.shape} and {y.shape}"
        if bundled_blas():
            assert np.array_equal(x, y), f"{what}: array {i} differs"
        else:
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5, err_msg=f"{what}: array {i}")


def singles_and_blocks(c: Case, lengths: Sequence[int], rows: int = 8) -> None:
    """After a prefill of each length: the next rows one by one, and as one block of 1 .. rows."""
    for n in lengths:
        state = c.prefilled(n)
        work = state.begin()
        alone = np.concatenate([c.run(state, 1) for _ in range(rows)])
        work.abort()
        c.check(alone, n, f"decode after a prefill of {n}")
        for width in range(1, rows + 1):
            work = state.begin()
            block = c.run(state, width)
            work.abort()
            c.check(block, n, f"block of {width} after a prefill of {n}")
