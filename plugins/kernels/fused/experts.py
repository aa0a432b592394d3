"""`grouped_experts` on a GPU: rows are grouped by expert, so that an expert's weights are read once for all of them.

Two dispatches: gate, up and the clamped SwiGLU; then down and the weighted sum. Who shares an expert with whom is found
on the device; nothing is read by the host.
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4.linear import ExpertBank
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, ceil_div, power_of_two, source
from sparkwright.plugins.kernels.fused.matmul import TILE, split_of, tile_split
from sparkwright.plugins.kernels.fused.weights import literal, stored, tileable

UP_OUTS, DOWN_OUTS, DOWN_WARPS = 2, 4, 8


def grouped_experts(launcher: Launcher) -> Op:
    def run(x: mx.array, index: mx.array, weight: mx.array, bank: ExpertBank, limit: float) -> mx.array:
        """x [r, d], index int32 [r, k], weight float32 [r, k] -> float32 [r, d]."""
        r, d = x.shape
        k, width = index.shape[1], bank.w1.out_size
        gate, up, down = stored("a", bank.w1), stored("b", bank.w3), stored("a", bank.w2)
        tiled = tileable(launcher, x.dtype, bank.w1, bank.w3, bank.w2)
        split = tile_split(d) if tiled else split_of(d)
        outs, down_outs = (TILE, TILE) if tiled else (UP_OUTS, DOWN_OUTS)
        defines = f"#define R {r}\n#define TOPK {k}\n"  # macros: experts.h stands outside of the kernel's templates
        helpers = source("experts.h") + (source("tile_members.h") if tiled else "")
        sizes = {"K": d, "N": width, "SPLIT": split}
        if not tiled:
            sizes |= {"OUTS": outs, "C": power_of_two(2 * outs * r)}
        (hidden,) = launcher.launch(
            "tile_experts_up" if tiled else "experts_up",
            {"x": x, "index": index, **gate.inputs, **up.inputs},
            {"hidden": ((r * k, width), x.dtype)},
            {"T": x.dtype, **sizes},
            groups=(ceil_div(width, outs), r * k),
            threads=WARP * split,
            defines=defines + gate.defines + up.defines + f"#define LIMIT {literal(limit)}\n" + helpers,
            variant=f"r{r}k{k}_{gate.variant}_{up.variant}_limit{limit}",
        )
        sizes = {"K": width, "N": d, "WARPS": DOWN_WARPS}
        if not tiled:
            sizes |= {"OUTS": down_outs, "C": power_of_two(down_outs * r)}
        (y,) = launcher.launch(
            "tile_experts_down" if tiled else "experts_down",
            {"hidden": hidden, "index": index, "weight": weight, **down.inputs},
            {"y": ((r, d), mx.float32)},
            {"T": x.dtype, **sizes},
            groups=(ceil_div(d, down_outs), 1),
            threads=WARP * DOWN_WARPS,
            defines=defines + down.defines + helpers,
            variant=f"r{r}k{k}_{down.variant}",
        )
        return y

    return run
