"""Compressors: every `ratio` tokens become one row, pooled by learnt gates (spec 5.7, 6.2).

Ratio 128 pools its own window. Ratio 4 pools eight slots, the A halves of the window before and the B halves of its
own. The window before is read from the ring of raw projections, whichever call wrote it, so there is no call boundary.
"""

from __future__ import annotations

import attrs
import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import Linear, Weights
from sparkwright.plugins.deepseek_v4.state import CompressorState
from sparkwright.plugins.deepseek_v4.step import Step


@attrs.frozen(eq=False)
class Compressor:
    """A layer's compressor or its indexer's ("layers.2.attn.compressor", "layers.2.attn.indexer.compressor")."""

    ratio: int
    width: int
    linears: tuple[Linear, Linear]  # wkv, wgate: [width or 2 width, d]; projected together with the layer's others
    ape: mx.array  # [ratio, width or 2 width] float32
    norm: mx.array  # [width] float32
    eps: float
    _pool: Op

    @classmethod
    def build(
        cls, config: ModelConfig, weights: Weights, name: str, ratio: int, width: int, kernels: Kernels
    ) -> Compressor:
        return cls(
            ratio=ratio,
            width=width,
            linears=(weights.linear(f"{name}.wkv"), weights.linear(f"{name}.wgate")),
            ape=weights.array(f"{name}.ape", "float32"),
            norm=weights.array(f"{name}.norm.weight", "float32"),
            eps=config.rms_eps,
            pool=kernels.op(ops.POOL_WINDOWS, widths=(ratio, width)),
        )

    def advance(self, kv: mx.array, gate: mx.array, state: CompressorState, step: Step) -> None:
        """Takes in a forward's projections [rows, width or 2 width] and emits a row for every window that closes."""
        gate = gate.astype(mx.float32) + self.ape[step.slot_in_window(self.ratio)]
        state.raw.write(mx.concatenate([kv.astype(mx.float32), gate], axis=-1), step.real)
        first, last = step.closing(self.ratio)
        if last > first:
            cos, sin = step.closing_angles(self.ratio)
            kv, gate = self._slots(state, step)
            state.rows.append(self._pool(kv, gate, self.norm, self.eps, cos, sin))

    def _slots(self, state: CompressorState, step: Step) -> tuple[mx.array, mx.array]:
        """What the closing windows pool: kv and gate, each float32 [windows, slots, width]."""
        w = self.width
        own = state.raw.array[step.closing_slots(self.ratio, state.raw)]  # [windows, ratio, kv and gate]
        if self.ratio != 4:
            return own[..., :w], own[..., w:]
        before = step.closing_slots(self.ratio, state.raw, back=1)
        held = state.raw.array[mx.maximum(before, 0)]
        # [A | B] of kv, then [A | B] of the gate; window 0 has nothing before it.
        gate_a = mx.where(before[..., None] >= 0, held[..., 2 * w : 3 * w], -mx.inf)
        kv = mx.concatenate([held[..., :w], own[..., w : 2 * w]], axis=1)
        gate = mx.concatenate([gate_a, own[..., 3 * w :]], axis=1)
        return kv, gate
