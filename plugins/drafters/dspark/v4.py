"""The V4-native DSpark drafter: `mtp.*` on the family's blocks (spec section 8).

It knows no checkpoint layout, no scheduler and no verifier. The anchor is the first query of a block, at its own
position; the context covers exactly the positions before it.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx
import numpy as np

from sparkwright.core.contracts import Draft, Op, SelectKernel
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.deepseek_v4.block import Block
from sparkwright.plugins.deepseek_v4.config import DSparkConfig, ModelConfig
from sparkwright.plugins.deepseek_v4.hyper import HyperHead
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import Linear, Weights, dtype_of
from sparkwright.plugins.deepseek_v4.reference import rms_norm
from sparkwright.plugins.deepseek_v4.rotary import Rotary, angles
from sparkwright.plugins.drafters.dspark import MARKOV_CHAIN
from sparkwright.plugins.drafters.dspark.markov import Heads, How, draw_block
from sparkwright.plugins.drafters.dspark.ring import ContextRing
from sparkwright.plugins.drafters.dspark.shape import Shape


@attrs.define(eq=False)
class DraftState(How):
    """One request: a ring a stage, and how drafts are drawn."""

    rings: list[ContextRing]

    @property
    def position(self) -> int:
        """Committed positions, which is where the next anchor sits."""
        return self.rings[0].end


@attrs.frozen(eq=False)
class V4Drafter:
    """The whole drafter. Embedding and head are the target's; logits and everything after the stages are float32."""

    config: ModelConfig
    spark: DSparkConfig
    stages: tuple[Block, ...]
    main_proj: Linear
    main_norm: mx.array  # [d]
    hyper_head: HyperHead
    norm: mx.array  # [d]
    heads: Heads
    activation: str
    _embed: Callable[[mx.array], mx.array]
    _head: Callable[[mx.array], mx.array]
    _angles: Callable[[int, int], tuple[mx.array, mx.array]]
    _main: Op
    _chain: Op

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        weights: Weights,
        embed: Callable[[mx.array], mx.array],
        head: Callable[[mx.array], mx.array],
        select: SelectKernel,
        temperatures: tuple[float, ...] = (),
        confident: bool = True,
    ) -> V4Drafter:
        spark = config.dspark
        assert spark is not None
        kernels, last = Kernels(select, weights.activation), f"mtp.{spark.stages - 1}."
        main_proj = weights.linear("mtp.0.main_proj")
        w1, w2 = (weights.linear(f"{last}markov_head.markov_{w}") for w in ("w1", "w2"))
        frequencies = Rotary.of(config).plain
        return cls(
            config=config,
            spark=spark,
            stages=tuple(Block.build(config, weights, f"mtp.{s}.", 0, False, kernels) for s in range(spark.stages)),
            main_proj=main_proj,
            main_norm=weights.array("mtp.0.main_norm.weight", "float32"),
            hyper_head=HyperHead.build(config, weights, last, kernels),
            norm=weights.array(f"{last}norm.weight", "float32"),
            heads=Heads(
                w1=w1,
                w2=w2,
                confidence=weights.array(f"{last}confidence_head.proj.weight", "float32")[0] if confident else None,
                temperatures=mx.array(temperatures, dtype=mx.float32) if temperatures else None,
            ),
            activation=weights.activation,
            embed=embed,
            head=head,
            angles=lambda first, count: angles(frequencies, first, count),
            main=kernels.op(ops.SMALL_ROWS_MATMUL, main_proj),
            chain=Kernels(select, "float32").op(MARKOV_CHAIN, w1, w2),
        )

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def new_state(self, shape: Shape, drawn: bool, noisy: bool) -> DraftState:
        dtype = dtype_of(self.activation)
        rings = [ContextRing(self.config.window, self.config.head_dim, dtype) for _ in self.stages]
        return DraftState(shape, drawn, noisy, rings)

    def observe(self, state: DraftState, taps: mx.array) -> None:
        """taps [m, taps * d] of the next m committed positions; only the last W of them can ever be seen."""
        end = state.position + int(taps.shape[0])
        taps = taps[-self.config.window :]
        count = int(taps.shape[0])
        projected = self._main(taps.astype(dtype_of(self.activation)), self.main_proj)
        context = rms_norm(projected, self.main_norm, self.config.rms_eps)  # [m, d], shared by all stages
        turned = self._angles(end - count, count)
        for stage, ring in zip(self.stages, state.rings, strict=True):
            ring.write(stage.attention.context_rows(context, turned), end)
        # Started now: rounds that draft nothing would otherwise pile up one graph, and keep every round's taps alive.
        mx.async_eval([ring.rows for ring in state.rings])  # type: ignore[no-untyped-call]

    def draft(self, state: DraftState, anchor: int, limit: int, keys: mx.array) -> Draft:
        """At most `limit` tokens after the anchor, which sits at `state.position`; keys uint32 [limit, 2]."""
        hidden = self.block(state, anchor)
        n = min(limit, self.spark.block_size)
        normed = rms_norm(hidden[:n], self.norm, self.config.rms_eps)
        base = self._head(normed)  # [n, V]
        return draw_block(self._chain, self.heads, state, base, hidden[:n], anchor, keys[:n])

    def block(self, state: DraftState, anchor: int) -> mx.array:
        """The stages over [anchor, noise, ...] -> what the heads read, float32 [block, d], before the norm."""
        size, window = self.spark.block_size, self.config.window
        tokens = mx.array([anchor] + [self.spark.noise_token_id] * (size - 1), dtype=mx.int32)
        streams = mx.repeat(self._embed(tokens)[:, None, :], self.config.hc_mult, axis=1)  # [block, n, d]
        turned = self._angles(state.position, size)
        shown = np.arange(window) < state.rings[0].shown()
        # Every query sees the whole context and the whole block: slots of the ring, then the block's rows behind it.
        slots = np.concatenate([np.where(shown, np.arange(window), -1), window + np.arange(size)]).astype(np.int32)
        every = mx.broadcast_to(mx.array(slots), (size, window + size))
        for stage, ring in zip(self.stages, state.rings, strict=True):
            streams = stage(streams, tokens, self._attention(stage, ring.rows, every, turned))
        return self.hyper_head(streams)

    @staticmethod
    def _attention(
        stage: Block, context: mx.array, slots: mx.array, turned: tuple[mx.array, mx.array]
    ) -> Callable[[mx.array], mx.array]:
        def attend(x: mx.array) -> mx.array:
            projected = stage.attention.project(x, turned)
            keys = mx.concatenate([context, projected.kv.astype(context.dtype)])  # [W + block, D]
            return stage.attention.attend(projected.query, keys, slots, None, None, turned)

        return attend
