"""One to eight rows by stored matrices on a GPU, each weight read once: `small_rows_matmul`, `grouped_rows_matmul`,
`swiglu_matmul`, `project_rows`. Sums are taken in float32, over a tree that the width of the matrix alone decides."""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.kernels.fused.launcher import (
    WARP,
    Held,
    Launcher,
    Plans,
    Prepared,
    ceil_div,
    power_of_two,
    source,
)
from sparkwright.plugins.kernels.fused.weights import literal, stored, tileable

OUTS = 4
"""Rows of the matrix that a threadgroup computes: 8 rows of activations by 4 outputs are 32 sums, one a lane."""


TILE = 16
"""Rows of the matrix that a warp's matrix units take at once."""


def tiling(n: int, k: int) -> tuple[int, int]:
    """Warps that share the columns, and how many times TILE rows a threadgroup computes: by the sizes of the weights
    alone, so that neither depends on the rows. As measured on an H200 (docs/benchmarks/kernels_h200_sweep.jsonl)."""
    return (16 if k >= 8192 else 8 if k >= 1024 else 4 if k >= 512 else 1), 1


def split_of(k: int) -> int:
    """Warps that share the columns of one output: by the width alone, so that it never depends on the rows."""
    return 4 if k >= 1024 else 2 if k >= 512 else 1


def small_rows_matmul(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(r: int, dtype: mx.Dtype, linear: Linear) -> Prepared:
        x = mx.zeros((r, linear.in_size), dtype)
        return _multiply(launcher, {"x": x}, 1, linear, "plain")

    def run(x: mx.array, linear: Linear) -> mx.array:
        """x [r, in] -> [r, out] in x's dtype."""
        (y,) = plans.get(plan, x.shape[0], x.dtype, linear)(x)
        return y

    return run


def grouped_rows_matmul(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(r: int, g: int, dtype: mx.Dtype, linear: Linear) -> Prepared:
        return _multiply(launcher, {"x": mx.zeros((r, g * linear.in_size), dtype)}, g, linear, "plain")

    def run(x: mx.array, linear: Linear) -> mx.array:
        """x [r, g, in], linear [g, out, in] -> [r, g, out]."""
        (y,) = plans.get(plan, x.shape[0], x.shape[1], x.dtype, linear)(x)
        return y

    return run


def swiglu_matmul(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(r: int, dtype: mx.Dtype, down: Linear, limit: float) -> Prepared:
        row = mx.zeros((r, down.in_size), dtype)
        limited = f"#define LIMIT {literal(limit)}\n"
        return _multiply(launcher, {"gate": row, "up": row}, 1, down, "swiglu", limited)

    def run(gate: mx.array, up: mx.array, down: Linear, limit: float) -> mx.array:
        """gate, up [r, width] -> [r, out]: the clamped SwiGLU is taken while the row is read."""
        (y,) = plans.get(plan, gate.shape[0], gate.dtype, down, limit)(gate, up)
        return y

    return run


def _multiply(
    launcher: Launcher, inputs: dict[str, mx.array], groups: int, linear: Linear, rows: str, defines: str = ""
) -> Prepared:
    """y [r, groups, out]: rows of source/rows_*.h or tile_*.h, one matrix each group."""
    first = next(iter(inputs.values()))
    r, dtype, n, k = first.shape[0], first.dtype, linear.out_size, linear.in_size
    tiled = tileable(launcher, dtype, linear)
    split, tiles = tiling(n, k) if tiled else (split_of(k), 0)
    outs = TILE * tiles if tiled else OUTS
    matrix = stored("a", linear)
    sizes = {"R": r, "K": k, "N": n, "G": groups, "SPLIT": split}
    sizes |= {"MT": tiles} if tiled else {"OUTS": outs, "C": power_of_two(outs * r)}
    return launcher.prepare(
        "tile_matmul" if tiled else "small_rows_matmul",
        inputs,
        {"y": ((r, groups, n) if linear.weight.ndim == 3 else (r, n), dtype)},
        {"T": dtype, "Y": dtype, **sizes},
        groups=(ceil_div(n, outs), groups),
        threads=WARP * split,
        defines=matrix.defines + defines + source(f"rows_{rows}.h") + (source(f"tile_{rows}.h") if tiled else ""),
        fixed=matrix.inputs,
    )


LETTERS = "ABCDEFGH"


def project_rows(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(r: int, dtype: mx.Dtype, weight: Held, eps: float, linears: tuple[Linear, ...]) -> Prepared:
        k = linears[0].in_size
        matrices = [stored(letter.lower(), linear) for letter, linear in zip(LETTERS, linears, strict=False)]
        tiled = tileable(launcher, dtype, *linears)
        split, tiles = tiling(sum(linear.out_size for linear in linears), k) if tiled else (split_of(k), 0)
        outs = TILE * tiles if tiled else OUTS
        starts, at = [], 0
        for linear in linears:
            starts.append(at)
            at += ceil_div(linear.out_size, outs)
        each = " ".join(f"X({LETTERS[i]}, {starts[i]}, {m.out_size})" for i, m in enumerate(linears))
        defines = f"#define EPS {literal(eps)}\n#define EACH(X) {each}\n"
        fixed = {"gain": weight.array}
        for matrix in matrices:
            fixed |= matrix.inputs
        sizes = {"R": r, "K": k, "SPLIT": split}
        sizes |= {"MT": tiles, "GROUPS": at} if tiled else {"OUTS": outs, "C": power_of_two(outs * r)}
        outputs = {f"y_{LETTERS[i]}": ((r, linear.out_size), dtype) for i, linear in enumerate(linears)}
        return launcher.prepare(
            "tile_project" if tiled else "project_rows",
            {"x": mx.zeros((r, k), dtype)},
            {"normed": ((r, k), dtype), **outputs},
            {"T": dtype, **sizes},
            groups=(at, 1),
            threads=WARP * split,
            defines="".join(m.defines for m in matrices)
            + defines
            + source("tile_normed.h" if tiled else "rows_normed.h"),
            fixed=fixed,
        )

    def run(
        x: mx.array, weight: mx.array, eps: float, linears: tuple[Linear, ...]
    ) -> tuple[mx.array, tuple[mx.array, ...]]:
        """x [r, d], weight [d] -> (RMSNorm(x; weight) [r, d], one [r, out] for each matrix), in one dispatch."""
        normed, *ys = plans.get(plan, x.shape[0], x.dtype, Held(weight), eps, linears)(x)
        return normed, tuple(ys)

    return run
