"""A `Linear` as a kernel sees it: its arrays under a prefix, and the macros by which a body reads it."""

from __future__ import annotations

import attrs
import mlx.core as mx

from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.kernels.fused.launcher import Launcher

FORMS = {"float32": 0, "bfloat16": 0, "float16": 0, "affine4": 1, "affine8": 2, "mxfp4": 3, "mxfp8": 4}
"""Stored formats that kernels read, and their number in source/matrix.h."""

DTYPES = ("float32", "bfloat16", "float16")
"""Dtypes of activations that kernels take."""

LOWEST = "-3.0e38f"
"""Stands for minus infinity where differences of two are taken."""


@attrs.frozen(eq=False)
class Stored:
    """inputs: a_w, a_s, a_b for prefix "a"; defines: the macros MATRIX_A, TILE_A (its types), GROUP_A and PARTS_A."""

    inputs: dict[str, mx.array]
    defines: str
    variant: str


def stored(prefix: str, linear: Linear) -> Stored:
    w, s, b = (f"{prefix}_{part}" for part in "wsb")
    inputs = {w: linear.weight}
    names = [w, w, w]
    if linear.scales is not None:
        inputs[s] = linear.scales
        names[1:] = [s, s]
    if linear.biases is not None:
        inputs[b] = linear.biases
        names[2] = b
    form, k, group = FORMS[linear.format], linear.in_size, linear.group_size or 8
    letter = prefix.upper()
    tile = f"#define TILE_{letter} Tile<{form}, {k}, {group}>\n#define GROUP_{letter} {group}\n"
    defines = f"#define MATRIX_{letter} Matrix<{form}, {k}, {group}>\n#define PARTS_{letter} {', '.join(names)}\n"
    return Stored(inputs, defines + tile, f"{linear.format}g{linear.group_size}")


def tileable(launcher: Launcher, dtype: mx.Dtype, *linears: Linear) -> bool:
    """Whether matrix units take these: a matter of the launcher, the dtype and the weights, never of the rows."""
    if not launcher.tiles or (launcher.backend == "cuda" and dtype != mx.bfloat16):
        return False
    return all(
        linear.mode in ("mxfp4", "mxfp8")
        or (linear.mode == "affine" and linear.group_size == 64)
        or (linear.format == "bfloat16" and linear.in_size % 16 == 0)
        for linear in linears
    )


def literal(value: float) -> str:
    """A float in a kernel's text, exact to float32."""
    return f"{value:.9e}f"
