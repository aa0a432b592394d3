"""The dense DSpark drafter for Qwen3-style targets (spec 9.2): attention over the context and the whole block.

Context keys and values are projected once for each committed position and only ever appended; a block's own are never
kept. Embedding and head are the checkpoint's own copies of the target's, or the target's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import mlx.core as mx

from sparkwright.core.contracts import Draft, Op, Resources, SelectKernel
from sparkwright.core.errors import AssemblyError
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.drafters.dspark import MARKOV_CHAIN
from sparkwright.plugins.drafters.dspark.dense_config import DenseConfig
from sparkwright.plugins.drafters.dspark.markov import Gate, Heads, How, Recurrence, draw_block, mixed_chain
from sparkwright.plugins.drafters.dspark.shape import Shape

GROW = 256
"""Context rows are given room in multiples of this, and by half of what there is."""


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
    _embed: Callable[[mx.array], mx.array]
    _head: Callable[[mx.array], mx.array]
    _chain: Op

    @classmethod
    def build(
        cls,
        config: DenseConfig,
        weights: dict[str, mx.array],
        select: SelectKernel,
        temperatures: tuple[float, ...] = (),
        resources: Resources | None = None,
    ) -> DenseDrafter:
        """AssemblyError where a checkpoint leaves embedding or head to a target that lends none."""
        confidence = bias = None
        if config.confidence:
            confidence = weights["confidence_head.proj.weight"][0].astype(mx.float32)
            if not config.confidence_with_markov:
                confidence = mx.concatenate([confidence, mx.zeros((config.rank,))])
            bias = weights["confidence_head.proj.bias"].astype(mx.float32)
        w1, w2 = (Linear(weights[f"markov_head.markov_{w}.weight"]) for w in ("w1", "w2"))
        if config.head == "vanilla":
            chain = Kernels(select, "float32").op(MARKOV_CHAIN, w1, w2)
        else:
            kind, name = (Gate, "gate_proj") if config.head == "gated" else (Recurrence, "joint_proj")
            parts = (weights[f"markov_head.{name}.{part}"].astype(mx.float32) for part in ("weight", "bias"))
            chain = partial(mixed_chain, mix=kind(*parts))
        return cls(
            config=config,
            weights=weights,
            heads=Heads(
                w1=w1,
                w2=w2,
                confidence=confidence,
                temperatures=mx.array(temperatures, dtype=mx.float32) if temperatures else None,
                bias=bias,
                rows=_rows(config, weights["d2t"]) if config.reduced else None,
            ),
            embed=_own_or_lent(weights, "embed_tokens", resources),
            head=_own_or_lent(weights, "lm_head", resources),
            chain=chain,
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
        base = self._head(hidden)
        return draw_block(self._chain, self.heads, state, base, hidden, anchor, keys[:n])

    def block(self, state: DenseState, anchor: int) -> mx.array:
        """The layers over [anchor, mask, ...] -> [block, h], before the final norm."""
        c, w, at = self.config, self.weights, state.position
        tokens = mx.array([anchor] + [c.mask_token_id] * (c.block - 1), dtype=mx.int32)
        x = self._embed(tokens).astype(w["fc.weight"].dtype)  # [block, h]
        for i in range(c.layers):
            p = f"layers.{i}."
            normed = self._norm(x, f"{p}input_layernorm")
            query = (normed @ w[f"{p}self_attn.q_proj.weight"].T).reshape(1, c.block, c.heads, c.head_dim)
            query = self._rope(self._norm(query, f"{p}self_attn.q_norm").swapaxes(1, 2), at)
            key, value = self._key_value(normed, i, at)
            first = max(0, at - c.windows[i]) if c.windows[i] else 0  # a window does not move along the block
            if at:
                key = mx.concatenate([state.keys[i][:, :, first:at], key], axis=2)
                value = mx.concatenate([state.values[i][:, :, first:at], value], axis=2)
            seen = _causal(at - first, c.block) if c.windows[i] and c.causal else None
            mixed = mx.fast.scaled_dot_product_attention(query, key, value, scale=c.head_dim**-0.5, mask=seen)
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


def _causal(context: int, block: int) -> mx.array:
    """bool [block, context + block]: all of the context, and of the block the slots up to one's own."""
    slot = mx.arange(context + block) - context
    return slot[None] <= mx.arange(block)[:, None]


def _rows(config: DenseConfig, tokens: mx.array) -> mx.array:
    """tokens [draft_vocab] -> the row of each of the target's tokens, int32 [V]; draft_vocab for the others."""
    rows = mx.full((config.vocab_size,), config.draft_vocab, dtype=mx.int32)
    rows[tokens] = mx.arange(config.draft_vocab, dtype=mx.int32)
    return rows


def _own_or_lent(
    weights: dict[str, mx.array], name: str, resources: Resources | None
) -> Callable[[mx.array], mx.array]:
    own = weights.get(f"{name}.weight")
    if own is not None:
        return (lambda tokens: own[tokens]) if name == "embed_tokens" else Linear(own)
    if resources is None:
        raise AssemblyError(f"drafter dspark: the checkpoint holds no '{name}.weight' and this target lends none")
    return resources.embed if name == "embed_tokens" else resources.head
