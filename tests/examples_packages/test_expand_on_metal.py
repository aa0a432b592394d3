"""The Metal text of the example kernel, run on a CPU: right, without races or stray accesses, rows independent."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import mlx.core as mx
import pytest
from tests.examples_packages.packages import module

from sparkwright.core.contracts import OpSpec
from sparkwright.core.kernels import reference

mlx_hook = pytest.importorskip("mslrun.mlx_hook")
pytestmark = pytest.mark.kernels


@pytest.fixture(scope="module")
def expand() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sparkwright_expand", module("expand"))
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def arguments(rows: int, streams: int, width: int, dtype: mx.Dtype) -> list[mx.array]:
    keys = mx.random.split(mx.random.key(rows), 4)
    shapes = [(rows, width), (rows, streams, width), (rows, streams), (rows, streams, streams)]
    types = [dtype, dtype, mx.float32, mx.float32]
    return [mx.random.normal(s, key=k).astype(t) for s, k, t in zip(shapes, keys, types, strict=True)]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16, mx.float16])
@pytest.mark.parametrize("width", [8, 300])  # a part of a group of threads; more than one group
def test_the_metal_text_means_what_the_reference_means(expand: ModuleType, dtype: mx.Dtype, width: int) -> None:
    meaning = reference(OpSpec("hyper_expand", expand.MEANING, ""))
    tolerance = 1e-5 if dtype == mx.float32 else 2e-2
    with mlx_hook.emulate(lint=True):
        run = expand.on_gpu("metal")
        for rows in (1, 3, 8):
            given = arguments(rows, 4, width, dtype)
            got, wanted = run(*given), meaning(*given)
            assert got.dtype == dtype and got.shape == wanted.shape
            assert mx.allclose(got, wanted, rtol=tolerance, atol=tolerance)
            alone = run(*(a[-1:] for a in given))
            assert mx.array_equal(alone[0], got[-1])


def test_the_runner_sees_a_fault_in_it(expand: ModuleType) -> None:
    def over_the_edge(text: str) -> str:
        assert "channel < D" in text
        return text.replace("channel < D", "channel <= D")

    with mlx_hook.emulate(edit=over_the_edge), pytest.raises(Exception, match=r"(?i)(bounds|race)"):
        mx.eval(expand.on_gpu("metal")(*arguments(2, 4, 300, mx.float32)))
