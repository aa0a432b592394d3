"""The DeepSeek-V4 target: one forward for prefill, decode and verify (spec section 5).

It computes and keeps caches. It knows nothing of drafts, sampling, chunk sizes or files.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import mlx.core as mx

from sparkwright.core.contracts import WIDEST_VERIFY, Forward, Logits, Op, SelectKernel
from sparkwright.core.errors import RequestError
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.deepseek_v4.block import Block
from sparkwright.plugins.deepseek_v4.checkpoint import Checkpoint
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.hyper import HyperHead
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import Linear, Weights, dtype_of
from sparkwright.plugins.deepseek_v4.rotary import Rotary
from sparkwright.plugins.deepseek_v4.state import LayerState, State
from sparkwright.plugins.deepseek_v4.step import BUCKET, Step


@attrs.frozen(eq=False)
class Lent:
    """What a target lends its drafter as `Resources.checkpoint`.

    checkpoint: the open checkpoint (None for a model made in memory). weights: its tensors, `mtp.*` included, read
    through the store that engines share.
    """

    checkpoint: Checkpoint | None
    config: ModelConfig
    weights: Weights


@attrs.frozen(eq=False)
class Model:
    """The whole target. Logits and the head are float32, whatever the activations are.

    taps: layers whose outputs (-1: the embedding) are given out, averaged over the streams. row_exact: forwards run in
    chunks of exactly WIDEST_VERIFY rows, padded, with attention lengths that are a function of position alone.
    """

    config: ModelConfig
    blocks: tuple[Block, ...]
    embed_table: Linear
    head_table: Linear
    norm: mx.array  # [d]
    hyper_head: HyperHead
    rotary: Rotary
    activation: str
    taps: tuple[int, ...]
    row_exact: bool
    _final: Op
    _head: Op

    @classmethod
    def build(
        cls,
        config: ModelConfig,
        weights: Weights,
        select: SelectKernel,
        taps: tuple[int, ...] = (),
        row_exact: bool = False,
    ) -> Model:
        kernels = Kernels(select, weights.activation)
        last = Kernels(select, "float32")
        head = weights.linear("head")
        return cls(
            config=config,
            blocks=tuple(
                Block.build(config, weights, f"layers.{i}.", config.ratios[i], config.hashed(i), kernels)
                for i in range(config.layers)
            ),
            embed_table=weights.linear("embed"),
            head_table=head,
            norm=weights.array("norm.weight", "float32"),
            hyper_head=HyperHead.build(config, weights, "", kernels),
            rotary=Rotary.of(config),
            activation=weights.activation,
            taps=taps,
            row_exact=row_exact,
            final=last.op(ops.PROJECT_ROWS, head),
            head=last.op(ops.SMALL_ROWS_MATMUL, head),
        )

    def new_state(self) -> State:
        dtype = dtype_of(self.activation)
        return State([LayerState(self.config, ratio, dtype) for ratio in self.config.ratios])

    def embed(self, tokens: mx.array) -> mx.array:
        """tokens [r] -> [r, d] in the activations' dtype."""
        return self.embed_table.lookup(tokens, self.activation)

    def head(self, hidden: mx.array) -> mx.array:
        """hidden [r, d] after its norm -> logits float32 [r, V]."""
        logits: mx.array = self._head(hidden.astype(mx.float32), self.head_table)
        return logits

    def forward(self, tokens: mx.array, state: State, logits: Logits = "all") -> Forward:
        """tokens int32 [r], r >= 1, at positions state.position .. state.position + r - 1."""
        count = int(tokens.shape[0])
        if count < 1:
            raise ValueError("a forward needs at least one token")
        if state.end + count > self.config.context:
            raise RequestError(
                f"the target's context is {self.config.context} positions; {state.end} are used and {count} more were "
                f"asked for: shorten the prompt or lower max_tokens"
            )
        if not self.row_exact:
            return self._rows(tokens, count, state, logits)
        parts = []
        for at, real in self._chunks(state.end, count):
            padded = mx.zeros((WIDEST_VERIFY,), dtype=mx.int32)
            padded[:real] = tokens[at : at + real]
            wanted: Logits = "none" if logits == "last" and at + real < count else logits
            parts.append(self._rows(padded, real, state, wanted))
            if at + real < count:  # later chunks update the same buffers: let this one's readers finish first
                mx.eval(state.arrays, [a for a in (parts[-1].logits, parts[-1].taps) if a is not None])
        if len(parts) == 1:
            return parts[0]
        kept = [p.logits for p in parts if p.logits is not None]
        taps = [p.taps for p in parts if p.taps is not None]
        return Forward(mx.concatenate(kept) if kept else None, mx.concatenate(taps) if taps else None)

    @staticmethod
    def _chunks(position: int, count: int) -> Iterator[tuple[int, int]]:
        """(offset, rows) of chunks of at most WIDEST_VERIFY rows, none of which crosses a bucket of positions."""
        at = 0
        while at < count:
            left = BUCKET - (position + at) % BUCKET
            rows = min(WIDEST_VERIFY, left, count - at)
            yield at, rows
            at += rows

    def _rows(self, tokens: mx.array, real: int, state: State, logits: Logits) -> Forward:
        """All rows at once, the first `real` of them counting."""
        step = Step(self.config, self.rotary, tokens, state.end, real, self.row_exact)
        state.reserve(step.rows)
        embedded = self.embed(tokens)
        streams = mx.repeat(embedded[:, None, :], self.config.hc_mult, axis=1)  # [r, n, d]
        outputs = {-1: embedded}
        for i, (block, layer) in enumerate(zip(self.blocks, state.layers, strict=True)):
            streams = self._layer(block, layer, streams, step)
            if i in self.taps:
                outputs[i] = streams.astype(mx.float32).mean(axis=1).astype(embedded.dtype)
        state.advance(real)
        taps = mx.concatenate([outputs[i] for i in self.taps], axis=-1)[:real] if self.taps else None
        if logits == "none":
            return Forward(None, taps)
        if logits == "last" and not self.row_exact:
            streams = streams[real - 1 : real]
        _, (scores,) = self._final(self.hyper_head(streams), self.norm, self.config.rms_eps, (self.head_table,))
        if self.row_exact:
            scores = scores[real - 1 : real] if logits == "last" else scores[:real]
        return Forward(scores, taps)

    @staticmethod
    def _layer(block: Block, layer: LayerState, streams: mx.array, step: Step) -> mx.array:
        return block(streams, step.tokens, lambda x: block.attention(x, layer, step))
