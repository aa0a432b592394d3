"""`mx.fast.metal_kernel` on a machine without Metal.

The real function is still called, under `mx.export_function`'s tracing, which records a CustomKernel without a Metal
back end: MLX itself checks the arguments and generates the text that a Mac would compile. That text, after the same
prelude (`mlx/backend/metal/kernels/utils.h` of the installed wheel), runs on the CPU runner. Written for MLX 0.32.4.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import numpy as np

from mslrun.errors import MslError
from mslrun.library import Library, Out
from mslrun.lint import lint
from mslrun.runtime import Array

PRELUDE = '#include "mlx/backend/metal/kernels/utils.h"\n'

NUMPY: dict[mx.Dtype, Any] = {
    mx.float32: np.float32, mx.float16: np.float16, mx.bfloat16: np.uint16, mx.int8: np.int8, mx.int16: np.int16,
    mx.int32: np.int32, mx.int64: np.int64, mx.uint8: np.uint8, mx.uint16: np.uint16, mx.uint32: np.uint32,
    mx.uint64: np.uint64, mx.bool_: np.bool_, mx.complex64: np.complex64,
}  # fmt: skip


@dataclass
class Launch:
    """What one call would hand to Metal."""

    name: str
    source: str
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    infos: list[tuple[bool, bool, bool]]  # per input: its _shape, _strides, _ndim are arguments too
    ensure_row_contiguous: bool

    @property
    def text(self) -> str:
        return f'{PRELUDE}#line 1 "{self.name}"\n{self.source}'


@dataclass
class Options:
    """How `emulate()` runs: `check=False` is the plain, fast mode; `schedules=False` runs one schedule."""

    check: bool = True
    schedules: bool = True
    lint: bool = False
    allow: tuple[str, ...] = ()
    log: list[dict[str, Any]] | None = None
    edit: Callable[[str], str] | None = None
    libraries: dict[tuple[str, str], Library] = field(default_factory=dict)
    linted: set[tuple[str, str]] = field(default_factory=set)


_real = mx.fast.metal_kernel
_options = Options()


def include_dir() -> Path:
    """The headers of the installed MLX wheel."""
    for file in importlib.metadata.files("mlx") or []:
        if file.name == "utils.h" and file.parent.as_posix().endswith("backend/metal/kernels"):
            return Path(str(file.locate())).resolve().parents[4]
    beside = Path(mx.__file__).resolve().parent / "include"
    if (beside / "mlx/backend/metal/kernels/utils.h").exists():
        return beside
    raise MslError(
        "the installed mlx has no header mlx/backend/metal/kernels/utils.h: reinstall mlx 0.32 or newer"
    )


def to_numpy(array: mx.array) -> Array:
    """bfloat16 as its bits (numpy has no such type)."""
    return np.array(array.view(mx.uint16)) if array.dtype == mx.bfloat16 else np.array(array)


def from_numpy(array: Array, dtype: mx.Dtype) -> mx.array:
    return mx.array(array).view(mx.bfloat16) if dtype == mx.bfloat16 else mx.array(array)


def capture(kernel: Any, inputs: Sequence[mx.array], **call: Any) -> Launch:
    """The launch that MLX records for `kernel(inputs=inputs, **call)`."""
    found: list[Any] = []

    def keep(event: dict[str, Any]) -> None:
        if event.get("type") == "primitive" and event.get("name") == "CustomKernel":
            found.append(event["arguments"])

    mx.export_function(keep, lambda *arrays: kernel(inputs=list(arrays), **call), *inputs)
    if not found:
        raise MslError("MLX recorded no kernel launch: this runner was written for MLX 0.32.4")
    a = found[0]
    infos = [(bool(s), bool(t), bool(n)) for s, t, n in a[8]]
    return Launch(a[0], a[1], (a[2], a[3], a[4]), (a[5], a[6], a[7]), infos, bool(a[9]))


class Kernel:
    """Takes the place of the object that `mx.fast.metal_kernel` returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.real = _real(*args, **kwargs)

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        template: Any = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        del stream
        arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
        mx.eval(arrays)
        launch = capture(
            self.real, arrays, output_shapes=output_shapes, output_dtypes=output_dtypes, grid=grid,
            threadgroup=threadgroup, template=template, init_value=init_value, verbose=verbose,
        )  # fmt: skip
        if _options.edit:
            launch = replace(launch, source=_options.edit(launch.source))
        library = library_of(launch)
        buffers: list[Any] = []
        for array, (shape, strides, ndim) in zip(arrays, launch.infos, strict=True):
            raw, steps = _as_laid_out(array, launch.ensure_row_contiguous)
            buffers.append(raw)
            if array.ndim and shape:
                buffers.append(np.array(array.shape, np.int32))
            if array.ndim and strides:
                buffers.append(np.array(steps, np.int64))
            if array.ndim and ndim:
                buffers.append(np.array(array.ndim, np.int32))
        for size, dtype in zip(output_shapes, output_dtypes, strict=True):
            init = None if init_value is None else to_numpy(mx.full(tuple(size), init_value, dtype))
            buffers.append(Out(tuple(size), NUMPY[dtype], init))
        group = tuple(min(t, g) for t, g in zip(launch.threadgroup, launch.grid, strict=True))
        host = library.kernels[-1].host
        run: dict[str, Any] = {"grid": launch.grid, "threadgroup": group, "allow": _options.allow}
        if _options.check and _options.schedules:
            result = library.check(host, buffers, **run)
        else:
            result = library.run(host, buffers, check=_options.check, **run)
        if _options.log is not None:
            _options.log.append(
                {"name": launch.name, "grid": launch.grid, "threadgroup": group, **result.stats}
            )
        return [from_numpy(o, d) for o, d in zip(result.outputs, output_dtypes, strict=True)]


def library_of(launch: Launch) -> Library:
    """The compiled text of a launch; with `emulate(lint=True)` it must be free of lint messages first."""
    key = (launch.name, launch.source)
    if _options.lint and key not in _options.linted:
        messages = lint(launch.text, includes=[include_dir()], filename=launch.name)
        if messages:
            raise MslError("\n".join(messages))
        _options.linted.add(key)
    if key not in _options.libraries:
        _options.libraries[key] = Library(launch.text, includes=[include_dir()], filename=launch.name)
    return _options.libraries[key]


def _as_laid_out(array: mx.array, contiguous: bool) -> tuple[Array, list[int]]:
    """The array's memory as a kernel sees it, and its strides in elements."""
    if contiguous:
        strides = [int(np.prod(array.shape[i + 1 :])) for i in range(array.ndim)]
        return np.ascontiguousarray(to_numpy(array)).reshape(array.shape), strides
    strides = [step // array.itemsize for step in (memoryview(cast(Any, array)).strides or ())]
    if any(step < 0 for step in strides):
        raise NotImplementedError("mslrun: an input with negative strides; pass mx.contiguous(x)")
    span = 1 + sum((n - 1) * step for n, step in zip(array.shape, strides, strict=True)) if array.size else 0
    raw = np.zeros(span, NUMPY[array.dtype])
    steps = [step * array.itemsize for step in strides]
    np.lib.stride_tricks.as_strided(raw, array.shape, steps)[...] = to_numpy(array)
    return raw, strides


@contextlib.contextmanager
def emulate(
    check: bool = True,
    schedules: bool = True,
    lint: bool = False,
    allow: tuple[str, ...] = (),
    log: list[dict[str, Any]] | None = None,
    edit: Callable[[str], str] | None = None,
) -> Iterator[None]:
    """Every `mx.fast.metal_kernel` made inside runs on the CPU runner.

    `edit` changes the generated text before it is compiled (to plant a fault), `log` collects one record a launch.
    `mx.compile` is off inside: a traced graph has no values to run a kernel on.
    """
    global _options
    before = _options
    _options = Options(check, schedules, lint, allow, log, edit, before.libraries, before.linted)
    mx.fast.metal_kernel = Kernel
    mx.disable_compile()
    try:
        yield
    finally:
        mx.fast.metal_kernel = _real
        _options = before
        mx.enable_compile()
