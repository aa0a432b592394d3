"""SIMD and quad functions, swizzles, conversions and 8x8 matrices against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mslrun import InOut, KernelFault, Library, MslError, Out

HEAD = "#include <metal_stdlib>\n#include <metal_simdgroup_matrix>\nusing namespace metal;\n"
I = np.arange(32)
V = (I * I % 37).astype(np.float32)


def bfloat(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to nearest even at bit 16."""
    bits = x.view(np.uint32).astype(np.uint64)
    kept = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return kept.astype(np.uint32).view(np.float32)


Q = np.stack([2 + 0 * V, 3 + 0 * V, 4 + 0 * V, 6 + 0 * V], 1)  # q.xy = q.zw; q.zw *= 2 on (v, 1, 2, 3)
THIRD = V * np.float32(0.3)
CASES = {
    "simd_sum(v)": np.full(32, V.sum()),
    "simd_max(v)": np.full(32, V.max()),
    "simd_min(v)": np.full(32, V.min()),
    "simd_prefix_inclusive_sum(v)": np.cumsum(V),
    "simd_prefix_exclusive_sum(v)": np.cumsum(V) - V,
    "simd_shuffle_down(v, 3)": np.where(I + 3 < 32, V[(I + 3) % 32], V),
    "simd_shuffle_up(v, 3)": np.where(I >= 3, V[I - 3], V),
    "simd_shuffle_xor(v, 5)": V[I ^ 5],
    "simd_shuffle_rotate_down(v, 7)": V[(I + 7) % 32],
    "simd_shuffle_rotate_up(v, 7)": V[(I - 7) % 32],
    "simd_broadcast(v, 9)": np.full(32, V[9]),
    "simd_shuffle(v, (i * 3) & 31)": V[(I * 3) & 31],
    "simd_shuffle_and_fill_up(v, -1.0f, 2)": np.where(I >= 2, V[I - 2], -1),
    "simd_shuffle_and_fill_down(v, -1.0f, 2)": np.where(I + 2 < 32, V[(I + 2) % 32], -1),
    "quad_sum(v)": V.reshape(8, 4).sum(1).repeat(4),
    "quad_shuffle_xor(v, 1)": V[I ^ 1],
    "simd_broadcast_first(v)": np.full(32, V[0]),
    "float(simd_any(i == 3)) + 2 * float(simd_all(i < 31))": np.full(32, 1.0),
    "dot(q, q.wzyx)": (Q * Q[:, ::-1]).sum(1),
    "length(q.xyz)": np.sqrt((Q[:, :3] ** 2).sum(1)),
    "float(as_type<ushort>(half(v)))": V.astype(np.float16).view(np.uint16).astype(np.float32),
    "float(popcount(i))": np.array([int(a).bit_count() for a in I]),
    "float(clz(i + 1))": np.array([32 - int(a + 1).bit_length() for a in I]),
    "fract(v * 0.3f)": THIRD - np.floor(THIRD),
    "clamp(v, 3.0f, 9.0f)": np.clip(V, 3, 9),
    "select(1.0f, 2.0f, v > 5)": np.where(V > 5, 2, 1),
    "mix(1.0f, v, 0.25f)": 1 + (V - 1) * 0.25,
    "metal::precise::exp(-v)": np.exp(-V),
    "float(bfloat(v * 1.001f))": bfloat(V * np.float32(1.001)),
    "float(static_cast<half>(static_cast<bfloat>(v * 0.37f)))": bfloat(V * np.float32(0.37)).astype(
        np.float16
    ),
    "float(uint(ulong(simd_ballot((i & 3) == 1))) == 0x22222222u)": np.ones(32),
}


def test_functions_agree_with_numpy() -> None:
    lines = [f"y[{n} * 32 + i] = ({expression});" for n, expression in enumerate(CASES)]
    source = f"""{HEAD}
[[kernel]] void f(device float* y [[buffer(0)]], uint i [[thread_index_in_simdgroup]]) {{
  float v = float(i * i % 37);
  float4 q = float4(v, 1, 2, 3); q.xy = q.zw; q.zw *= 2.0f;
  {" ".join(lines)}
}}"""
    out = (
        Library(source)
        .check("f", [Out((len(CASES), 32), np.float32)], grid=(32,), threadgroup=(32,))
        .outputs[0]
    )
    wrong = [
        expression
        for (expression, expected), got in zip(CASES.items(), out, strict=True)
        if not np.allclose(got, expected, rtol=1e-6, atol=1e-30)
    ]
    assert wrong == []


def test_simdgroup_matrices_multiply() -> None:
    source = f"""{HEAD}
[[kernel]] void mm(const device half* A [[buffer(0)]], const device half* B [[buffer(1)]],
                   device float* C [[buffer(2)]]) {{
  simdgroup_matrix<half, 8, 8> a, b;
  simdgroup_matrix<float, 8, 8> c = make_filled_simdgroup_matrix<float, 8>(0.0f);
  threadgroup float t[8 * 8];
  for (int k = 0; k < 32; k += 8) {{
    simdgroup_load(a, A, 32, ulong2(k, 0));
    simdgroup_load(b, B + k, 32, ulong2(0, 0), true);
    simdgroup_multiply_accumulate(c, a, b, c);
  }}
  simdgroup_store(c, t, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  simdgroup_load(c, t, 8);
  simdgroup_store(c, C, 8);
}}"""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((8, 32)).astype(np.float16) for _ in range(2))
    result = Library(source).check("mm", [a, b, Out((8, 8), np.float32)], grid=(32,), threadgroup=(32,))
    expected = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(result.outputs[0], expected, rtol=1e-5, atol=1e-5)


def test_atomics_count_and_buffers_can_be_read_and_written() -> None:
    source = f"""{HEAD}
[[kernel]] void count(const device int* x, device atomic_int* hist, device float* y,
                      uint i [[thread_position_in_grid]]) {{
  atomic_fetch_add_explicit(&hist[x[i]], 1, memory_order_relaxed);
  y[i] += 1.0f;
}}"""
    x = np.random.default_rng(1).integers(0, 8, 300).astype(np.int32)
    y = np.arange(300, dtype=np.float32)
    buffers: dict[int | str, Any] = {"x": x, "hist": Out((8,), np.int32, init=0), "y": InOut(y)}
    hist, after = Library(source).check("count", buffers, grid=(300,), threadgroup=(64,)).outputs
    np.testing.assert_array_equal(hist, np.bincount(x, minlength=8))
    np.testing.assert_array_equal(after, y + 1)


def test_function_constants_and_template_instantiations() -> None:
    source = f"""{HEAD}
constant bool twice [[function_constant(3)]];
template <typename T, int N> [[kernel]] void f(device T* y, uint i [[thread_position_in_grid]]) {{
  y[i] = T(i * N * (twice ? 2 : 1));
}}
template [[host_name("f_int_5")]] [[kernel]] decltype(f<int, 5>) f<int, 5>;
template [[host_name("f_half_3")]] [[kernel]] decltype(f<half, 3>) f<half, 3>;
"""
    for twice in (False, True):
        library = Library(source, function_constants={3: twice})
        assert [k.host for k in library.kernels] == ["f_int_5", "f_half_3"]
        got = library.run("f_int_5", [Out((8,), np.int32)], grid=(8,), threadgroup=(8,)).outputs[0]
        np.testing.assert_array_equal(got, np.arange(8) * 5 * (2 if twice else 1))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("[[kernel]] void k(device int* y [[buffer(0)]]) { y[0] = oops; }", "undeclared identifier 'oops'"),
        ("[[kernel]] void k(texture2d<float> t [[texture(0)]]) {}", "not supported"),
        ("[[kernel]] void k(int* y) {}", "no device, constant or threadgroup address space"),
        ("#include <nothing_here>\n[[kernel]] void k(device int* y) {}", "preprocessing failed"),
    ],
)
def test_a_source_that_cannot_run_is_refused_in_words(source: str, message: str) -> None:
    with pytest.raises(MslError, match=message):
        Library(HEAD + source).run("k", [Out((1,), np.int32)], grid=(1,), threadgroup=(1,))


def test_wrong_arguments_are_named() -> None:
    library = Library(HEAD + "[[kernel]] void k(const device int* x, device int* y) { y[0] = x[0]; }")
    with pytest.raises(KernelFault, match="no buffer for parameter 'x'"):
        library.run("k", {"y": Out((1,), np.int32)}, grid=(1,), threadgroup=(1,))
    with pytest.raises(KernelFault, match="has no buffer 'z'"):
        library.run("k", {"z": np.zeros(1, np.int32)}, grid=(1,), threadgroup=(1,))
    with pytest.raises(MslError, match=r"no kernel .other. in kernel\.metal; it has: k"):
        library.run("other", [], grid=(1,), threadgroup=(1,))
