"""What the fused backend covers and what it leaves to the next one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import attrs
import pytest

from sparkwright.core.contracts import OpSpec, Site
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.kernels import fused
from sparkwright.plugins.kernels.fused import launcher
from sparkwright.plugins.kernels.fused.launcher import Backend, Launcher
from sparkwright.plugins.kernels.fused.table import TABLE, find


@pytest.mark.parametrize("op", TABLE, ids=lambda op: op.name)
def test_on_the_cpu_every_op_is_left_to_the_next_backend(op: OpSpec) -> None:
    (provider,) = fused.sparkwright_register_kernels()
    backend = provider.build(fused.FusedOptions(), Site(device="cpu"))
    assert isinstance(backend, fused.Fused)
    assert backend.sparkwright_select_kernel(op, "float32", "mxfp4", (64, 64)) is None


@pytest.mark.parametrize(
    ("metal", "backend", "taken"),
    [(False, "metal", False), (True, "metal", True), (False, "cuda", True), (True, "cuda", True)],
)
def test_metal_must_be_asked_for(metal: bool, backend: Backend, taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "here", lambda device: Launcher(backend))
    built = fused.build(fused.FusedOptions(metal=metal), Site(device=backend))
    found = built.sparkwright_select_kernel(ops.SMALL_ROWS_MATMUL, "bfloat16", "mxfp4", (64, 64))
    assert (found is not None) == taken


@pytest.mark.parametrize(
    ("op", "dtype", "format", "widths", "covered"),
    [
        (ops.SMALL_ROWS_MATMUL, "bfloat16", "mxfp4", (4096, 1024), True),
        (ops.SMALL_ROWS_MATMUL, "bfloat16", "affine3", (4096, 1024), False),
        (ops.SMALL_ROWS_MATMUL, "int32", "mxfp4", (4096, 1024), False),
        (ops.GROUPED_EXPERTS, "bfloat16", "affine2/affine4", (4096, 2048, 256), False),
        (ops.GROUPED_EXPERTS, "bfloat16", "affine4/affine8", (4096, 2048, 256), True),
        (ops.PROJECT_ROWS, "bfloat16", "mxfp8+bfloat16", (4096, *[64] * 8), True),
        (ops.PROJECT_ROWS, "bfloat16", "mxfp8+bfloat16", (4096, *[64] * 9), False),
        (ops.ATTEND_ROWS, "bfloat16", "", (64, 512, 64), True),
        (ops.ATTEND_ROWS, "bfloat16", "", (3, 24, 8), True),
        (ops.ATTEND_ROWS, "bfloat16", "", (64, 511, 64), False),
        (ops.ATTEND_ROWS, "bfloat16", "", (64, 2048, 64), False),
        (ops.INDEXER_SELECT, "bfloat16", "", (64, 128, 512), True),
        (ops.INDEXER_SELECT, "bfloat16", "", (64, 120, 512), False),
        (ops.HYPER_MIX, "bfloat16", "", (4, 4096), True),
        (ops.HYPER_MIX, "bfloat16", "", (8, 4096), False),
        (ops.NORM_ROTATE, "bfloat16", "", (512, 64), True),
        (ops.POOL_WINDOWS, "bfloat16", "", (128, 512), True),
        (ops.ROUTE_SCORES, "bfloat16", "", (4096, 256, 6), True),
        (ops.ROUTE_SCORES, "bfloat16", "", (4096, 2048, 6), False),
        (ops.ROUTE_HASH, "bfloat16", "", (4096, 256, 6), False),
    ],
)
def test_a_combination_is_covered_or_declined(
    op: OpSpec, dtype: str, format: str, widths: tuple[int, ...], covered: bool
) -> None:
    assert (find(Launcher("metal"), op, dtype, format, widths) is not None) == covered


@pytest.mark.parametrize(
    ("device", "backend", "op", "dtype", "format", "said"),
    [
        ("cpu", None, ops.HYPER_MIX, "float32", "", "needs CUDA or Metal; this is CPU"),
        ("gpu", "metal", ops.HYPER_MIX, "float32", "", "kernels.fused.metal = true asks for them"),
        ("gpu", "cuda", ops.ROUTE_HASH, "bfloat16", "", "has no kernel for this op"),
        ("gpu", "cuda", ops.SMALL_ROWS_MATMUL, "int32", "mxfp4", "not int32"),
        ("gpu", "cuda", ops.GROUPED_EXPERTS, "bfloat16", "affine2/affine4", "does not read affine2 weights"),
        ("gpu", "cuda", ops.INDEXER_SELECT, "float32", "", "bfloat16 activations on CUDA, not float32"),
        ("gpu", "cuda", ops.ATTEND_ROWS, "bfloat16", "", "does not take widths 64, 511, 64"),
    ],
)
def test_what_is_declined_is_declined_with_a_reason(
    device: str, backend: Backend | None, op: OpSpec, dtype: str, format: str, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if backend is not None:
        monkeypatch.setattr(launcher, "here", lambda device: Launcher(backend))
    built = fused.build(fused.FusedOptions(), Site(device=device))
    question: dict[str, Any] = {"op": op, "dtype": dtype, "format": format, "widths": (64, 511, 64)}
    assert built.sparkwright_select_kernel(**question) is None
    assert said in built.sparkwright_decline_kernel(device=device, **question)


def test_an_op_of_the_same_name_and_another_meaning_is_declined() -> None:
    other = attrs.evolve(ops.SMALL_ROWS_MATMUL, reference="somebody.elses:small_rows_matmul")
    assert find(Launcher("metal"), other, "float32", "mxfp4", (64, 64)) is None


def test_the_plugin_module_imports_no_mlx() -> None:
    code = "import sys, sparkwright.plugins.kernels.fused; assert not [m for m in sys.modules if m.startswith('mlx')]"
    subprocess.run([sys.executable, "-c", code], check=True)
