"""One to eight rows by stored matrices on a GPU, each weight read once: `small_rows_matmul`, `grouped_rows_matmul`,
`swiglu_matmul`, `project_rows`. Sums are taken in float32, over a tree that the width of the matrix alone decides."""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, ceil_div, power_of_two, source
from sparkwright.plugins.kernels.fused.weights import Stored, literal, stored, tileable

OUTS = 4
"""Rows of the matrix that a threadgroup computes: 8 rows of activations by 4 outputs are 32 sums, one a lane."""


TILE = 16
"""Rows of the matrix that a threadgroup computes on matrix units."""


def tile_split(k: int) -> int:
    """As split_of, for tiles."""
    return 8 if k >= 1024 else 4 if k >= 512 else 1


def split_of(k: int) -> int:
    """Warps that share the columns of one output: by the width alone, so that it never depends on the rows."""
    return 4 if k >= 1024 else 2 if k >= 512 else 1


def small_rows_matmul(launcher: Launcher) -> Op:
    def run(x: mx.array, linear: Linear) -> mx.array:
        """x [r, in] -> [r, out] in x's dtype."""
        matrix = stored("a", linear)
        return _multiply(launcher, {"x": x, **matrix.inputs}, x, 1, linear, matrix, source("rows_plain.h"))

    return run


def grouped_rows_matmul(launcher: Launcher) -> Op:
    def run(x: mx.array, linear: Linear) -> mx.array:
        """x [r, g, in], linear [g, out, in] -> [r, g, out]."""
        r, g, k = x.shape
        matrix = stored("a", linear)
        flat = x.reshape(r, g * k)
        y = _multiply(launcher, {"x": flat, **matrix.inputs}, flat, g, linear, matrix, source("rows_plain.h"))
        return y.reshape(r, g, linear.out_size)

    return run


def swiglu_matmul(launcher: Launcher) -> Op:
    def run(gate: mx.array, up: mx.array, down: Linear, limit: float) -> mx.array:
        """gate, up [r, width] -> [r, out]: the clamped SwiGLU is taken while the row is read."""
        matrix = stored("a", down)
        defines = f"#define LIMIT {literal(limit)}\n{source('rows_swiglu.h')}"
        inputs = {"gate": gate, "up": up, **matrix.inputs}
        return _multiply(launcher, inputs, gate, 1, down, matrix, defines, f"swiglu{limit}")

    return run


def _multiply(
    launcher: Launcher,
    inputs: dict[str, mx.array],
    x: mx.array,
    groups: int,
    linear: Linear,
    matrix: Stored,
    rows: str,
    kind: str = "plain",
) -> mx.array:
    r, n, k = x.shape[0], linear.out_size, linear.in_size
    tiled = tileable(launcher, x.dtype, linear)
    split, outs = (tile_split(k), TILE) if tiled else (split_of(k), OUTS)
    sizes = {"R": r, "K": k, "N": n, "G": groups, "SPLIT": split}
    if not tiled:
        sizes |= {"OUTS": outs, "C": power_of_two(outs * r)}
    (y,) = launcher.launch(
        "tile_matmul" if tiled else "small_rows_matmul",
        inputs,
        {"y": ((r, groups * n), x.dtype)},
        {"T": x.dtype, "Y": x.dtype, **sizes},
        groups=(ceil_div(n, outs), groups),
        threads=WARP * split,
        defines=matrix.defines + rows,
        variant=f"{kind}_{matrix.variant}",
    )
    return y


LETTERS = "ABCDEFGH"


def project_rows(launcher: Launcher) -> Op:
    def run(
        x: mx.array, weight: mx.array, eps: float, linears: tuple[Linear, ...]
    ) -> tuple[mx.array, tuple[mx.array, ...]]:
        """x [r, d], weight [d] -> (RMSNorm(x; weight) [r, d], one [r, out] for each matrix), in one dispatch."""
        r, k = x.shape
        matrices = [stored(letter.lower(), linear) for letter, linear in zip(LETTERS, linears, strict=False)]
        tiled = tileable(launcher, x.dtype, *linears)
        split, outs = (tile_split(k), TILE) if tiled else (split_of(k), OUTS)
        starts, at = [], 0
        for linear in linears:
            starts.append(at)
            at += ceil_div(linear.out_size, outs)
        each = " ".join(f"X({LETTERS[i]}, {starts[i]}, {m.out_size})" for i, m in enumerate(linears))
        defines = f"#define EPS {literal(eps)}\n#define EACH(X) {each}\n" + source("rows_normed.h")
        inputs = {"x": x, "gain": weight}
        for matrix in matrices:
            inputs |= matrix.inputs
        sizes = {"R": r, "K": k, "SPLIT": split}
        if not tiled:
            sizes |= {"OUTS": outs, "C": power_of_two(outs * r)}
        variant = "_".join(f"{m.variant}n{linear.out_size}" for m, linear in zip(matrices, linears, strict=True))
        outputs = {f"y_{LETTERS[i]}": ((r, linear.out_size), x.dtype) for i, linear in enumerate(linears)}
        normed, *ys = launcher.launch(
            "tile_project" if tiled else "project_rows",
            inputs,
            {"normed": ((r, k), x.dtype), **outputs},
            {"T": x.dtype, **sizes},
            groups=(at, 1),
            threads=WARP * split,
            defines="".join(m.defines for m in matrices) + defines,
            variant=f"eps{eps}_{variant}",
        )
        return normed, tuple(ys)

    return run
