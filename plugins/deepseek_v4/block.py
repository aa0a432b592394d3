"""A block: two branches, each read from the residual streams and written back to them (spec 5.1)."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import mlx.core as mx

from sparkwright.plugins.deepseek_v4.attention import Attention
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.experts import FeedForward
from sparkwright.plugins.deepseek_v4.hyper import HyperConnection
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import Weights


@attrs.frozen(eq=False)
class Block:
    """The block under `prefix`: a decoder layer ("layers.3.") or a drafter's stage ("mtp.0.", ratio 0, not hashed)."""

    attn_hyper: HyperConnection
    attention: Attention
    ffn_hyper: HyperConnection
    ffn: FeedForward

    @classmethod
    def build(
        cls, config: ModelConfig, weights: Weights, prefix: str, ratio: int, hashed: bool, kernels: Kernels
    ) -> Block:
        return cls(
            attn_hyper=HyperConnection.build(config, weights, f"{prefix}hc_attn", kernels),
            attention=Attention.build(config, weights, prefix, ratio, kernels),
            ffn_hyper=HyperConnection.build(config, weights, f"{prefix}hc_ffn", kernels),
            ffn=FeedForward.build(config, weights, prefix, hashed, kernels),
        )

    def __call__(self, streams: mx.array, tokens: mx.array, attend: Callable[[mx.array], mx.array]) -> mx.array:
        """streams [r, n, d], tokens int32 [r] -> streams. `attend`: the attention branch, [r, d] before its norm."""
        mixed, post, comb = self.attn_hyper.mix(streams)
        streams = self.attn_hyper.expand(attend(mixed), streams, post, comb)
        mixed, post, comb = self.ffn_hyper.mix(streams)
        return self.ffn_hyper.expand(self.ffn(mixed, tokens), streams, post, comb)
