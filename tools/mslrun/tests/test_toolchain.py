"""Which compiler is taken, what is said when there is none, and a cache that two processes may fill at once."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mslrun
from mslrun import ToolchainError, toolchain

PROGRAM = """
import numpy as np
from mslrun import Library, Out
source = '''#include <metal_stdlib>
[[kernel]] void twice(const device int* x, device int* y, uint i [[thread_position_in_grid]]) { y[i] = 2 * x[i]; }'''
got = Library(source).check("twice", [np.arange(64, dtype=np.int32), Out((64,), np.int32)], grid=(64,), threadgroup=(32,))
assert (got.outputs[0] == 2 * np.arange(64)).all()
print("right")
"""


@pytest.fixture
def fresh_search(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.delenv("MSLRUN_CLANG", raising=False)
    toolchain.clang.cache_clear()
    yield monkeypatch
    toolchain.clang.cache_clear()


def test_without_a_compiler_the_error_names_both_ways_to_get_one(fresh_search: pytest.MonkeyPatch) -> None:
    fresh_search.setattr(shutil, "which", lambda name: None)
    fresh_search.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError, match=r"pip install ziglang.*apt-get install clang-19"):
        toolchain.clang()


def test_a_clang_that_is_too_old_is_passed_over(fresh_search: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / "clang++"
    old.write_text("#!/bin/sh\necho 'Debian clang version 14.0.6'\n")
    old.chmod(0o755)
    fresh_search.setenv("PATH", str(tmp_path))
    fresh_search.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ToolchainError):
        toolchain.clang()
    old.write_text("#!/bin/sh\necho 'Debian clang version 19.1.7'\n")
    toolchain.clang.cache_clear()
    assert toolchain.clang() == (str(old),)


def start(cache: Path, **environment: str) -> subprocess.Popen[str]:
    source = str(Path(mslrun.__file__).parents[1])
    env = {**os.environ, "MSLRUN_CACHE": str(cache), "PYTHONPATH": source, **environment}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_two_processes_may_build_the_same_kernel_at_the_same_time(tmp_path: Path) -> None:
    running = [start(tmp_path) for _ in range(2)]
    said = [process.communicate() for process in running]
    assert [out.strip() for out, _ in said] == ["right"] * 2, said
    names = [path.name for path in tmp_path.iterdir()]
    assert not [name for name in names if name.startswith(".")], "half-written files were left"
    assert sum(name.startswith("rt-") for name in names) == 1


@pytest.mark.slow
def test_clang_alone_builds_the_runtime_too(tmp_path: Path) -> None:
    process = start(tmp_path, MSLRUN_CXX=" ".join(toolchain.clang()))
    out, err = process.communicate()
    assert out.strip() == "right", err


def test_a_compile_error_leaves_no_file_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSLRUN_CACHE", str(tmp_path))
    toolchain.generated.cache_clear()
    try:
        library = mslrun.Library("[[kernel]] void k(device int* y [[buffer(0)]]) { y[0] = oops; }")
        with pytest.raises(mslrun.MslError):
            library.build("k", checked=True)
    finally:
        toolchain.generated.cache_clear()
    assert not [p for p in tmp_path.iterdir() if p.suffix in (".so", ".o") or p.name.startswith(".")]
