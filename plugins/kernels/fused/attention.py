"""`attend_rows` on a GPU: window and selected rows gathered inside the kernel, sink, inverse rotary; one dispatch.

A threadgroup has one query row, so a row's bits cannot depend on the others; nor do they depend on how long the lists
of keys are, as long as a key keeps its place in its list (absent keys, -1, are skipped).
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, Plans, Prepared, ceil_div, source
from sparkwright.plugins.kernels.fused.weights import LOWEST, literal

HEADS, BATCH = 2, 2
"""Heads of a threadgroup, which share the keys that it reads; keys that a warp reads at a time."""
WIDEST_HEAD = 1024


def warps_of(width: int) -> int:
    """Warps a row: their partial sums must fit into 32 KiB of threadgroup memory."""
    return 8 if width <= 512 else 4


def attend_rows(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(shape: tuple[int, ...], dtype: mx.Dtype, kept: tuple[mx.Dtype, ...], half: int) -> Prepared:
        """kept: dtypes of the ring, and of the selected rows where there are some. Lengths of lists are read there."""
        r, heads, width = shape
        keys, index, angles = mx.zeros((8, width)), mx.zeros((r, 8), mx.int32), mx.zeros((r, half))
        inputs = {
            "query": mx.zeros(shape, dtype),
            "ring": keys.astype(kept[0]),
            "slots": index,
            "sink": mx.zeros((heads,)),
            "cos": angles,
            "sin": angles,
        }
        defines = f"#define LOWEST {LOWEST}\n#define SCALE {literal(width**-0.5)}\n" + source("attend.h")
        if len(kept) > 1:
            inputs |= {"rows": keys.astype(kept[1]), "select": index}
            defines += "#define SELECTED 1\n"
        warps = warps_of(width)
        sizes = {"H": heads, "D": width, "ROTARY": 2 * half, "HEADS": HEADS, "BATCH": BATCH, "WARPS": warps}
        sizes |= {"LANES": ceil_div(width, WARP), "VECTOR": 8 if width % 256 == 0 else 1}
        return launcher.prepare(
            "attend_rows",
            inputs,
            {"y": (shape, dtype)},
            {"T": dtype, **sizes},
            groups=(ceil_div(heads, HEADS), r),
            threads=WARP * warps,
            defines=defines,
        )

    def run(
        query: mx.array,
        ring: mx.array,
        slots: mx.array,
        rows: mx.array | None,
        select: mx.array | None,
        sink: mx.array,
        cos: mx.array,
        sin: mx.array,
    ) -> mx.array:
        """query [r, H, D], ring [S, D], slots [r, w], rows [span, D], select [r, k], sink [H], cos, sin [r, R / 2]."""
        chosen: tuple[mx.array, ...] = ()
        if rows is not None and select is not None and rows.shape[0] > 0 and select.shape[1] > 0:
            chosen = (rows, select)
        kept = (ring.dtype, *(part.dtype for part in chosen[:1]))
        prepared = plans.get(plan, tuple(query.shape), query.dtype, kept, cos.shape[-1])
        (y,) = prepared(query, ring, slots, sink, cos, sin, *chosen)
        return y

    return run
