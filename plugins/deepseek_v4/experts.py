"""The mixture of experts of a block: routing by score or by token id, routed experts, the shared expert (spec 5.9)."""

from __future__ import annotations

import attrs
import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear, Weights


@attrs.frozen(eq=False)
class FeedForward:
    """The FFN branch under `prefix` ("layers.3." or "mtp.0."), its norm included."""

    norm: mx.array  # [d]
    eps: float
    gate: mx.array  # [E, d] float32
    bias: mx.array | None  # [E] float32; None where experts are chosen by token id
    table: mx.array | None  # [V, k] int32: those experts
    per_token: int
    scale: float
    limit: float
    bank: ExpertBank
    shared: tuple[Linear, Linear]  # w1, w3
    shared_down: Linear
    _project: Op
    _route: Op
    _experts: Op
    _down: Op

    @classmethod
    def build(cls, config: ModelConfig, weights: Weights, prefix: str, hashed: bool, kernels: Kernels) -> FeedForward:
        p = f"{prefix}ffn."
        bank = weights.experts(f"{prefix}ffn")
        w1, w3, w2 = (weights.linear(f"{p}shared_experts.{w}") for w in ("w1", "w3", "w2"))
        widths = (config.hidden, config.experts, config.experts_per_token)
        return cls(
            norm=weights.array(f"{prefix}ffn_norm.weight", "float32"),
            eps=config.rms_eps,
            gate=weights.array(f"{p}gate.weight", "float32"),
            bias=None if hashed else weights.array(f"{p}gate.bias", "float32"),
            table=weights.array(f"{p}gate.tid2eid", "int32") if hashed else None,
            per_token=config.experts_per_token,
            scale=config.routed_scale,
            limit=config.swiglu_limit,
            bank=bank,
            shared=(w1, w3),
            shared_down=w2,
            project=kernels.op(ops.PROJECT_ROWS, w1, w3),
            route=kernels.op(ops.ROUTE_HASH if hashed else ops.ROUTE_SCORES, widths=widths),
            experts=kernels.op(ops.GROUPED_EXPERTS, bank),
            down=kernels.op(ops.SWIGLU_MATMUL, w2),
        )

    def __call__(self, x: mx.array, tokens: mx.array) -> mx.array:
        """x [r, d] before the norm, tokens int32 [r]: the ids at these very positions -> [r, d]."""
        normed, (gate, up) = self._project(x, self.norm, self.eps, self.shared)
        if self.table is not None:
            index, weight = self._route(normed, self.gate, self.table, tokens, self.scale)
        else:
            index, weight = self._route(normed, self.gate, self.bias, self.per_token, self.scale)
        routed = self._experts(normed, index, weight, self.bank, self.limit)  # float32
        shared = self._down(gate, up, self.shared_down, self.limit)
        summed: mx.array = (routed + shared.astype(mx.float32)).astype(x.dtype)
        return summed
