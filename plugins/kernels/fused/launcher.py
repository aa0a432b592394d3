"""Puts a kernel's text together, makes it once for each variant, and launches it. Knows no op.

MLX compiles a custom kernel by its name: everything that changes the text (form, sizes, dtypes) is in the digest that
names it here. A kernel belongs to the function that made it (`mx.fast.metal_kernel`, `mx.fast.cuda_kernel`), so that a
test which puts another function in its place for a while gets its own.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import attrs
import mlx.core as mx

Backend: TypeAlias = Literal["metal", "cuda"]
Constant: TypeAlias = int | mx.Dtype

WARP = 32


@functools.cache
def source(name: str) -> str:
    """A file of source/, without its comment lines: MLX looks for attribute names in the text."""
    text = files("sparkwright.plugins.kernels.fused").joinpath("source", name).read_text()
    return re.sub(r"^\s*//.*\n", "", text, flags=re.MULTILINE)


def here(device: str) -> Launcher | None:
    """A launcher for the GPU that MLX has here; None for the CPU device or without a GPU."""
    if device == "cpu":
        return None
    if mx.metal.is_available():
        return Launcher("metal")
    return Launcher("cuda") if mx.cuda.is_available() else None


@attrs.define(eq=False)
class Launcher:
    """`launch` runs a body; kernels are made when first asked for.

    tiles: whether products run on matrix units (source/tile.h). By default they do on CUDA, where it was measured.
    """

    backend: Backend
    tiles: bool = attrs.field()
    _kernels: dict[Any, Any] = attrs.field(factory=dict, init=False)

    @tiles.default
    def _tiles_by_default(self) -> bool:
        return self.backend == "cuda"

    def launch(
        self,
        body: str,
        inputs: Mapping[str, mx.array],
        outputs: Mapping[str, tuple[Sequence[int], mx.Dtype]],
        constants: Mapping[str, Constant],
        groups: tuple[int, int],
        threads: int,
        defines: str = "",
        variant: str = "",
    ) -> list[mx.array]:
        """body: a file of source/ without its suffix; groups: threadgroups in x and y, of `threads` each.

        constants: compile-time names of the body; defines: text in front of it, which `variant` must tell from others.
        """
        factory = mx.fast.metal_kernel if self.backend == "metal" else mx.fast.cuda_kernel
        dtypes = tuple(array.dtype for array in inputs.values())
        key = (factory, body, variant, dtypes, tuple(constants.items()))
        if key not in self._kernels:
            parts = [source(f"prelude_{self.backend}.h"), source("matrix.h")]
            if body.startswith("tile_") or body == "indexer_scores":
                parts.append(source("tile.h"))
            header = "\n".join([*parts, defines, ""])
            text = source(f"prologue_{self.backend}.h") + source(f"{body}.h")
            # Short: the name becomes a file name in MLX's cache.
            digest = hashlib.sha256(repr((key[1:], header, text)).encode()).hexdigest()[:16]
            self._kernels[key] = factory(
                name=f"sparkwright_{body}_{digest}",
                input_names=list(inputs),
                output_names=list(outputs),
                header=header,
                source=text,
            )
        made: list[mx.array] = self._kernels[key](
            inputs=list(inputs.values()),
            output_shapes=[tuple(shape) for shape, _ in outputs.values()],
            output_dtypes=[dtype for _, dtype in outputs.values()],
            template=list(constants.items()),
            grid=(groups[0] * threads, groups[1], 1),
            threadgroup=(threads, 1, 1),
        )
        return made


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
