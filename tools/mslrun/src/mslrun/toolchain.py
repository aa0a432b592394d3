"""The compilers: which, with which flags, and a cache of what they made.

Two are needed: clang (18 or newer) for the kernels, from a Debian package or the `ziglang` wheel, and a C++17 host
compiler (g++, or that same clang) for the runtime and for linking. Cached files are written under another name and
renamed into place, so two processes may build the same kernel at the same time: the last rename wins and both are
whole.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from mslrun.errors import MslError, ToolchainError

HERE = Path(__file__).resolve().parent
SHIM = HERE / "shim"
NATIVE = HERE / "native"

# No fma contraction and no excess precision: a kernel means the same in a plain and in a checked run.
COMMON = [
    "-std=gnu++14", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-mf16c", "-mfma",
    "-gline-tables-only", "-ffp-contract=off", "-Xclang", "-ffloat16-excess-precision=none",
    "-Xclang", "-fbfloat16-excess-precision=none", "-ftrivial-auto-var-init=pattern", "-fno-math-errno",
    "-fno-finite-loops", "-fno-sanitize=undefined", "-Wno-unknown-attributes", "-Wno-user-defined-literals",
    "-Wno-reserved-user-defined-literal", "-Wno-unused", "-Wno-gnu-line-marker", "-Wno-duplicate-decl-specifier",
    "-Wno-c++17-extensions", "-Wimplicit-float-conversion",
]  # fmt: skip
CHECKED = [
    "-O1", "-fno-vectorize", "-fno-slp-vectorize", "-fsanitize=thread",
    "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-atomics=0",
    "-mllvm", "-tsan-instrument-read-before-write=1", "-mprefer-vector-width=128",
    "-fsanitize=array-bounds,alignment,integer-divide-by-zero,shift-exponent,return,unreachable",
    "-fsanitize-trap=all",
]  # fmt: skip
PLAIN = ["-O2", "-mavx2", "-fno-sanitize=thread"]

# Every header of Metal's library resolves to an empty file: msl.h stands in front of the kernel anyway.
STUBS = [
    "array", "assert", "atomic", "common", "compute", "config", "geometric", "integer", "limits", "math", "matrix",
    "numeric", "pack", "quadgroup", "relational", "simdgroup", "simdgroup_matrix", "stdlib", "tessellation",
    "type_traits", "types",
]  # fmt: skip


def cache_dir() -> Path:
    """`MSLRUN_CACHE`, else `mslrun` under `XDG_CACHE_HOME` or ~/.cache."""
    chosen = os.environ.get("MSLRUN_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mslrun"


@functools.cache
def clang() -> tuple[str, ...]:
    """The command that compiles C++ with clang; `MSLRUN_CLANG` overrides the search."""
    chosen = os.environ.get("MSLRUN_CLANG")
    if chosen:
        return tuple(chosen.split())
    for name in ["clang++", *(f"clang++-{n}" for n in range(24, 17, -1))]:
        path = shutil.which(name)
        if path and _is_recent(path):
            return (path,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    raise ToolchainError(
        "mslrun found no clang 18 or newer: run `pip install ziglang` (clang in a wheel) or "
        "`apt-get install clang-19` (Debian), or set MSLRUN_CLANG to a clang++ command"
    )


def _is_recent(path: str) -> bool:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+)", text)
    return bool(found) and int(found[1]) >= 18  # type: ignore[index]


@functools.cache
def host_cxx() -> tuple[str, ...]:
    """A C++17 compiler for the runtime and for linking: g++, else the clang of `clang()`."""
    chosen = os.environ.get("MSLRUN_CXX")
    if chosen:
        return tuple(chosen.split())
    path = shutil.which("g++")
    return (path,) if path else clang()


def clang_driver() -> list[str]:
    """clang for other languages than C++: zig's `c++` wrapper refuses them, `zig clang` is the plain driver."""
    command = list(clang())
    return [*command[:-1], "clang"] if "ziglang" in command else command


@functools.cache
def unique_traps() -> tuple[str, ...]:
    """One trap per check, so that a finding keeps its line (the flag's name changed in clang 20)."""
    probe = [*clang(), "-x", "c++", "-c", "-O1", "-fno-sanitize-merge", "-"]
    with tempfile.TemporaryDirectory() as folder:  # zig writes beside it whatever -o says of /dev/null
        done = subprocess.run(probe, input="", capture_output=True, text=True, check=False, cwd=folder)
    return ("-fno-sanitize-merge",) if done.returncode == 0 else ("-mllvm", "-ubsan-unique-traps")


def kernel_flags(checked: bool) -> list[str]:
    # zig compiles for the machine it runs on unless told otherwise; the cache may be shared between machines.
    base = ["-mcpu=x86_64_v3"] if "ziglang" in clang() else ["-march=x86-64-v3"]
    return [*base, *COMMON, *([*CHECKED, *unique_traps()] if checked else PLAIN)]


def compile_or_raise(command: Iterable[str | Path]) -> str:
    """Runs a compiler; returns its warnings, or raises MslError with its errors."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines()
        kept = [line for line in lines if "error" in line or "^" not in line]
        raise MslError(f"compile failed: {' '.join(words)}\n" + "\n".join(kept)[:6000])
    return done.stderr


def digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:24]


_serial = itertools.count()


def scratch(path: Path) -> Path:
    """A name beside `path` that no other process or call uses, to be renamed onto it when whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}.{next(_serial)}")


def write_atomic(path: Path, text: str) -> None:
    part = scratch(path)
    part.write_text(text)
    os.replace(part, path)


@functools.cache
def shim_text() -> str:
    """All shim headers, for cache keys."""
    return "\0".join(path.read_text() for path in sorted(SHIM.rglob("*")) if path.is_file())


@functools.cache
def generated() -> Path:
    """A folder with the headers that are made rather than written: empty `<metal_*>` headers and the swizzles."""
    texts = {f"stubs/metal_{name}": "// empty: msl.h holds it\n" for name in STUBS}
    texts["msl_swizzle.h"] = swizzles()
    folder = cache_dir() / f"include-{digest(sorted(texts.items()))}"
    for name, text in texts.items():
        if not (folder / name).exists():
            write_atomic(folder / name, text)
    return folder


def swizzles() -> str:
    """`MSL_SWZ2..4(T, M)`: every swizzle of two to four letters as a member of vec's union."""
    lines = ["#pragma once"]
    for size in (2, 3, 4):
        members = [
            f"swz<T,M,{','.join(map(str, order))}> {''.join(letters[i] for i in order)};"
            for letters in ("xyzw", "rgba")
            for length in (2, 3, 4)
            for order in itertools.product(range(size), repeat=length)
        ]
        lines.append(f"#define MSL_SWZ{size}(T,M) {' '.join(members)}")
    return "\n".join(lines) + "\n"


def preprocess(
    source: str,
    includes: Iterable[str | Path] = (),
    defines: Mapping[str, object] | None = None,
    metal_version: int = 320,
    filename: str = "kernel.metal",
) -> str:
    """`clang -E` with Metal's macros; `#line` markers kept, address-space keywords still tokens."""
    pp = SHIM / "pp"
    command: list[str | Path] = [
        *clang(), "-E", "-x", "c++", "-std=c++14", "-nostdinc", "-undef", "-D__cplusplus=201402L",
        "-Wno-builtin-macro-redefined", f"-D__METAL_VERSION__={metal_version}", "-DMSLRUN=1",
        "-I", pp, "-I", generated() / "stubs", "-include", pp / "msl_macros.h",
    ]  # fmt: skip
    for include in includes:
        command += ["-I", include]
    command += [f"-D{name}={value}" for name, value in (defines or {}).items()]
    text = f'#line 1 "{filename}"\n{source}'
    done = subprocess.run([*map(str, command), "-"], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MslError("preprocessing failed:\n" + done.stderr)
    return done.stdout


@functools.cache
def _shim_names() -> frozenset[str]:
    return frozenset(path.name for path in SHIM.glob("*.h")) | {"<thunks>", "thunks"}


@functools.cache
def source_line(image: Path, offset: int) -> str:
    """`file:line <- file:line` of a code offset, inlined callers after; "" without a symboliser."""
    tool = shutil.which("addr2line")
    if tool:
        command = [tool, "-i", "-e", str(image), hex(offset)]
    else:
        tool = next(filter(None, map(shutil.which, ["llvm-symbolizer", "llvm-symbolizer-19"])), None)
        if not tool:
            return ""
        command = [tool, "-e", str(image), "--functions=none", "--inlining", hex(offset)]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n")
    places = [re.sub(r" \(discriminator.*", "", line) for line in lines if line and not line.startswith("??")]
    names = [":".join(os.path.basename(place).split(":")[:2]) for place in places]
    own = [name for name in names if name.split(":")[0] not in _shim_names() and not name.endswith(":?")]
    return " <- ".join(own[:2])
