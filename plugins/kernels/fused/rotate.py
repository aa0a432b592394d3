"""`norm_rotate` and `pool_windows` on a GPU, one dispatch each."""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, ceil_div
from sparkwright.plugins.kernels.fused.weights import LOWEST, literal

WARPS = 4


def norm_rotate(launcher: Launcher) -> Op:
    def run(
        x: mx.array, cos: mx.array, sin: mx.array, eps: float | None = None, weight: mx.array | None = None
    ) -> mx.array:
        """x [r, h, D], cos, sin [r, R / 2] -> [r, h, D]; a head a warp."""
        r, heads, width = x.shape
        inputs, defines = {"x": x, "cos": cos, "sin": sin}, ""
        if eps is not None:
            defines += f"#define NORMED {literal(eps)}\n"
        if eps is not None and weight is not None:
            inputs["gain"] = weight
            defines += "#define GAINED 1\n"
        sizes = {"H": heads, "D": width, "ROTARY": 2 * cos.shape[-1], "PAIRS": ceil_div(width, 64), "WARPS": WARPS}
        (y,) = launcher.launch(
            "norm_rotate",
            inputs,
            {"y": (x.shape, x.dtype)},
            {"T": x.dtype, **sizes},
            groups=(ceil_div(heads, WARPS), r),
            threads=WARP * WARPS,
            defines=defines,
            variant=f"{eps}_{len(inputs)}",
        )
        return y

    return run


def pool_windows(launcher: Launcher) -> Op:
    def run(kv: mx.array, gate: mx.array, norm: mx.array, eps: float, cos: mx.array, sin: mx.array) -> mx.array:
        """kv, gate [m, slots, D] float32 -> [m, D] float32; a window a threadgroup."""
        m, slots, width = kv.shape
        sizes = {"SLOTS": slots, "D": width, "ROTARY": 2 * cos.shape[-1], "WARPS": WARPS}
        (y,) = launcher.launch(
            "pool_windows",
            {"kv": kv, "gate": gate, "gain": norm, "cos": cos, "sin": sin},
            {"y": ((m, width), mx.float32)},
            {**sizes, "PAIRS": ceil_div(width, 2 * WARP * WARPS)},
            groups=(m, 1),
            threads=WARP * WARPS,
            defines=f"#define LOWEST {LOWEST}\n#define EPS {literal(eps)}\n",
            variant=f"eps{eps}",
        )
        return y

    return run
