"""`mx.fast.metal_kernel` calls on Linux: values, launch code, dtypes, strides, and the faults a launch can hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mslrun import KernelFault, MslError
from mslrun.mutate import without_barriers

mx: Any = pytest.importorskip("mlx.core")
from mslrun import mlx_hook

BODY = """
    uint row = threadgroup_position_in_grid.x;
    uint lid = thread_position_in_threadgroup.x;
    threadgroup float part[32];
    float acc = 0.0f;
    const int D = x_shape[1];
    for (int i = lid; i < D; i += N) { float v = float(x[row * D + i]); acc += v * v; }
    acc = simd_sum(acc);
    if (thread_index_in_simdgroup == 0) part[simdgroup_index_in_threadgroup] = acc;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    acc = simd_sum(thread_index_in_simdgroup < N / 32 ? part[thread_index_in_simdgroup] : 0.0f);
    float r = metal::precise::rsqrt(acc / float(D) + eps);
    for (int i = lid; i < D; i += N) y[row * D + i] = T(float(x[row * D + i]) * r * float(w[i]));
"""


def rms_norm(x: Any, w: Any) -> Any:
    kernel = mx.fast.metal_kernel(name="rms", input_names=["x", "w", "eps"], output_names=["y"], source=BODY)
    return kernel(
        inputs=[x, w, 1e-6],
        template=[("T", x.dtype), ("N", 128)],
        grid=(x.shape[0] * 128, 1, 1),
        threadgroup=(128, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
    )[0]


@pytest.mark.parametrize("width", [1, 31, 1000])
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_a_kernel_gives_what_its_formula_says(name: str, width: int) -> None:
    dtype = getattr(mx, name)
    rng = np.random.default_rng(width)
    x = mx.array(rng.standard_normal((3, width)).astype(np.float32)).astype(dtype)
    w = mx.array(rng.standard_normal(width).astype(np.float32)).astype(dtype)
    log: list[dict[str, Any]] = []
    with mlx_hook.emulate(log=log):
        got = np.array(rms_norm(x, w).astype(mx.float32), np.float64)
    xs, ws = (np.array(a.astype(mx.float32), np.float64) for a in (x, w))
    expected = xs / np.sqrt((xs**2).mean(1, keepdims=True) + 1e-6) * ws
    unit = {"float32": 2.0**-23, "float16": 2.0**-11, "bfloat16": 2.0**-8}[name]
    np.testing.assert_allclose(got, expected, rtol=8 * unit, atol=1e-7)
    assert log[0]["grid"] == (384, 1, 1) and log[0]["threadgroup_bytes"] == 128


def test_a_deleted_barrier_of_the_generated_text_is_seen() -> None:
    x, w = mx.ones((2, 300)), mx.ones((300,))
    seen = 0

    def delete(source: str) -> str:
        (mutant,) = without_barriers(source)
        return mutant.text

    with pytest.raises(KernelFault, match=r"race|uninitialised"), mlx_hook.emulate(edit=delete):
        seen += 1
        rms_norm(x, w)
    assert seen == 1


def test_strided_inputs_atomics_and_initial_values() -> None:
    body = """
      uint i = thread_position_in_grid.x; int v = x[i * x_strides[0]];
      atomic_fetch_add_explicit(&h[v], 1, memory_order_relaxed);"""
    x = mx.random.randint(0, 8, (100, 2), key=mx.random.key(3))[:, 1]
    mx.eval(x)
    with mlx_hook.emulate():
        kernel = mx.fast.metal_kernel(
            name="hist", input_names=["x"], output_names=["h"], atomic_outputs=True, ensure_row_contiguous=False,
            source=body,
        )  # fmt: skip
        (h,) = kernel(
            inputs=[x], grid=(100, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(8,)], output_dtypes=[mx.int32],
            init_value=2,
        )  # fmt: skip
    np.testing.assert_array_equal(np.array(h), np.bincount(np.array(x), minlength=8) + 2)


def copy(source: str, x: Any, lint: bool = False) -> Any:
    with mlx_hook.emulate(lint=lint):
        kernel = mx.fast.metal_kernel(name="copy", input_names=["x"], output_names=["y"], source=source)
        return kernel(
            inputs=[x],
            grid=(x.size, 1, 1),
            threadgroup=(8, 1, 1),
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
        )[0]


def test_an_implicit_conversion_to_bfloat_is_refused() -> None:
    source = "uint i = thread_position_in_grid.x; float v = x[i]; y[i] = v * 2.0f;"
    with pytest.raises(MslError, match="implicit conversion to bfloat"):
        copy(source, mx.zeros((8,), mx.bfloat16))
    copy(source.replace("v * 2.0f", "bfloat16_t(v * 2.0f)"), mx.zeros((8,), mx.bfloat16))


def test_lint_finds_a_device_pointer_that_is_constant_for_small_inputs() -> None:
    source = "const device float* p = x; y[thread_position_in_grid.x] = p[thread_position_in_grid.x];"
    copy(source, mx.zeros((8,)), lint=True)
    with pytest.raises(MslError, match="p"):
        copy(source, mx.zeros((7,)), lint=True)


def test_outside_the_context_metal_kernel_is_the_real_one() -> None:
    before = mx.fast.metal_kernel
    with mlx_hook.emulate():
        assert mx.fast.metal_kernel is not before
    assert mx.fast.metal_kernel is before
