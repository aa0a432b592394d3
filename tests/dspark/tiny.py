"""Tiny targets with a DSpark drafter: the same numbers for the float64 oracle and for the plugin."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from tests.deepseek_v4.tiny import (
    TINY_A,
    Draw,
    memory_weights,
    random_block,
    random_weights,
    sizes,
)
from tests.oracles.deepseek_v4_numpy import Array, Weights

from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.drafters.dspark.v4 import DraftState, V4Drafter

SPARK: dict[str, Any] = TINY_A | {
    "compress_ratios": [*TINY_A["compress_ratios"], 0, 0, 0],
    "dspark_block_size": 5,
    "dspark_noise_token_id": 256,
    "dspark_target_layer_ids": [4, 5, 6],
    "dspark_markov_rank": 8,
}
TAPS = (4, 5, 6)
WINDOW = int(SPARK["sliding_window"])


def spark_weights(raw: dict[str, Any], seed: int) -> Weights:
    """A whole checkpoint, official names, target and drafter."""
    s, draw = sizes(raw), Draw(seed + 7000)
    out = random_weights(raw, seed)
    stages = len(raw["dspark_target_layer_ids"])
    last = f"mtp.{stages - 1}."
    for stage in range(stages):
        random_block(draw, s, f"mtp.{stage}.", 0, False)
    draw.matrix("mtp.0.main_proj", s.hidden_size, stages * s.hidden_size)
    draw.norm("mtp.0.main_norm", s.hidden_size)
    draw.norm(f"{last}norm", s.hidden_size)
    draw.hyper(f"{last}hc_head", s.hc_mult, 1, s)
    rank = raw["dspark_markov_rank"]
    draw.normal(f"{last}markov_head.markov_w1.weight", s.vocab_size, rank)
    draw.normal(f"{last}markov_head.markov_w2.weight", s.vocab_size, rank)
    draw.matrix(f"{last}confidence_head.proj", 1, s.hidden_size + rank)
    return out | draw.out


def tiny_drafter(raw: dict[str, Any], weights: Weights, **more: Any) -> V4Drafter:
    held = memory_weights(weights)
    embed, head = held.linear("embed"), held.linear("head")
    return V4Drafter.build(
        ModelConfig.from_json(raw, "tiny"),
        held,
        embed=lambda tokens: embed.lookup(tokens, "float32"),
        head=lambda hidden: head(hidden),
        select=more.pop("select", select_reference),
        **more,
    )


def greedy_state(drafter: V4Drafter) -> DraftState:
    return drafter.new_state(lambda logits: logits, False, False)


def fed(drafter: V4Drafter, taps: Array, appends: list[int]) -> DraftState:
    """A state that has observed all of taps, in appends of these sizes (repeated as needed)."""
    state, at, turn = greedy_state(drafter), 0, 0
    while at < len(taps):
        m = min(appends[turn % len(appends)], len(taps) - at)
        drafter.observe(state, mx.array(taps[at : at + m].astype(np.float32)))
        at, turn = at + m, turn + 1
    return state


def no_keys(n: int) -> mx.array:
    return mx.zeros((n, 2), dtype=mx.uint32)
