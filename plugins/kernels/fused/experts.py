"""`grouped_experts` on a GPU: rows are grouped by expert, so that an expert's weights are read once for all of them.

Two dispatches: gate, up and the clamped SwiGLU; then down and the weighted sum. Who shares an expert with whom is found
on the device; nothing is read by the host.
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4.linear import ExpertBank
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, ceil_div, power_of_two, source
from sparkwright.plugins.kernels.fused.matmul import split_of
from sparkwright.plugins.kernels.fused.weights import literal, stored

UP_OUTS, DOWN_OUTS, DOWN_WARPS = 2, 4, 8


def grouped_experts(launcher: Launcher) -> Op:
    def run(x: mx.array, index: mx.array, weight: mx.array, bank: ExpertBank, limit: float) -> mx.array:
        """x [r, d], index int32 [r, k], weight float32 [r, k] -> float32 [r, d]."""
        r, d = x.shape
        k, width = index.shape[1], bank.w1.out_size
        gate, up, down = stored("a", bank.w1), stored("b", bank.w3), stored("a", bank.w2)
        split = split_of(d)
        shared = {"R": r, "TOPK": k}
        (hidden,) = launcher.launch(
            "experts_up",
            {"x": x, "index": index, **gate.inputs, **up.inputs},
            {"hidden": ((r * k, width), x.dtype)},
            {"T": x.dtype, "K": d, "N": width, "OUTS": UP_OUTS, "SPLIT": split, "C": power_of_two(2 * UP_OUTS * r)},
            groups=(ceil_div(width, UP_OUTS), r * k),
            threads=WARP * split,
            defines=_defines(shared, gate.defines + up.defines + f"#define LIMIT {literal(limit)}\n"),
            variant=f"r{r}k{k}_{gate.variant}_{up.variant}_limit{limit}",
        )
        (y,) = launcher.launch(
            "experts_down",
            {"hidden": hidden, "index": index, "weight": weight, **down.inputs},
            {"y": ((r, d), mx.float32)},
            {
                "T": x.dtype,
                "K": width,
                "N": d,
                "OUTS": DOWN_OUTS,
                "WARPS": DOWN_WARPS,
                "C": power_of_two(DOWN_OUTS * r),
            },
            groups=(ceil_div(d, DOWN_OUTS), 1),
            threads=WARP * DOWN_WARPS,
            defines=_defines(shared, down.defines),
            variant=f"r{r}k{k}_{down.variant}",
        )
        return y

    return run


def _defines(sizes: dict[str, int], more: str) -> str:
    """Sizes that experts.h needs are macros: it stands outside of the kernel's templates."""
    return "".join(f"#define {name} {value}\n" for name, value in sizes.items()) + more + source("experts.h")
