"""MLX's own Metal kernels, unmodified, from the headers of the installed wheel: values, and every barrier deleted.

These are somebody else's kernels, written without this runner in mind: a fault reported here would be a false alarm
(or a real bug in MLX), a deleted barrier that is not reported a hole in the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mslrun import KernelFault, Library, Out
from mslrun.mutate import without_barriers

mx: Any = pytest.importorskip("mlx.core")
from mslrun import mlx_hook

KERNELS = mlx_hook.include_dir() / "mlx/backend/metal/kernels"
UTILS = '#include "mlx/backend/metal/kernels/utils.h"\n'
rng = np.random.default_rng(0)


@dataclass(frozen=True)
class Case:
    header: str
    before: str
    instance: str
    buffers: Callable[[], list[Any]]
    expected: Callable[[], Any]
    threadgroups: tuple[int, ...]
    threadgroup: tuple[int, ...]
    constants: dict[int | str, bool] | None = None
    allow: tuple[str, ...] = ()

    def text(self) -> str:
        return (KERNELS / self.header).read_text()

    def run(self, text: str) -> Any:
        source = (
            f'{UTILS}#include <metal_simdgroup>\n{self.before}\n#line 1 "{self.header}"\n{text}\n'
            f'template [[host_name("k")]] [[kernel]] decltype({self.instance}) {self.instance};\n'
        )
        library = Library(
            source, [mlx_hook.include_dir()], filename=self.header, function_constants=self.constants
        )
        return library.check(
            "k",
            self.buffers(),
            threadgroups=self.threadgroups,
            threadgroup=self.threadgroup,
            allow=self.allow,
        ).outputs[0]


X = rng.standard_normal((3, 500)).astype(np.float32)
E = np.exp(X.astype(np.float64))
NORMAL = E / E.sum(1, keepdims=True)
LSE = np.log(E.sum(1))
Q = rng.standard_normal((4, 64)).astype(np.float32)
KEYS = rng.standard_normal((2, 50, 64)).astype(np.float32)
VALUES = rng.standard_normal((2, 50, 64)).astype(np.float32)
SOFTMAX = "#define SOFTMAX_N_READS 4\nusing namespace metal;"
LSE_OUT = [X, Out((3,), np.float32), np.int32(500)]


def attention() -> Any:
    out = []
    for h in range(4):
        s = np.exp(KEYS[h // 2].astype(np.float64) @ Q[h] * 0.125)
        out.append((s / s.sum()) @ VALUES[h // 2])
    return np.array(out)


CASES = {
    "softmax_single_row": Case(
        "softmax.h", SOFTMAX, "softmax_single_row<float, float>",
        lambda: [X, Out((3, 500), np.float32), np.int32(500)], lambda: NORMAL, (3,), (128,),
    ),
    "softmax_looped": Case(
        "softmax.h", SOFTMAX, "softmax_looped<float, float>",
        lambda: [X, Out((3, 500), np.float32), np.int32(500)], lambda: NORMAL, (3,), (1024,),
    ),
    "logsumexp": Case("logsumexp.h", "using namespace metal;", "logsumexp<float>", lambda: LSE_OUT, lambda: LSE, (3,), (128,)),
    "contiguous_scan": Case(
        "scan.h", '#include "mlx/backend/metal/kernels/binary_ops.h"\nusing namespace metal;',
        "contiguous_scan<float, float, CumSum<float>, 4, true, false>",
        lambda: [X, Out((3, 500), np.float32), np.uint64(500)], lambda: np.cumsum(X.astype(np.float64), 1),
        (1, 3), (64,),
        allow=("uninit-threadgroup",),  # lanes past the last SIMD-group read their slot and do not use it
    ),
    "sdpa_vector": Case(
        "sdpa_vector.h", "using namespace metal;", "sdpa_vector<float, 64, 64>",
        lambda: [
            Q, KEYS, VALUES, Out((4, 64), np.float32), np.int32(2), np.int32(50), np.uint64(3200), np.uint64(64),
            np.uint64(3200), np.uint64(64), np.float32(0.125),
        ],
        attention, (4, 1), (1024,),
        {20: False, 21: False, 22: False, 23: False, 24: False, 25: False, 26: False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_of_mlx_gives_its_value_without_a_finding(name: str) -> None:
    case = CASES[name]
    np.testing.assert_allclose(case.run(case.text()), case.expected(), rtol=2e-5, atol=2e-5)


def executed(case: Case) -> list[tuple[int, str]]:
    """Barriers inside the one kernel of the header that the case runs."""
    text = case.text()
    name = case.instance.split("<")[0]
    start = text.index(f"void {name}(")
    rest = text.find("[[kernel]]", start)
    mutants = without_barriers(text)
    end = text.count("\n", 0, rest) if rest >= 0 else text.count("\n")
    return [(m.line, m.text) for m in mutants if text.count("\n", 0, start) < m.line <= end]


def test_every_deleted_barrier_is_reported() -> None:
    deleted = 0
    for name, case in CASES.items():
        for line, text in executed(case):
            with pytest.raises(KernelFault):
                case.run(text)
                pytest.fail(f"{name}: the barrier at line {line} was deleted and nothing was reported")
            deleted += 1
    assert deleted >= 15


def quantised(mode: str, bits: int) -> tuple[Any, Any, Any, Any, Any]:
    x = mx.random.normal((1, 512), key=mx.random.key(1))
    w = mx.random.normal((24, 512), key=mx.random.key(2))
    group = 64 if mode == "affine" else 16 if mode == "nvfp4" else 32
    parts = mx.quantize(w, group, bits, mode=mode)
    full = mx.dequantize(*parts, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    return x, parts[0], parts[1], parts[2] if len(parts) > 2 else None, full


@pytest.mark.parametrize(
    ("mode", "bits"), [("affine", 4), ("affine", 8), ("mxfp4", 4), ("mxfp8", 8), ("nvfp4", 4)]
)
def test_the_quantised_matrix_vector_products_of_mlx_run_unmodified(mode: str, bits: int) -> None:
    x, w, scales, biases, full = quantised(mode, bits)
    group = x.shape[1] // scales.shape[1]
    head = '#include "mlx/backend/metal/kernels/steel/gemm/gemm.h"\n#include "mlx/backend/metal/kernels/quantized_utils.h"\n'
    shape, stride = np.zeros(1, np.int32), np.zeros(1, np.int64)
    out = Out((1, 24), np.float32)
    ints = [np.int32(512), np.int32(24)]
    if mode == "affine":
        head += '#include "mlx/backend/metal/kernels/quantized.h"\n'
        instance = f"affine_qmv<float, {group}, {bits}, false>"
        first = [np.array(w), np.array(scales), np.array(biases), np.array(x), out, *ints]
        rest = [np.int32(0), shape, stride, np.int32(0), shape, stride, stride, stride]
    else:
        head += '#include "mlx/backend/metal/kernels/fp_quantized.h"\n'
        instance = f"fp_qmv<float, {group}, {bits}, false>"
        first = [np.array(w), np.array(scales), np.float32(1), np.array(x), out, *ints]
        rest = [np.int32(0), shape, stride, np.int32(0), shape, stride, stride]
    source = UTILS + head + f'template [[host_name("k")]] [[kernel]] decltype({instance}) {instance};\n'
    library = Library(source, [mlx_hook.include_dir()])
    got = library.check("k", first + rest, threadgroups=(1, 3), threadgroup=(32, 2)).outputs[0]
    expected = np.array(x, np.float64) @ np.array(full, np.float64).T
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
