"""`norm_rotate` and `pool_windows` on a GPU, one dispatch each."""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, Plans, Prepared, ceil_div
from sparkwright.plugins.kernels.fused.weights import LOWEST, literal

WARPS = 4


def norm_rotate(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(shape: tuple[int, ...], dtype: mx.Dtype, half: int, eps: float | None, gained: bool) -> Prepared:
        r, heads, width = shape
        angles = mx.zeros((r, half))
        inputs, defines = {"x": mx.zeros(shape, dtype), "cos": angles, "sin": angles}, ""
        if eps is not None:
            defines += f"#define NORMED {literal(eps)}\n"
        if gained:
            inputs["gain"] = mx.zeros((width,))
            defines += "#define GAINED 1\n"
        sizes = {"H": heads, "D": width, "ROTARY": 2 * half, "PAIRS": ceil_div(width, 64), "WARPS": WARPS}
        return launcher.prepare(
            "norm_rotate",
            inputs,
            {"y": (shape, dtype)},
            {"T": dtype, **sizes},
            groups=(ceil_div(heads, WARPS), r),
            threads=WARP * WARPS,
            defines=defines,
        )

    def run(
        x: mx.array, cos: mx.array, sin: mx.array, eps: float | None = None, weight: mx.array | None = None
    ) -> mx.array:
        """x [r, h, D], cos, sin [r, R / 2] -> [r, h, D]; a head a warp."""
        gain = () if eps is None or weight is None else (weight,)
        (y,) = plans.get(plan, tuple(x.shape), x.dtype, cos.shape[-1], eps, bool(gain))(x, cos, sin, *gain)
        return y

    return run


def pool_windows(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(shape: tuple[int, ...], half: int, eps: float) -> Prepared:
        m, slots, width = shape
        rows, angles = mx.zeros(shape), mx.zeros((m, half))
        sizes = {"SLOTS": slots, "D": width, "ROTARY": 2 * half, "WARPS": WARPS}
        return launcher.prepare(
            "pool_windows",
            {"kv": rows, "gate": rows, "gain": mx.zeros((width,)), "cos": angles, "sin": angles},
            {"y": ((m, width), mx.float32)},
            {**sizes, "PAIRS": ceil_div(width, 2 * WARP * WARPS)},
            groups=(m, 1),
            threads=WARP * WARPS,
            defines=f"#define LOWEST {LOWEST}\n#define EPS {literal(eps)}\n",
        )

    def run(kv: mx.array, gate: mx.array, norm: mx.array, eps: float, cos: mx.array, sin: mx.array) -> mx.array:
        """kv, gate [m, slots, D] float32 -> [m, D] float32; a window a threadgroup."""
        (y,) = plans.get(plan, tuple(kv.shape), cos.shape[-1], eps)(kv, gate, norm, cos, sin)
        return y

    return run
