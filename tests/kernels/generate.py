"""Greedy text of a tiny DeepSeek-V4: plain with the reference ops, speculative with the fused ones; both must agree."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import numpy as np
from tests.deepseek_v4 import tiny

from sparkwright.core.contracts import Op, OpSpec
from sparkwright.core.kernels import by_rows, reference
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.deepseek_v4.linear import ArrayWeights, ExpertBank, Linear, Mode
from sparkwright.plugins.deepseek_v4.model import Model
from sparkwright.plugins.kernels.fused.launcher import Launcher
from sparkwright.plugins.kernels.fused.table import TABLE, find

PROMPT, TOKENS = 40, 36
BLOCKS = (3, 0, 3, 3)  # drafts of the rounds, over and over: forwards of 4 and 1 rows, each of which compiles kernels


class Quantised(ArrayWeights):
    """Experts in mxfp4 and the other matrices in mxfp8, where their width allows it."""

    @staticmethod
    def _stored(linear: Linear, mode: Mode, bits: int) -> Linear:
        if linear.in_size % 32:
            return linear
        parts = mx.quantize(linear.weight, 32, bits, mode=mode)
        return Linear(parts[0], parts[1], None, mode, bits, 32)

    def linear(self, name: str) -> Linear:
        return self._stored(super().linear(name), "mxfp8", 8)

    def experts(self, prefix: str) -> ExpertBank:
        bank = super().experts(prefix)
        return ExpertBank(*(self._stored(w, "mxfp4", 4) for w in (bank.w1, bank.w3, bank.w2)))


def weights() -> ArrayWeights:
    made = tiny.random_weights(tiny.TINY_A, 3)
    return Quantised({n: mx.array(a.astype(np.int32 if a.dtype == np.int64 else np.float32)) for n, a in made.items()})


def largest(logits: mx.array | None) -> list[int]:
    assert logits is not None
    return [int(t) for t in np.array(logits).argmax(axis=-1)]


def speculate(model: Model, prompt: list[int], text: list[int]) -> tuple[list[int], int]:
    """Greedy text of TOKENS tokens, drafts taken from `text` with every fourth one wrong; and the drafts accepted."""
    state = model.new_state()
    work = state.begin()
    anchor = largest(model.forward(mx.array(prompt), state, "last").logits)[-1]
    work.commit(len(prompt))
    out, accepted, drawn = [anchor], 0, 0
    while len(out) < TOKENS:
        drafts: list[int] = []
        for token in text[len(out) : len(out) + BLOCKS[drawn % len(BLOCKS)]]:
            drafts.append((token + 1) % 257 if (len(out) + len(drafts)) % 4 == 0 else token)
        drawn += 1
        work = state.begin()
        best = largest(model.forward(mx.array([out[-1], *drafts]), state).logits)
        kept = 0
        while kept < len(drafts) and drafts[kept] == best[kept]:
            kept += 1
        work.commit(kept + 1)
        accepted += kept
        out += best[: kept + 1]
    return out[:TOKENS], accepted


def plain(model: Model, prompt: list[int]) -> list[int]:
    """Some tokens more than are asked for, so that the last round has its drafts too."""
    state = model.new_state()
    tokens = mx.array(prompt)
    out: list[int] = []
    for _ in range(TOKENS + max(BLOCKS)):
        work = state.begin()
        out += largest(model.forward(tokens, state, "last").logits)[-1:]
        work.commit(int(tokens.shape[0]))
        tokens = mx.array(out[-1:])
    return out


def agree(tiles: bool) -> None:
    """The tiny model's text by the reference, then by the fused ops where the caller has them launched: the same."""
    launcher, taken = Launcher("metal", tiles), Counter[str]()

    def select(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        found = find(launcher, op, dtype, format, widths)
        if found is None:
            return reference(op)

        def counted(*arguments: object) -> object:
            taken[op.name] += 1
            return found(*arguments)

        return by_rows(counted, reference(op))

    config = ModelConfig.from_json(tiny.TINY_A, "tiny")
    unfused = Model.build(config, weights(), select_reference)
    fused = Model.build(config, weights(), select)
    prompt = [int(t) for t in tiny.random_tokens(tiny.TINY_A, PROMPT, 5)]
    text = plain(unfused, prompt)
    assert len(set(text)) > 4, "a text that repeats one token would prove nothing"
    got, accepted = speculate(fused, prompt, text)
    assert got == text[:TOKENS]
    assert 8 < accepted < TOKENS
    assert {op.name for op in TABLE} == set(taken), "every fused op must have been in the forward"
