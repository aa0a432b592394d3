"""A `Linear` as a kernel sees it: its arrays under a prefix, and the macros by which a body reads it."""

from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx

from sparkwright.core.errors import PluginError
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.kernels.fused.launcher import Held, Launcher

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


TILE_SCALES = 127 - 40, 127 + 40
"""Scale bytes of mxfp4 and mxfp8 of which CUDA's tiles keep every bit of a product: 2^-40 to 2^40."""
MOST_SCALE = 127 + 113
"""The largest scale byte that any kernel takes: a weight must stay a float32."""


def tileable(launcher: Launcher, dtype: mx.Dtype, *linears: Linear) -> bool:
    """Whether matrix units take these: a matter of the launcher, the dtype and the weights, never of the rows."""
    scales = [scale_bytes(launcher, linear) for linear in linears]
    if not launcher.tiles or (launcher.backend == "cuda" and dtype != mx.bfloat16):
        return False
    if launcher.backend == "cuda" and any(low < TILE_SCALES[0] or high > TILE_SCALES[1] for low, high in scales):
        return False
    return all(
        linear.mode in ("mxfp4", "mxfp8")
        or (linear.mode == "affine" and linear.group_size == 64)
        or (linear.format == "bfloat16" and linear.in_size % 16 == 0)
        for linear in linears
    )


def scale_bytes(launcher: Launcher, linear: Linear) -> tuple[int, int]:
    """The smallest and the largest scale byte of an mxfp4 or mxfp8 weight, read once; PluginError if no kernel can
    take them. Of other forms, scales that everything takes."""
    if linear.mode not in ("mxfp4", "mxfp8") or linear.scales is None:
        return 127, 127
    key = Held(linear.scales)
    if key not in launcher.scale_bytes:
        ends: Any = mx.stack([mx.min(linear.scales), mx.max(linear.scales)]).tolist()
        low, high = ends
        if high > MOST_SCALE:
            raise PluginError(
                f"kernels 'fused': a {linear.format} weight of shape {list(linear.weight.shape)} has a scale of "
                + ("NaN" if high == 255 else f"2^{high - 127}")
                + f", and these kernels take scales up to 2^{MOST_SCALE - 127}: is the checkpoint whole? kernels.use = "
                "'unfused' computes with it all the same"
            )
        launcher.scale_bytes[key] = low, high
    return launcher.scale_bytes[key]


def literal(value: float) -> str:
    """A float in a kernel's text, exact to float32."""
    return f"{value:.9e}f"
