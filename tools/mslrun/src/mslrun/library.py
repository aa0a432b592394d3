"""`Library(source)`: compile MSL once, run its kernels on numpy arrays, plain or checked."""

from __future__ import annotations

import ctypes as C
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mslrun.errors import Finding, KernelFault, MslError
from mslrun.runtime import (
    ALLOW,
    BUFFERS,
    CHECKED,
    INPUT,
    LOCK,
    ORDERS,
    OUTPUT,
    THREADGROUP_MEMORY,
    Array,
    Dispatch,
    Report,
    image_range,
    runtime,
    view,
)
from mslrun.thunks import Kernel
from mslrun.toolchain import (
    SHIM,
    cache_dir,
    clang,
    compile_or_raise,
    digest,
    generated,
    host_cxx,
    kernel_flags,
    preprocess,
    scratch,
    shim_text,
    source_line,
    write_atomic,
)
from mslrun.translate import Constants, translate


@dataclass
class Out:
    """An output: allocated poisoned, every element must be written; `init` fills it instead."""

    shape: tuple[int, ...]
    dtype: Any
    init: Any = None


@dataclass
class InOut:
    """A buffer that the kernel reads and writes; returned with the outputs."""

    array: Any


@dataclass
class Result:
    """Outputs (and InOuts) in buffer order, findings if they were not to raise, counts of the run."""

    outputs: list[Array]
    findings: list[Finding]
    stats: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Image:
    lib: C.CDLL
    entry: int
    low: int
    high: int
    path: Path


def as_array(value: Any) -> Array:
    """A scalar, bytes, ctypes structure or array as the bytes a kernel is handed."""
    if isinstance(value, (bytes, bytearray, C.Structure)):
        return np.frombuffer(bytes(value), np.uint8)
    if isinstance(value, bool):
        return np.array(value, np.bool_)
    if isinstance(value, int):
        return np.array(value, np.int32)
    if isinstance(value, float):
        return np.array(value, np.float32)
    return np.ascontiguousarray(np.asarray(value))


class Library:
    """The kernels of one MSL source. Compiled kernels are cached by text, flags and compiler (`cache_dir`)."""

    def __init__(
        self,
        source: str,
        includes: Iterable[str | Path] = (),
        defines: Mapping[str, object] | None = None,
        function_constants: Constants | None = None,
        filename: str = "kernel.metal",
        metal_version: int = 320,
        extra: Sequence[str] = (),
    ) -> None:
        self.filename = filename
        self.preprocessed = preprocess(source, includes, defines, metal_version, filename)
        self.translation = translate(self.preprocessed, function_constants)
        self.kernels = self.translation.kernels
        self.warnings = self.translation.warnings
        self._by_name = {kernel.host: kernel for kernel in self.kernels}
        self._extra = list(extra)
        self._images: dict[tuple[str, bool], _Image] = {}

    def kernel(self, host: str) -> Kernel:
        if host not in self._by_name:
            raise MslError(
                f"no kernel '{host}' in {self.filename}; it has: {', '.join(self._by_name) or 'none'}"
            )
        return self._by_name[host]

    def build(self, host: str, checked: bool) -> _Image:
        """The loaded machine code of one kernel."""
        self.kernel(host)
        key = (host, checked)
        if key not in self._images:
            text = self.translation.only(host)
            flags = [*kernel_flags(checked), *self._extra]
            path = cache_dir() / f"k-{digest(text, shim_text(), flags, clang(), host_cxx())}.so"
            if not path.exists():
                self._compile(text, flags, path)
            runtime()  # its symbols first
            lib = C.CDLL(str(path))
            entry = C.cast(lib.msl_entry, C.c_void_p).value
            assert entry is not None
            self._images[key] = _Image(lib, entry, *image_range(path), path)
        return self._images[key]

    def _compile(self, text: str, flags: Sequence[str], path: Path) -> None:
        source, obj, part = path.with_suffix(".cpp"), scratch(path.with_suffix(".o")), scratch(path)
        write_atomic(source, text)  # kept beside the result, for a debugger
        try:
            includes = ["-I", str(SHIM), "-I", str(generated())]
            said = compile_or_raise([*clang(), *flags, *includes, "-x", "c++", "-c", source, "-o", obj])
            # MSL converts neither float nor half to bfloat implicitly; clang's __bf16 does, with a warning.
            pattern = r"to '(\w+' \(aka ')?(__bf16|bfloat)"
            lines = [x for x in said.splitlines() if "implicit conversion" in x and re.search(pattern, x)]
            if lines:
                raise MslError("implicit conversion to bfloat is an error in MSL:\n" + "\n".join(lines))
            compile_or_raise([*host_cxx(), "-shared", "-x", "none", obj, "-o", part])
            os.replace(part, path)
        finally:
            obj.unlink(missing_ok=True)
            part.unlink(missing_ok=True)

    def run(
        self,
        kernel: str,
        buffers: Sequence[Any] | Mapping[int | str, Any],
        *,
        threadgroup: Sequence[int],
        grid: Sequence[int] | None = None,
        threadgroups: Sequence[int] | None = None,
        tgmem: Mapping[int, int] | None = None,
        check: bool = True,
        order: str = "forward",
        seed: int = 0,
        preempt: int = 0,
        fuzz: int = 0,
        threads: int | None = None,
        allow: Iterable[str] = (),
        align_end: bool | None = None,
        raise_on_finding: bool = True,
        max_steps: int = 2_000_000_000,
        timeout: float = 60.0,
        poison: int = 0xFF,
    ) -> Result:
        """One dispatch. `grid` is in threads, `threadgroups` in groups; give one of them.

        `order`, `seed` and `preempt` (mean number of memory accesses between forced yields) choose the schedule,
        `fuzz` varies the order of SIMD reductions, `allow` switches single checks off, `align_end` puts buffers
        against their guard page (the default of plain runs, which have no other bounds check).
        """
        what = self.kernel(kernel)
        grid3, group3 = self._shape(what, grid, threadgroups, threadgroup)
        image = self.build(kernel, check)
        with LOCK:
            rt = runtime()
            d = Dispatch()
            d.entry = image.entry
            at_end = not check if align_end is None else align_end
            placed: list[int] = []
            outs: list[tuple[int, int, tuple[int, ...], np.dtype[Any]]] = []
            try:
                self._place(rt, d, what, buffers, at_end, poison, placed, outs)
                for i, size in (tgmem or {}).items():
                    d.tgbuf_bytes[i] = size
                for axis in range(3):
                    d.grid[axis], d.tg[axis] = grid3[axis], group3[axis]
                d.order = ORDERS[order]
                d.flags = (CHECKED if check else 0) | sum(ALLOW[name] for name in allow)
                d.seed, d.preempt, d.fuzz = seed, preempt, fuzz
                d.tg_limit, d.timeout_s, d.max_steps = THREADGROUP_MEMORY, timeout, max_steps
                d.nthreads = threads or (1 if check else os.cpu_count() or 1)
                began = time.perf_counter()
                rt.msl_run(C.addressof(d), image.low, image.high)
                seconds = time.perf_counter() - began
                findings = [_finding(rt.msl_report(i).contents, image) for i in range(d.n_reports)]
                outputs = [np.array(view(p, shape, dtype)) for _, p, shape, dtype in sorted(outs)]
            finally:
                for i in placed:
                    rt.msl_buf_free(i)
        if findings and raise_on_finding:
            raise KernelFault(findings)
        stats = {
            "seconds": seconds,
            "accesses": d.n_access,
            "switches": d.n_switch,
            "threadgroup_bytes": d.tg_bytes,
            "aborted": bool(d.aborted),
        }
        return Result(outputs, findings, stats)

    def check(
        self,
        kernel: str,
        buffers: Sequence[Any] | Mapping[int | str, Any],
        *,
        seeds: Sequence[int] = (0, 1),
        preempt: int = 64,
        **options: Any,
    ) -> Result:
        """Checked runs in six schedules, whose outputs must be equal bit for bit; the forward one is returned."""
        first = self.run(kernel, buffers, order="forward", **options)
        schedules = [("reverse", 0, 0), *(("random", s + 1, p) for s in seeds for p in (0, preempt))]
        for order, seed, pre in schedules:
            again = self.run(kernel, buffers, order=order, seed=seed, preempt=pre, **options)
            for i, (a, b) in enumerate(zip(first.outputs, again.outputs, strict=True)):
                x, y = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
                if not np.array_equal(x, y):
                    bad = np.nonzero(x != y)[0]
                    text = (
                        f"output {i} differs between schedule forward and {order} (seed {seed}, preempt {pre}): "
                        f"{len(bad)} bytes, first in element {bad[0] // a.dtype.itemsize}"
                    )
                    raise KernelFault([Finding("order-dependence", text)])
        return first

    def _shape(
        self,
        what: Kernel,
        grid: Sequence[int] | None,
        threadgroups: Sequence[int] | None,
        threadgroup: Sequence[int],
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        group = tuple(map(int, threadgroup)) + (1,) * (3 - len(threadgroup))
        if threadgroups is not None:
            counts = tuple(threadgroups) + (1,) * (3 - len(threadgroups))
            grid = [a * b for a, b in zip(counts, group, strict=True)]
        if grid is None:
            raise ValueError("Library.run: give grid (threads) or threadgroups")
        whole = tuple(map(int, grid)) + (1,) * (3 - len(grid))
        limit = min(what.max_threads or 1024, 1024)
        size = int(np.prod(group))
        if size > limit:
            raise KernelFault([Finding("threadgroup-size", f"{size} threads per threadgroup exceed {limit}")])
        if min(whole) < 1 or min(group) < 1:
            raise KernelFault([Finding("grid", f"empty dispatch: grid {whole}, threadgroup {group}")])
        return whole, group

    def _place(
        self,
        rt: C.CDLL,
        d: Dispatch,
        what: Kernel,
        buffers: Sequence[Any] | Mapping[int | str, Any],
        at_end: bool,
        poison: int,
        placed: list[int],
        outs: list[tuple[int, int, tuple[int, ...], np.dtype[Any]]],
    ) -> None:
        """Copies every buffer into its own slot of the runtime's address range."""
        parameters = {p.index: p for p in what.parameters if p.kind == "buffer"}
        by_name = {p.name: p.index for p in parameters.values()}
        pairs = buffers.items() if isinstance(buffers, Mapping) else enumerate(buffers)
        given: dict[int, Any] = {}
        for name, value in pairs:
            index = by_name.get(name) if isinstance(name, str) else name
            if index is None or not 0 <= index < BUFFERS:
                raise KernelFault(
                    [Finding("arguments", f"the kernel has no buffer '{name}' ({sorted(by_name)})")]
                )
            given[index] = value
        for i, value in given.items():
            if value is None:  # deliberately unbound: a null pointer
                continue
            name = parameters[i].name if i in parameters else f"buffer {i}"
            array: Array | None = None
            shape: tuple[int, ...]
            kind, fresh = INPUT, False
            if isinstance(value, Out):
                dtype, shape = np.dtype(value.dtype), tuple(value.shape)
                kind, fresh = OUTPUT, value.init is None
            else:
                array = as_array(value.array if isinstance(value, InOut) else value)
                dtype, shape = array.dtype, array.shape
                kind = OUTPUT if isinstance(value, InOut) else INPUT
            size = int(np.prod(shape)) * dtype.itemsize
            grain = 1 if kind == INPUT else min(dtype.itemsize, 4)
            address = rt.msl_buf(i, size, kind, grain, not fresh, int(at_end), name.encode())
            if not address:
                raise MemoryError(f"mslrun could not map {size} bytes for buffer '{name}'")
            placed.append(i)
            d.buf[i] = address
            if array is not None:
                C.memmove(address, array.ctypes.data, array.nbytes)
            elif fresh:
                C.memset(address, poison, size)
            else:
                view(address, shape, dtype)[...] = np.array(value.init).astype(dtype)
            if kind == OUTPUT:
                outs.append((i, address, shape, dtype))
        for i, parameter in parameters.items():
            if i not in given and not parameter.absent:
                text = f"no buffer for parameter '{parameter.name}' (index {i})"
                raise KernelFault([Finding("arguments", text)])


def _finding(report: Report, image: _Image) -> Finding:
    def place(pc: int) -> str:
        return source_line(image.path, pc - image.low) if image.low <= pc < image.high else ""

    kind, msg = report.kind.decode(), report.msg.decode(errors="replace")
    return Finding(
        kind, msg, place(report.pc), place(report.pc2), report.count, tuple(report.tgid), report.tid
    )
