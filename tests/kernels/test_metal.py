"""The fused kernels on a Mac's own GPU: `pytest -m metal`.

The same cases and bounds as the runner's (test_fused.py), launched by MLX on the device, where Apple's compiler, its
registers and its rounding have their say. Off a Mac everything here is skipped: on Linux the Metal text is executed on
the CPU by tools/mslrun, which `-m kernels` does. Nothing of the runner is used here: no green run comes from it.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.kernels.cases import (
    PLAIN,
    PLAIN_FACTORS,
    PROBLEMS,
    TILE_FACTORS,
    TILED,
    Case,
    f64,
    flatten,
    pairwise,
    problem,
)
from tests.kernels.generate import agree

pytestmark = [
    pytest.mark.metal,
    pytest.mark.skipif(
        not mx.metal.is_available(),
        reason="needs a Mac: these tests launch the kernels on its GPU (on Linux `-m kernels` runs the same text)",
    ),
]


@pytest.fixture(autouse=True)
def _on_the_device() -> None:
    """Metal's own launches on the GPU: neither the CPU nor a stand-in for `metal_kernel`."""
    assert mx.default_device() == mx.Device(mx.gpu, 0), "MLX's default device must be the GPU"
    assert type(mx.fast).__name__ == "module" and "mslrun" not in repr(mx.fast.metal_kernel)


def run(case: Case, tiles: bool, arguments: tuple[Any, ...] | None = None) -> list[mx.array]:
    made = problem(case)
    return flatten(made.kernel("metal", tiles)(*(made.arguments if arguments is None else arguments)))


def hold(case: Case, tiles: bool) -> None:
    made = problem(case)
    for _ in range(2):  # a race would seldom fall the same way twice
        got = run(case, tiles, made.arguments)
        for i, (array, expected, bound) in enumerate(zip(got, made.expected, made.bounds, strict=True)):
            excess = np.abs(f64(array) - expected) / bound
            assert np.all(excess <= 1), f"{case}: array {i}: {excess.max():.2f} times the bound"


@pytest.mark.parametrize("case", [*pairwise(), *pairwise(factors=PLAIN_FACTORS)], ids=str)
def test_float64(case: Case) -> None:
    hold(case, False)


@pytest.mark.parametrize("case", pairwise(factors=TILE_FACTORS), ids=str)
def test_float64_on_matrix_units(case: Case) -> None:
    hold(case, True)


def bits(array: mx.array) -> Any:
    return np.array(array.view({2: mx.uint16, 4: mx.uint32}[array.dtype.size]))


@pytest.mark.parametrize(("op", "tiles"), [*((op, False) for op in (*PROBLEMS, *PLAIN)), *((op, True) for op in TILED)])
def test_a_row_has_the_same_bits_alone_and_among_others(op: str, tiles: bool) -> None:
    case = Case(op, "mxfp4", "float32", 8, "wide")
    made = problem(case)
    whole = [bits(a) for a in run(case, tiles)]
    for first, last in ((0, 1), (7, 8), (3, 5), (0, 6)):
        for got, rows in zip(run(case, tiles, made.rows(first, last)), whole, strict=True):
            np.testing.assert_array_equal(bits(got), rows[first:last], err_msg=f"rows {first}..{last - 1}")


@pytest.mark.parametrize("tiles", [False, True])
def test_a_tiny_v4_generates_the_same_tokens(tiles: bool) -> None:
    agree(tiles)
