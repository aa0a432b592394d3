"""The native runtime (native/*.h, rt.cpp): built once into the cache, loaded by ctypes. Knows no kernel source."""

from __future__ import annotations

import ctypes as C
import functools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mslrun.toolchain import NATIVE, cache_dir, compile_or_raise, digest, host_cxx, scratch

Array = NDArray[Any]
BUFFERS = 32
INPUT, OUTPUT = 1, 2
ORDERS = {"forward": 0, "reverse": 1, "random": 2}
ALLOW = {
    "partial-simd": 2,
    "uninit-threadgroup": 4,
    "unwritten": 8,
    "nonuniform-barrier": 16,
    "same-value-write": 32,
}
CHECKED = 1
THREADGROUP_MEMORY = 32768
LOCK = threading.RLock()  # the runtime has one set of buffers


class Dispatch(C.Structure):
    """`MslDispatch` of native/state.h."""

    _fields_ = [
        ("entry", C.c_void_p),
        ("buf", C.c_void_p * BUFFERS),
        ("tgbuf_bytes", C.c_uint32 * BUFFERS),
        ("grid", C.c_uint32 * 3),
        ("tg", C.c_uint32 * 3),
        ("order", C.c_uint32),
        ("flags", C.c_uint32),
        ("seed", C.c_uint64),
        ("preempt", C.c_uint32),
        ("fuzz", C.c_uint32),
        ("nthreads", C.c_uint32),
        ("tg_limit", C.c_uint32),
        ("timeout_s", C.c_double),
        ("max_steps", C.c_uint64),
        ("n_access", C.c_uint64),
        ("n_switch", C.c_uint64),
        ("tg_bytes", C.c_uint32),
        ("n_reports", C.c_uint32),
        ("aborted", C.c_uint32),
    ]


class Report(C.Structure):
    """`MslReport` of native/state.h."""

    _fields_ = [
        ("kind", C.c_char * 32),
        ("msg", C.c_char * 480),
        ("pc", C.c_uint64),
        ("pc2", C.c_uint64),
        ("count", C.c_uint32),
        ("tgid", C.c_uint32 * 3),
        ("tid", C.c_uint32),
    ]


@functools.cache
def runtime() -> C.CDLL:
    sources = "\0".join(path.read_text() for path in sorted(NATIVE.iterdir()))
    image = cache_dir() / f"rt-{digest(sources, host_cxx())}.so"
    if not image.exists():
        part = scratch(image)
        flags = [
            "-std=c++17",
            "-O2",
            "-g1",
            "-fPIC",
            "-shared",
            "-mf16c",
            "-pthread",
            "-fno-sanitize=undefined",
        ]
        compile_or_raise([*host_cxx(), *flags, NATIVE / "rt.cpp", "-o", part])
        os.replace(part, image)
    lib = C.CDLL(str(image), mode=C.RTLD_GLOBAL)
    lib.msl_buf.restype = C.c_void_p
    lib.msl_buf.argtypes = [C.c_uint, C.c_size_t, C.c_int, C.c_uint, C.c_int, C.c_int, C.c_char_p]
    lib.msl_report.restype = C.POINTER(Report)
    lib.msl_run.argtypes = [C.c_void_p, C.c_uint64, C.c_uint64]
    if lib.msl_init():
        raise RuntimeError(
            "mslrun could not reserve 4 TiB of address space (is RLIMIT_AS set? run `ulimit -v unlimited`)"
        )
    return lib


def view(address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The runtime's memory as an array; valid until the buffer is freed."""
    size = int(np.prod(shape)) * dtype.itemsize
    if size == 0:
        return np.zeros(shape, dtype)
    memory = memoryview((C.c_char * size).from_address(address)).cast("B")
    flat: Array = np.frombuffer(memory, dtype=dtype)
    return flat.reshape(shape)


def image_range(path: Path) -> tuple[int, int]:
    """Where a loaded library lies: code addresses are reported relative to it."""
    low, high = 1 << 64, 0
    with open("/proc/self/maps") as lines:
        for line in lines:
            if str(path) in line:
                a, b = (int(word, 16) for word in line.split()[0].split("-"))
                low, high = min(low, a), max(high, b)
    return low, high
