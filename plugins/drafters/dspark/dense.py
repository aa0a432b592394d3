"""The dense DSpark drafter for Qwen3-style targets (spec 9.2): full attention over all context and the whole block.

It carries its own embedding and head, frozen copies of the target's. Context keys and values are projected once for
each committed position and only ever appended; a block's own are never kept.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import mlx.core as mx

from sparkwright.core.contracts import Draft, Op, SelectKernel
from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4.headers import read_directory
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.drafters.dspark import MARKOV_CHAIN
from sparkwright.plugins.drafters.dspark.dense_config import DenseConfig, expected
from sparkwright.plugins.drafters.dspark.markov import Heads, How, draw_block
from sparkwright.plugins.drafters.dspark.shape import Shape

GROW = 256
"""Context rows are given room in multiples of this, and by half of what there is."""


def load(path: Path, config: DenseConfig, device: str) -> dict[str, mx.array]:
    """Every tensor, evaluated; float32 on the CPU, as stored elsewhere. ModelError for what is missing or misshapen."""
    headers = read_directory(path)
    for name, shape in expected(config).items():
        found = headers.get(name)
        if found is None or tuple(found.shape) != shape:
            said = "is missing" if found is None else f"has shape {list(found.shape)}"
            raise ModelError(f"{path}: the drafter's tensor '{name}' {said}, expected shape {list(shape)}")
        if found.dtype not in ("BF16", "F16", "F32"):
            raise ModelError(f"{path}: the drafter's tensor '{name}' is {found.dtype}, expected BF16, F16 or F32")
    arrays: dict[str, mx.array] = {}
    for file in sorted({headers[name].file for name in expected(config)}):
        stored = mx.load(str(file))
        assert isinstance(stored, dict)
        arrays |= {name: a for name, a in stored.items() if name in expected(config)}
    if device == "cpu":
        arrays = {name: a.astype(mx.float32) for name, a in arrays.items()}
    mx.eval(list(arrays.values()))
    return arrays


@attrs.define(eq=False)
class DenseState(How):
    """One request. keys and values: [1, kv heads, room, D] a layer, of which the first `position` rows are valid."""

    keys: list[mx.array]
    values: list[mx.array]
    position: int = 0


@attrs.frozen(eq=False)
class DenseDrafter:
    config: DenseConfig
    weights: dict[str, mx.array]
    heads: Heads
    _chain: Op

    @classmethod
    def build(
        cls,
        config: DenseConfig,
        weights: dict[str, mx.array],
        select: SelectKernel,
        temperatures: tuple[float, ...] = (),
    ) -> DenseDrafter:
        confidence = bias = None
        if config.confidence:
            confidence = weights["confidence_head.proj.weight"][0].astype(mx.float32)
            if not config.confidence_with_markov:
                confidence = mx.concatenate([confidence, mx.zeros((config.rank,))])
            bias = weights["confidence_head.proj.bias"].astype(mx.float32)
        w1, w2 = (Linear(weights[f"markov_head.markov_{w}.weight"]) for w in ("w1", "w2"))
        scaled = mx.array(temperatures, dtype=mx.float32) if temperatures else None
        return cls(
            config=config,
            weights=weights,
            heads=Heads(w1, w2, confidence, scaled, bias),
            chain=Kernels(select, "float32").op(MARKOV_CHAIN, w1, w2),
        )

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def new_state(self, shape: Shape, drawn: bool, noisy: bool) -> DenseState:
        return DenseState(shape, drawn, noisy, [], [])

    def observe(self, state: DenseState, taps: mx.array) -> None:
        """taps [m, taps * h] of the next m committed positions."""
        c, at, m = self.config, state.position, int(taps.shape[0])
        x = taps.astype(self.weights["fc.weight"].dtype) @ self.weights["fc.weight"].T
        features = self._norm(x, "hidden_norm")  # [m, h]
        self._reserve(state, at + m)
        for i in range(c.layers):
            key, value = self._key_value(features, i, at)
            state.keys[i][:, :, at : at + m] = key
            state.values[i][:, :, at : at + m] = value
        state.position = at + m
        # Started now: rounds without drafts would otherwise pile up one graph.
        mx.async_eval(state.keys, state.values)  # type: ignore[no-untyped-call]

    def _reserve(self, state: DenseState, rows: int) -> None:
        c = self.config
        room = int(state.keys[0].shape[2]) if state.keys else 0
        if rows <= room:
            return
        more = -(-max(rows - room, room // 2) // GROW) * GROW
        shape, dtype = (1, c.kv_heads, more, c.head_dim), self.weights["fc.weight"].dtype
        for buffers in (state.keys, state.values):  # one array each: writing into an MLX array changes that object
            new = [mx.zeros(shape, dtype=dtype) for _ in range(c.layers)]
            old = list(buffers)
            buffers[:] = [mx.concatenate(list(pair), axis=2) for pair in zip(old, new, strict=True)] if old else new

    def draft(self, state: DenseState, anchor: int, limit: int, keys: mx.array) -> Draft:
        """At most `limit` tokens after the anchor, which sits at `state.position`; keys uint32 [limit, 2]."""
        n = min(limit, self.config.block)
        hidden = self._norm(self.block(state, anchor), "norm")[:n].astype(mx.float32)
        base = Linear(self.weights["lm_head.weight"])(hidden)
        return draw_block(self._chain, self.heads, state, base, hidden, anchor, keys[:n])

    def block(self, state: DenseState, anchor: int) -> mx.array:
        """The layers over [anchor, mask, ...] -> [block, h], before the final norm."""
        c, w, at = self.config, self.weights, state.position
        tokens = mx.array([anchor] + [c.mask_token_id] * (c.block - 1), dtype=mx.int32)
        x = w["embed_tokens.weight"][tokens]  # [block, h]
        for i in range(c.layers):
            p = f"layers.{i}."
            normed = self._norm(x, f"{p}input_layernorm")
            query = (normed @ w[f"{p}self_attn.q_proj.weight"].T).reshape(1, c.block, c.heads, c.head_dim)
            query = self._rope(self._norm(query, f"{p}self_attn.q_norm").swapaxes(1, 2), at)
            key, value = self._key_value(normed, i, at)
            if at:
                key = mx.concatenate([state.keys[i][:, :, :at], key], axis=2)
                value = mx.concatenate([state.values[i][:, :, :at], value], axis=2)
            mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=c.head_dim**-0.5)
            mixed = mixed.swapaxes(1, 2).reshape(c.block, -1)
            x = x + mixed @ w[f"{p}self_attn.o_proj.weight"].T
            normed = self._norm(x, f"{p}post_attention_layernorm")
            gate, up = (normed @ w[f"{p}mlp.{m}_proj.weight"].T for m in ("gate", "up"))
            x = x + (gate * mx.sigmoid(gate) * up) @ w[f"{p}mlp.down_proj.weight"].T
        return x

    def _key_value(self, x: mx.array, layer: int, at: int) -> tuple[mx.array, mx.array]:
        """x [m, h] at positions at .. -> keys (normed, turned) and values [1, kv heads, m, D]."""
        c, p, m = self.config, f"layers.{layer}.self_attn.", int(x.shape[0])
        key, value = (
            (x @ self.weights[f"{p}{which}_proj.weight"].T).reshape(1, m, c.kv_heads, c.head_dim) for which in "kv"
        )
        return self._rope(self._norm(key, f"{p}k_norm").swapaxes(1, 2), at), value.swapaxes(1, 2)

    def _rope(self, x: mx.array, at: int) -> mx.array:
        c = self.config
        return mx.fast.rope(x, c.head_dim, traditional=False, base=c.rope_theta, scale=1.0, offset=at)

    def _norm(self, x: mx.array, name: str) -> mx.array:
        return mx.fast.rms_norm(x, self.weights[f"{name}.weight"], self.config.eps)
