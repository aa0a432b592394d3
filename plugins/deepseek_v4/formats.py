"""Stored forms of a matrix, and the exact moves between them.

NumPy only: no device, no names of tensors, no model. A form says which parts (`weight`, `scale`, ...) a matrix
[out, in] is stored in, with their dtypes and shapes. The official FP8 and FP4 forms become MLX's mxfp8 and mxfp4 by
moving bytes: no value is decoded on the way, so the move is exact by construction, NaN codes included.

Letters: o rows (out), i columns (in) of the logical matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint32]
Part: TypeAlias = tuple[tuple[str, ...], tuple[int, ...]]
"""Accepted dtypes (the first is the one we write) and the shape."""

FP8_BLOCK = 128
"""Rows and columns that share a scale in the official FP8 form."""
GROUP = 32
"""Columns that share a scale in FP4 and in both mx forms."""

Kind: TypeAlias = Literal["float", "fp8", "fp4", "mx", "affine"]
FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
FLOAT_DTYPES = {name: dtype for dtype, name in FLOATS.items()}


@attrs.frozen
class Form:
    """A way to store a matrix; `name` is what kernels and options call it ("mxfp4", "affine3", "bfloat16", ...)."""

    kind: Kind
    name: str
    bits: int
    group: int = 0

    def parts(self, rows: int, columns: int) -> dict[str, Part]:
        """Suffix -> accepted dtypes and shape of each stored part. ValueError if the form cannot hold the width."""
        o, i = rows, columns
        if self.group and i % self.group:
            raise ValueError(f"{self.name} needs a multiple of {self.group} columns, found {i}")
        match self.kind:
            case "float":
                return {"weight": ((FLOAT_DTYPES[self.name],), (o, i))}
            case "fp8":
                scale = (math.ceil(o / FP8_BLOCK), math.ceil(i / FP8_BLOCK))
                return {"weight": (("F8_E4M3", "U8"), (o, i)), "scale": (("F8_E8M0", "U8"), scale)}
            case "fp4":
                return {"weight": (("I8", "U8"), (o, i // 2)), "scale": (("F8_E8M0", "U8"), (o, i // GROUP))}
            case "mx":
                return {"weight": (("U32",), (o, i * self.bits // 32)), "scales": (("U8",), (o, i // GROUP))}
            case "affine":
                floats = ("BF16", "F16", "F32")
                return {
                    "weight": (("U32",), (o, i * self.bits // 32)),
                    "scales": (floats, (o, i // self.group)),
                    "biases": (floats, (o, i // self.group)),
                }

    def nbytes(self, rows: int, columns: int) -> int:
        """Bytes of all parts, in the dtypes we write."""
        return sum(math.prod(shape) * ITEM_BYTES[dtypes[0]] for dtypes, shape in self.parts(rows, columns).values())

    def config(self) -> dict[str, Any]:
        """The entry of MLX's `quantization` table."""
        mode = self.name if self.kind == "mx" else "affine"
        return {"group_size": self.group, "bits": self.bits, "mode": mode}


ITEM_BYTES = {
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "I8": 1,
    "U8": 1,
    "BF16": 2,
    "F16": 2,
    "F32": 4,
    "U32": 4,
    "I32": 4,
    "I64": 8,
}

FP8 = Form("fp8", "fp8", 8, GROUP)
FP4 = Form("fp4", "fp4", 4, GROUP)
MXFP8 = Form("mx", "mxfp8", 8, GROUP)
MXFP4 = Form("mx", "mxfp4", 4, GROUP)
BFLOAT16 = Form("float", "bfloat16", 16)
FLOAT16 = Form("float", "float16", 16)
FLOAT32 = Form("float", "float32", 32)
FLOAT_FORMS = {"BF16": BFLOAT16, "F16": FLOAT16, "F32": FLOAT32}


def affine(bits: int, group: int) -> Form:
    return Form("affine", f"affine{bits}", bits, group)


def in_memory(form: Form) -> Form:
    """The form a matrix has once loaded: the official forms become mx, all others stay."""
    return {"fp8": MXFP8, "fp4": MXFP4}.get(form.kind, form)


def packed(
    weight: tuple[int, ...], scales: tuple[int, ...], scales_dtype: str, biases: bool, columns: int
) -> Form | str:
    """The MLX form of a U32 weight beside scales, deduced from the shapes alone; or what is wrong with it.

    MLX writes bits and group size into config.json too, but there under module paths that differ between converters;
    with the logical width known, the shapes say the same without doubt.
    """
    if not weight or not scales or not scales[-1] or not columns or columns % scales[-1]:
        return f"scales {list(scales)} do not divide {columns} columns into groups"
    group, bits = columns // scales[-1], weight[-1] * 32 / columns
    if scales_dtype == "U8":
        if biases:
            return "it has biases beside 8-bit scales"
        form = {(4.0, GROUP): MXFP4, (8.0, GROUP): MXFP8}.get((bits, group))
        return form or f"{bits:g} bits in groups of {group} with 8-bit scales; mxfp4 and mxfp8 (groups of 32) are read"
    if not biases:
        return "its biases are missing"
    if bits not in (2, 3, 4, 5, 6, 8) or group not in (32, 64, 128):
        return (
            f"{bits:g} bits in groups of {group}; affine forms of 2 to 6 and 8 bits in groups of 32, 64, 128 are read"
        )
    return affine(int(bits), group)


# --------------------------------------------------------------------------------------------------------------
# Exact moves
# --------------------------------------------------------------------------------------------------------------


def fp8_to_mx(weight: Bytes, scale: Bytes) -> tuple[Words, Bytes]:
    """weight [o, i], scale [ceil(o/128), ceil(i/128)] -> mxfp8: uint32 [o, i/4], uint8 [o, i/32]."""
    return weight.view(np.uint32), spread(scale, *weight.shape)


def spread(scale: Bytes, rows: int, columns: int) -> Bytes:
    """Block scales [ceil(o/128), ceil(i/128)] repeated for every row and group: [o, i/32]."""
    by_row = np.repeat(scale, FP8_BLOCK, axis=0)[:rows]
    return np.ascontiguousarray(np.repeat(by_row, FP8_BLOCK // GROUP, axis=1)[:, : columns // GROUP])


def fp4_to_mx(weight: Bytes, scale: Bytes) -> tuple[Words, Bytes]:
    """weight [..., o, i/2], scale [..., o, i/32] -> mxfp4: uint32 [..., o, i/8], the same scales.

    Both hold the even column in the low nibble, and MLX reads its words in little-endian order."""
    return weight.view(np.uint32), scale


# --------------------------------------------------------------------------------------------------------------
# Values
# --------------------------------------------------------------------------------------------------------------


def _e4m3(code: int) -> float:
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, code >> 3 & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    value = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return sign * value


E4M3 = np.array([_e4m3(code) for code in range(256)], dtype=np.float32)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)
E8M0 = np.array([2.0 ** (code - 127) for code in range(255)] + [math.nan], dtype=np.float32)


def values(form: Form, parts: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """The matrix in float32, exact for the official and the mx forms. Parts as stored, any leading axes."""
    weight = parts["weight"]
    match form.kind:
        case "fp8":
            decoded: NDArray[np.float32] = E4M3[weight]
            scales = spread(parts["scale"], *weight.shape)
        case "fp4":
            decoded, scales = _nibbles(weight), parts["scale"]
        case "mx":
            codes = np.ascontiguousarray(weight).view(np.uint8)
            decoded, scales = E4M3[codes] if form.bits == 8 else _nibbles(codes), parts["scales"]
        case _:
            raise ValueError(f"values() decodes the official and the mx forms, not {form.name}")
    decoded *= np.repeat(E8M0[scales], GROUP, axis=-1)
    return decoded


def _nibbles(codes: Bytes) -> NDArray[np.float32]:
    """[..., n] bytes -> [..., 2n] values, low nibble first."""
    out = np.empty((*codes.shape[:-1], codes.shape[-1] * 2), dtype=np.float32)
    out[..., 0::2] = E2M1[codes & 15]
    out[..., 1::2] = E2M1[codes >> 4]
    return out
