"""The family's block with keys of a drafter's choosing: context rows, and a block that sees all of itself."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4 import cases, tiny
from tests.oracles import deepseek_v4_numpy as v4
from tests.oracles import dspark_numpy

from sparkwright.plugins.deepseek_v4.block import Block
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.kernels import Kernels, select_reference
from sparkwright.plugins.deepseek_v4.rotary import Rotary, angles

GAMMA = 5


@pytest.mark.parametrize("context", [3, 16, 40])
def test_a_stage_against_its_definition(context: int) -> None:
    """Spec 8.3: every block row attends to the last W context rows and to the whole block, without a mask."""
    raw, p = tiny.TINY_A, "mtp.0."
    config, size = ModelConfig.from_json(raw), tiny.sizes(raw)
    draw = tiny.Draw(4)
    tiny.random_block(draw, size, p, 0, False)
    weights, rng = draw.out, np.random.default_rng(context)
    c = rng.standard_normal((context, config.hidden)).astype(np.float32)
    streams = rng.standard_normal((GAMMA, 4, config.hidden)).astype(np.float32)

    pre, post, comb = v4.hyper_coefficients(streams.astype(np.float64), weights, f"{p}hc_attn", size)
    x = v4.rms((pre[:, :, None] * streams).sum(1), weights[f"{p}attn_norm.weight"])
    y = dspark_numpy.attend(x, c.astype(np.float64), context, weights, f"{p}attn.", size)
    want = v4.hyper_expand(y, streams, post, comb)
    pre, post, comb = v4.hyper_coefficients(want, weights, f"{p}hc_ffn", size)
    x = v4.rms((pre[:, :, None] * want).sum(1), weights[f"{p}ffn_norm.weight"])
    y = v4.ffn(x, np.zeros(GAMMA, int), weights, f"{p}ffn.", False, size)
    want = v4.hyper_expand(y, want, post, comb)

    block = Block.build(config, tiny.memory_weights(weights), p, 0, False, Kernels(select_reference, "float32"))
    plain = Rotary.of(config).plain
    seen = min(context, config.window)
    ring = block.attention.context_rows(mx.array(c[-seen:]), angles(plain, context - seen, seen))
    here = angles(plain, context, GAMMA)
    slots = mx.broadcast_to(mx.arange(seen, dtype=mx.int32), (GAMMA, seen))
    every = mx.broadcast_to(mx.arange(GAMMA, dtype=mx.int32), (GAMMA, GAMMA))

    def attend(mixed: mx.array) -> mx.array:
        projected = block.attention.project(mixed, here)
        return block.attention.attend(projected.query, ring, slots, projected.kv, every, here)

    got = np.array(block(mx.array(streams), mx.zeros((GAMMA,), dtype=mx.int32), attend))
    assert np.abs(got - want).max() <= cases.TOLERANCE * np.abs(want).max()
