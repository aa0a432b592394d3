"""`attend_rows` on a GPU: window and selected rows gathered inside the kernel, sink, inverse rotary; one dispatch.

A threadgroup has one query row, so a row's bits cannot depend on the others; nor do they depend on how long the lists
of keys are, as long as a key keeps its place in its list (absent keys, -1, are skipped).
"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, ceil_div
from sparkwright.plugins.kernels.fused.weights import LOWEST, literal

HEADS = 2
WIDEST_HEAD = 1024


def warps_of(width: int) -> int:
    """Warps a row: their partial sums must fit into 32 KiB of threadgroup memory."""
    return 8 if width <= 512 else 4


def attend_rows(launcher: Launcher) -> Op:
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
        r, heads, width = query.shape
        rotary = 2 * cos.shape[-1]
        inputs = {"query": query, "ring": ring, "slots": slots, "sink": sink, "cos": cos, "sin": sin}
        defines = f"#define LOWEST {LOWEST}\n#define SCALE {literal(width**-0.5)}\n"
        selected = rows is not None and select is not None and rows.shape[0] > 0 and select.shape[1] > 0
        if selected:
            assert rows is not None and select is not None
            inputs |= {"rows": rows, "select": select}
            defines += "#define SELECTED 1\n"
        warps = warps_of(width)
        sizes = {"H": heads, "D": width, "ROTARY": rotary, "HEADS": HEADS, "WARPS": warps}
        (y,) = launcher.launch(
            "attend_rows",
            inputs,
            {"y": (query.shape, query.dtype)},
            {"T": query.dtype, **sizes, "LANES": ceil_div(width, WARP)},
            groups=(ceil_div(heads, HEADS), r),
            threads=WARP * warps,
            defines=defines,
            variant="selected" if selected else "window",
        )
        return y

    return run
