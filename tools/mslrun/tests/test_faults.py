"""Thirty planted faults: each must be reported under its own kind, and the kernel without a fault must pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mslrun import KernelFault, Library, Out, Result, lint
from mslrun.mutate import without_barriers

GOOD = """
#include <metal_stdlib>
using namespace metal;
[[kernel]] void k(const device float* x [[buffer(0)]], device float* out [[buffer(1)]],
    constant int& n [[buffer(2)]], uint3 tgid3 [[threadgroup_position_in_grid]],
    uint lid [[thread_position_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint sg [[simdgroup_index_in_threadgroup]]) {
  threadgroup float part[4];
  threadgroup float row[1000];
  uint tg = tgid3.x;
  for (int i = lid; i < n; i += 128) row[i] = x[tg * n + i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float acc = 0;
  for (int i = lid; i < n; i += 128) acc += row[n - 1 - i];
  acc = simd_sum(acc);
  if (lane == 0) part[sg] = acc;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float tot = part[0] + part[1] + part[2] + part[3];
  for (int i = lid; i < n; i += 128) out[tg * n + i] = row[i] / tot;
}
"""
BARRIER = "  threadgroup_barrier(mem_flags::mem_threadgroup);\n"
X = np.abs(np.random.default_rng(0).standard_normal((5, 1000))).astype(np.float32)


def buffers() -> list[Any]:
    return [X, Out((5, 1000), np.float32), np.int32(1000)]


def run(source: str, group: int = 128, **options: Any) -> Result:
    options = {"max_steps": 3_000_000, "timeout": 2.0, **options}
    return Library(source).run("k", buffers(), threadgroups=(5,), threadgroup=(group,), **options)


def swap(old: str, new: str, nth: int = 1) -> str:
    at = -1
    for _ in range(nth):
        at = GOOD.index(old, at + 1)
    return GOOD[:at] + new + GOOD[at + len(old) :]


def before_sum(text: str) -> str:
    return swap("float acc = 0;", "float acc = 0; " + text)


def after_sum(text: str) -> str:
    return swap("acc = simd_sum(acc);", "acc = simd_sum(acc); " + text)


FAULTS = {
    "first barrier missing": (swap(BARRIER, "\n", 1), "race"),
    "second barrier missing": (swap(BARRIER, "\n", 2), "race"),
    "barrier with mem_none": (swap("mem_flags::mem_threadgroup", "mem_flags::mem_none"), "race"),
    "simdgroup barrier instead": (swap("threadgroup_barrier(mem", "simdgroup_barrier(mem", 2), "race"),
    "read one element past": (swap("x[tg * n + i]", "x[tg * n + i + 1]"), "out-of-bounds"),
    "read one element before": (swap("x[tg * n + i]", "x[(int)(tg * n + i) - 1]"), "out-of-bounds"),
    "read 2**31 elements away": (
        swap("x[tg * n + i]", "x[tg * n + i + (i == 999 ? 0x7fffffffu : 0u)]"),
        "out-of-bounds",
    ),
    "write past the output": (
        swap("out[tg * n + i]", "out[tg * n + i + (tg == 4 ? 1 : 0)]"),
        "out-of-bounds",
    ),
    "threadgroup array overrun": (swap("row[i] = x", "row[i + (i == 999)] = x"), "undefined"),
    "threadgroup array overrun by pointer": (
        swap(
            "row[i] = x[tg * n + i];",
            "{ threadgroup float* rp = row + i; rp[i == 999 ? 1 : 0] = x[tg * n + i]; }",
        ),
        "out-of-bounds",
    ),
    "private array overrun": (
        before_sum("float loc[4]; for (int j = 0; j < 4; j++) loc[j] = j; acc += 0 * loc[lane & 7];"),
        "undefined",
    ),
    "misaligned float4": (before_sum("acc += 0 * ((const device float4*)(x + 1))[0].x;"), "undefined"),
    "an output never written": (
        swap("out[tg * n + i] =", "if (i != 17) out[tg * n + i] ="),
        "unwritten-output",
    ),
    "uninitialised threadgroup memory": (
        swap("for (int i = lid; i < n; i += 128) row[i]", "for (int i = lid; i < n - 1; i += 128) row[i]"),
        "uninitialised-read",
    ),
    "threadgroups write one output": (swap("out[tg * n + i]", "out[i]"), "race"),
    "threadgroups talk through device memory": (
        swap("float acc = 0;", "out[tg * n + lid] = 0; float acc = tg > 0 ? out[(tg - 1) * n + lid] : 0.0f;"),
        "race",
    ),
    "barrier in divergent code": (
        swap(
            BARRIER,
            "  if (lid < 64) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
            "  else threadgroup_barrier(mem_flags::mem_threadgroup);\n",
        ),
        "barrier-divergence",
    ),
    "return before a barrier": (
        swap("  uint tg = tgid3.x;", "  uint tg = tgid3.x; if (lid == 127) return;"),
        "barrier-divergence",
    ),
    "simd_sum in half of the lanes": (
        swap("acc = simd_sum(acc);", "if (lane < 16) acc = simd_sum(acc);"),
        "simd-divergence",
    ),
    "shuffle from an inactive lane": (
        after_sum("if (lane < 16) acc += simd_shuffle(acc, (ushort)(lane + 8));"),
        "simd-inactive",
    ),
    "broadcast from a varying lane": (after_sum("acc = simd_broadcast(acc, (ushort)lane);"), "simd-uniform"),
    "too much threadgroup memory": (swap("row[1000]", "row[8192]"), "threadgroup-memory"),
    "write to an input": (before_sum("((device float*)x)[lid] = 1;"), "write-to-input"),
    "endless loop": (before_sum("while (x[0] < 1e9f) { acc += x[lid]; }"), "timeout"),
    "endless loop with changing accesses": (
        before_sum("int j = lid; while (x[j] < 1e9f) { acc += x[j]; j = (j + 1) & 255; }"),
        "step-limit",
    ),
    "wild pointer": (
        before_sum("if (n == 1000) acc = *(const device float*)(ulong)(lid * 8 + 64);"),
        "wild-pointer",
    ),
}


def test_the_kernel_without_a_fault_passes_six_schedules() -> None:
    result = Library(GOOD).check("k", buffers(), threadgroups=(5,), threadgroup=(128,))
    np.testing.assert_allclose(result.outputs[0], X / X.sum(1, keepdims=True), rtol=1e-5)
    assert lint(GOOD) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_reported_by_kind(name: str) -> None:
    source, kind = FAULTS[name]
    with pytest.raises(KernelFault) as caught:
        run(source)
    assert kind in caught.value.kinds, str(caught.value)


def test_the_place_of_a_fault_is_the_line_of_the_source() -> None:
    source = FAULTS["read one element past"][0]
    with pytest.raises(KernelFault) as caught:
        run(source)
    line = source[: source.index("i + 1]")].count("\n") + 1
    assert f"kernel.metal:{line}" in str(caught.value)


def test_more_than_1024_threads_are_refused() -> None:
    with pytest.raises(KernelFault, match="1056 threads per threadgroup exceed 1024"):
        run(GOOD, group=1056)


def test_schedules_alone_show_a_missing_barrier_in_plain_code() -> None:
    source = without_barriers(GOOD)[1].text
    outputs = [
        run(source, check=False, order=order, seed=seed).outputs[0]
        for order, seed in (("forward", 0), ("reverse", 0), ("random", 1))
    ]
    assert not all(np.array_equal(outputs[0], other, equal_nan=True) for other in outputs[1:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("const float* p = nullptr; ", "without an address space"),
        ("double d = 0; ", "'double' is not supported"),
    ],
)
def test_lint_sees_what_clang_accepts_and_metal_does_not(text: str, message: str) -> None:
    assert any(message in said for said in lint(before_sum(text)))


def test_lint_sees_a_pointer_passed_to_the_wrong_address_space() -> None:
    helper = "float first(const device float* p) { return p[0]; }\n[[kernel]]"
    source = GOOD.replace("[[kernel]]", helper).replace("float acc = 0;", "float acc = first(row);")
    assert lint(source) and lint(source.replace("first(row)", "first(x)")) == []


@pytest.mark.parametrize("check", ["partial-simd", "unwritten", "uninit-threadgroup"])
def test_a_check_can_be_switched_off(check: str) -> None:
    name = {
        "partial-simd": "simd_sum in half of the lanes",
        "unwritten": "an output never written",
        "uninit-threadgroup": "uninitialised threadgroup memory",
    }[check]
    run(FAULTS[name][0], allow=(check,))
