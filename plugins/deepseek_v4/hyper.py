"""Hyper-connections: how a block reads its input from n residual streams and writes its output back (spec 5.2)."""

from __future__ import annotations

import attrs
import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import Weights


@attrs.frozen(eq=False)
class HyperConnection:
    """One branch's connection; `name` is "hc_attn" or "hc_ffn" under the block's prefix. All of it is float32."""

    fn: mx.array  # [(2 + n) n, n d]
    base: mx.array  # [(2 + n) n]
    scale: mx.array  # [3]
    rms_eps: float
    hc_eps: float
    iters: int
    _mix: Op
    _expand: Op

    @classmethod
    def build(cls, config: ModelConfig, weights: Weights, name: str, kernels: Kernels) -> HyperConnection:
        widths = (config.hc_mult, config.hidden)
        return cls(
            fn=weights.array(f"{name}_fn", "float32"),
            base=weights.array(f"{name}_base", "float32"),
            scale=weights.array(f"{name}_scale", "float32"),
            rms_eps=config.rms_eps,
            hc_eps=config.hc_eps,
            iters=config.hc_iters,
            mix=kernels.op(ops.HYPER_MIX, widths=widths),
            expand=kernels.op(ops.HYPER_EXPAND, widths=widths),
        )

    def mix(self, streams: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """streams [r, n, d] -> the branch's input [r, d], and post [r, n] and comb [r, n, n] for `expand`."""
        mixed, post, comb = self._mix(streams, self.fn, self.base, self.scale, self.rms_eps, self.hc_eps, self.iters)
        return mixed, post, comb

    def expand(self, branch: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
        """The branch's output [r, d] added to the streams [r, n, d]."""
        expanded: mx.array = self._expand(branch, streams, post, comb)
        return expanded


@attrs.frozen(eq=False)
class HyperHead:
    """The collapse before the final norm; `prefix` is "" for the target, "mtp.2." for the drafter's last stage."""

    fn: mx.array  # [n, n d]
    base: mx.array  # [n]
    scale: mx.array  # [1]
    rms_eps: float
    hc_eps: float
    _head: Op

    @classmethod
    def build(cls, config: ModelConfig, weights: Weights, prefix: str, kernels: Kernels) -> HyperHead:
        return cls(
            fn=weights.array(f"{prefix}hc_head_fn", "float32"),
            base=weights.array(f"{prefix}hc_head_base", "float32"),
            scale=weights.array(f"{prefix}hc_head_scale", "float32"),
            rms_eps=config.rms_eps,
            hc_eps=config.hc_eps,
            head=kernels.op(ops.HYPER_HEAD, widths=(config.hc_mult, config.hidden)),
        )

    def __call__(self, streams: mx.array) -> mx.array:
        """streams [r, n, d] -> [r, d] float32, before the norm."""
        collapsed: mx.array = self._head(streams, self.fn, self.base, self.scale, self.rms_eps, self.hc_eps)
        return collapsed
