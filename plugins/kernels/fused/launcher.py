"""Puts a kernel's text together, makes it once for each variant, and launches it. Knows no op.

MLX compiles a custom kernel by its name: everything that changes the text (form, sizes, dtypes) is in the digest that
names it here. A kernel belongs to the function that made it (`mx.fast.metal_kernel`, `mx.fast.cuda_kernel`), so that a
test which puts another function in its place for a while gets its own.

A decode step launches some twenty kernels a layer, and the host's time for that is of the size of the kernels' own. So
what does not change between two calls is prepared once (`Prepared`) and found again by shapes and weights (`Plans`),
and the text, which MLX copies at every call, is kept short.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Literal, TypeAlias, TypeVar

import attrs
import mlx.core as mx

from sparkwright.core.errors import PluginError

Backend: TypeAlias = Literal["metal", "cuda"]
Constant: TypeAlias = int | mx.Dtype
Made = TypeVar("Made")

WARP = 32
TYPES: Mapping[Backend, Mapping[mx.Dtype, str]] = {
    "metal": {mx.float32: "float", mx.bfloat16: "bfloat16_t", mx.float16: "half"},
    "cuda": {mx.float32: "float", mx.bfloat16: "__nv_bfloat16", mx.float16: "__half"},
}


@functools.cache
def source(name: str) -> str:
    """A file of source/, without comments and indentation: MLX looks for attribute names in the text."""
    text = files("sparkwright.plugins.kernels.fused").joinpath("source", name).read_text()
    text = re.sub(r"\s*//.*", "", text)
    return re.sub(r"^\s+|[ \t]+$", "", re.sub(r"\n\s*", "\n", text), flags=re.MULTILINE)


def here(device: str) -> Launcher | None:
    """A launcher for the GPU that MLX has here; None for the CPU device or without a GPU."""
    if device == "cpu":
        return None
    if mx.metal.is_available():
        return Launcher("metal")
    return Launcher("cuda") if mx.cuda.is_available() else None


@attrs.frozen(eq=False)
class Prepared:
    """A kernel with everything that its launches have in common; `fixed` arrays follow those of a call."""

    kernel: Any
    dtypes: list[mx.Dtype]
    fixed: list[mx.array]
    options: dict[str, Any]

    def __call__(self, *arrays: mx.array) -> list[mx.array]:
        if [array.dtype for array in arrays] != self.dtypes:  # its name would stand for another text
            raise PluginError(
                f"kernels 'fused': a kernel made for arrays of {self.dtypes} was given {[a.dtype for a in arrays]}; "
                f"pass the dtypes that the op's reference documents"
            )
        made: list[mx.array] = self.kernel(inputs=[*arrays, *self.fixed], **self.options)
        return made

    def resized(self, shape: tuple[int, ...], groups: tuple[int, int]) -> Prepared:
        """The same text for one output of another shape and another number of threadgroups."""
        threads = self.options["threadgroup"][0]
        grid = (groups[0] * threads, groups[1], 1)
        return attrs.evolve(self, options={**self.options, "output_shapes": [shape], "grid": grid})


@attrs.define(eq=False)
class Launcher:
    """`prepare` makes launches of a body; kernels are made when first asked for.

    tiles: whether products run on matrix units (source/tile.h). By default they do on CUDA, where it was measured.
    """

    backend: Backend
    tiles: bool = attrs.field()
    scale_bytes: dict[Held, tuple[int, int]] = attrs.field(factory=dict, init=False)
    """What weights.scale_bytes has read: the range of scales of a weight."""
    _kernels: dict[Any, Any] = attrs.field(factory=dict, init=False)

    @tiles.default
    def _tiles_by_default(self) -> bool:
        return self.backend == "cuda"

    @property
    def factory(self) -> Callable[..., Any]:
        return mx.fast.metal_kernel if self.backend == "metal" else mx.fast.cuda_kernel

    def prepare(
        self,
        body: str,
        inputs: Mapping[str, mx.array],
        outputs: Mapping[str, tuple[Sequence[int], mx.Dtype]],
        constants: Mapping[str, Constant],
        groups: tuple[int, int],
        threads: int,
        defines: str = "",
        fixed: Mapping[str, mx.array] | None = None,
    ) -> Prepared:
        """body: a file of source/ without its suffix; groups: threadgroups in x and y, of `threads` each.

        inputs: arrays like those of the calls to come, in their order; fixed: those that are the same in all of them.
        constants: compile-time names of the body; defines: text in front of it.
        """
        given = {**inputs, **(fixed or {})}
        parts = [source(f"prelude_{self.backend}.h"), source("matrix.h")]
        if body.startswith("tile_") or body == "indexer_scores":
            parts += [source(f"tiles_{self.backend}.h"), source("tile.h")]
        header = "\n".join([*parts, defines, ""])
        types = TYPES[self.backend]
        known = "".join(
            f"constexpr int {name} = {value};\n" if isinstance(value, int) else f"using {name} = {types[value]};\n"
            for name, value in constants.items()
        )
        text = source(f"prologue_{self.backend}.h") + known + source(f"{body}.h")
        dtypes = [str(array.dtype) for array in given.values()] + [str(dtype) for _, dtype in outputs.values()]
        # Short: the name becomes a file name in MLX's cache.
        digest = hashlib.sha256(repr((list(given), list(outputs), dtypes, header, text)).encode()).hexdigest()[:16]
        key = (self.factory, digest)
        if key not in self._kernels:
            self._kernels[key] = self.factory(
                name=f"sparkwright_{body}_{digest}",
                input_names=list(given),
                output_names=list(outputs),
                header=header,
                source=text,
            )
        options = {
            "output_shapes": [tuple(shape) for shape, _ in outputs.values()],
            "output_dtypes": [dtype for _, dtype in outputs.values()],
            "grid": (groups[0] * threads, groups[1], 1),
            "threadgroup": (threads, 1, 1),
        }
        return Prepared(self._kernels[key], [a.dtype for a in inputs.values()], list((fixed or {}).values()), options)


class Held:
    """An array as a part of a key: the same object is the same weight."""

    __slots__ = ("array",)

    def __init__(self, array: mx.array) -> None:
        self.array = array

    def __hash__(self) -> int:
        return id(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.array is other.array


@attrs.define(eq=False)
class Plans:
    """Prepared launches of one op, found by what they depend on. Weights are held: they are the engine's own."""

    _launcher: Launcher
    _known: dict[Any, Any] = attrs.field(factory=dict, init=False)

    def get(self, make: Callable[..., Made], *key: Hashable) -> Made:
        """make(*key), once."""
        full = (self._launcher.factory, make, *key)
        found: Made | None = self._known.get(full)
        if found is None:
            found = self._known[full] = make(*key)
        return found


def power_of_two(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
