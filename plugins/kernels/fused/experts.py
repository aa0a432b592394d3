"""`grouped_experts` on a GPU: rows are grouped by expert, so that an expert's weights are read once for all of them.

Two dispatches: gate, up and the clamped SwiGLU; then down and the weighted sum. Who shares an expert with whom is found
on the device; nothing is read by the host.
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4.linear import ExpertBank
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, Plans, Prepared, ceil_div, power_of_two, source
from sparkwright.plugins.kernels.fused.matmul import TILE, split_of, tiling
from sparkwright.plugins.kernels.fused.weights import literal, stored, tileable

UP_OUTS, DOWN_OUTS, DOWN_WARPS, DOWN_TILES = 2, 4, 8, 1


def up_tiling(n: int, k: int, mode: str | None) -> tuple[int, int]:
    """As `tiling`; mxfp4 is faster in smaller threadgroups, of which more fit beside each other."""
    split, tiles = tiling(n, k)
    return (min(split, 4) if mode == "mxfp4" else split), tiles


def grouped_experts(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(r: int, k: int, dtype: mx.Dtype, bank: ExpertBank, limit: float) -> tuple[Prepared, Prepared]:
        d, width = bank.w1.in_size, bank.w1.out_size
        gate, up, down = stored("a", bank.w1), stored("b", bank.w3), stored("a", bank.w2)
        tiled = tileable(launcher, dtype, bank.w1, bank.w3, bank.w2)
        split, tiles = up_tiling(width, d, bank.w1.mode) if tiled else (split_of(d), 0)
        up_outs, down_outs = (TILE * tiles, TILE * DOWN_TILES) if tiled else (UP_OUTS, DOWN_OUTS)
        defines = f"#define R {r}\n#define TOPK {k}\n"  # macros: experts.h stands outside of the kernel
        helpers = source("experts.h") + (source("tile_members.h") if tiled else "")
        x, index = mx.zeros((r, d), dtype), mx.zeros((r, k), mx.int32)
        sizes = {"K": d, "N": width, "SPLIT": split}
        sizes |= {"MT": tiles} if tiled else {"OUTS": up_outs, "C": power_of_two(2 * up_outs * r)}
        first = launcher.prepare(
            "tile_experts_up" if tiled else "experts_up",
            {"x": x, "index": index},
            {"hidden": ((r * k, width), dtype)},
            {"T": dtype, **sizes},
            groups=(ceil_div(width, up_outs), r * k),
            threads=WARP * split,
            defines=defines + gate.defines + up.defines + f"#define LIMIT {literal(limit)}\n" + helpers,
            fixed=gate.inputs | up.inputs,
        )
        warps = min(DOWN_WARPS, max(4, k)) if tiled else DOWN_WARPS  # one row keeps each of them busy
        sizes = {"K": width, "N": d, "WARPS": warps}
        sizes |= {"MT": DOWN_TILES} if tiled else {"OUTS": down_outs, "C": power_of_two(down_outs * r)}
        second = launcher.prepare(
            "tile_experts_down" if tiled else "experts_down",
            {"hidden": mx.zeros((r * k, width), dtype), "index": index, "weight": mx.zeros((r, k))},
            {"y": ((r, d), mx.float32)},
            {"T": dtype, **sizes},
            groups=(ceil_div(d, down_outs), 1),
            threads=WARP * warps,
            defines=defines + down.defines + helpers,
            fixed=down.inputs,
        )
        return first, second

    def run(x: mx.array, index: mx.array, weight: mx.array, bank: ExpertBank, limit: float) -> mx.array:
        """x [r, d], index int32 [r, k], weight float32 [r, k] -> float32 [r, d]."""
        first, second = plans.get(plan, x.shape[0], index.shape[1], x.dtype, bank, limit)
        (hidden,) = first(x, index)
        (y,) = second(hidden, index, weight)
        return y

    return run
