"""Every fused op, from its Metal source, on the CPU runner: lint, six schedules, float64, deleted barriers, bits.

A green run proves meaning, indexing, synchronisation and launch code. It does not prove that Apple's compiler accepts
the text, nor register limits, fast-math rounding or speed.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mslrun import KernelFault, mlx_hook
from mslrun.mutate import without_barriers
from tests.kernels.cases import (
    PLAIN,
    PLAIN_FACTORS,
    PROBLEMS,
    ROWS,
    TILE_FACTORS,
    TILED,
    Case,
    Problem,
    every,
    every_tile,
    f64,
    flatten,
    pairwise,
    problem,
)
from tests.kernels.test_cuda_text import recorder

pytestmark = pytest.mark.kernels


def run(made: Problem, arguments: tuple[Any, ...], tiles: bool = False, **options: Any) -> list[mx.array]:
    with mlx_hook.emulate(**options):
        return flatten(made.kernel("metal", tiles)(*arguments))


def hold(case: Case, tiles: bool = False, **options: Any) -> None:
    made = problem(case)
    got = run(made, made.arguments, tiles, **options)
    assert len(got) == len(made.expected)
    for i, (array, expected, bound) in enumerate(zip(got, made.expected, made.bounds, strict=True)):
        assert array.shape == expected.shape
        excess = np.abs(f64(array) - expected) / bound
        worst = np.unravel_index(int(np.nanargmax(excess)), excess.shape)
        assert np.all(excess <= 1), f"{case}: array {i} at {worst}: {excess.max():.2f} times the bound"


@pytest.mark.parametrize("case", [*pairwise(), *pairwise(factors=PLAIN_FACTORS)], ids=str)
def test_lint_schedules_and_float64(case: Case) -> None:
    hold(case, lint=True)


@pytest.mark.parametrize("case", pairwise(factors=TILE_FACTORS), ids=str)
def test_lint_schedules_and_float64_on_matrix_units(case: Case) -> None:
    hold(case, tiles=True, lint=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(every()), ids=str)
def test_lint_schedules_and_float64_in_the_whole_product(case: Case) -> None:
    hold(case, lint=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(every_tile()), ids=str)
def test_lint_schedules_and_float64_on_matrix_units_in_the_whole_product(case: Case) -> None:
    hold(case, tiles=True, lint=True)


BARRIERS = {
    ("small_rows_matmul", False): 1,
    ("grouped_rows_matmul", False): 1,
    ("swiglu_matmul", False): 1,
    ("project_rows", False): 2,
    ("grouped_experts", False): 2,
    ("attend_rows", False): 2,
    ("hyper_mix", False): 2,
    ("hyper_head", False): 2,
    ("hyper_expand", False): 0,
    ("norm_rotate", False): 0,
    ("pool_windows", False): 1,
    ("route_scores", False): 2,
    ("indexer_select", False): 4,
    ("small_rows_matmul", True): 1,
    ("grouped_rows_matmul", True): 1,
    ("swiglu_matmul", True): 1,
    ("project_rows", True): 2,
    ("grouped_experts", True): 2,
}
"""Of each op, without and with matrix units where it has a choice."""


def test_every_op_has_its_barriers_counted() -> None:
    assert set(BARRIERS) == {(op, False) for op in (*PROBLEMS, *PLAIN)} | {(op, True) for op in TILED}


@pytest.mark.parametrize(
    ("op", "tiles", "nth"), [(op, tiles, n) for (op, tiles), count in BARRIERS.items() for n in range(count)]
)
def test_a_deleted_barrier_is_reported(op: str, tiles: bool, nth: int) -> None:
    made = problem(Case(op, "mxfp4", "float32", 3, "wide"))
    seen: list[str] = []
    at = [nth]

    def delete(text: str) -> str:
        """The nth barrier of the op, over all of its dispatches."""
        mutants = without_barriers(text, ["BARRIER"])
        if not 0 <= at[0] < len(mutants):
            at[0] -= len(mutants)
            return text
        seen.append(mutants[at[0]].what)
        text = mutants[at[0]].text
        at[0] = -1
        return text

    with pytest.raises(KernelFault, match=r"race|uninitialised|order-dependence"):
        run(made, made.arguments, tiles, edit=delete)
    assert len(seen) == 1


def test_no_barrier_is_left_out_of_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(mx.fast, "metal_kernel", recorder(texts))  # compiles nothing
    for (op, tiles), count in BARRIERS.items():
        texts.clear()
        made = problem(Case(op, "mxfp4", "float32", 1, "small"))
        made.kernel("metal", tiles)(*made.arguments)
        assert sum(len(without_barriers(text, ["BARRIER"])) for text in texts) == count, op


def bits(array: mx.array) -> Any:
    return mlx_hook.to_numpy(array).view(np.uint8)


@pytest.mark.parametrize(
    ("op", "tiles", "size"),
    [*((op, tiles, "wide") for op, tiles in BARRIERS), *((op, False, "odd") for op in PROBLEMS)],
)
def test_a_row_has_the_same_bits_alone_and_among_any_others(op: str, tiles: bool, size: str) -> None:
    """Rows 0..7 in one call, then each as part of calls of other widths, then among rows of other content."""
    # float32 throughout: rounding the results to 16 bits would hide most differences.
    made = problem(Case(op, "mxfp4" if size == "wide" else "bfloat16", "float32", 8, size))
    whole = [bits(a) for a in run(made, made.arguments, tiles, check=False)]
    for first, last in ((0, 1), (7, 8), (3, 5), (0, 6)):
        part = run(made, made.rows(first, last), tiles, check=False)
        for got, all_rows in zip(part, whole, strict=True):
            np.testing.assert_array_equal(bits(got), all_rows[first:last], err_msg=f"rows {first}..{last - 1}")
    if op == "grouped_experts":  # all rows choose what row 2 chose: one group where there were several
        x, index, weight, *rest = made.arguments
        spoiled = mx.concatenate([mx.full(x[:2].shape, 3.0, x.dtype), x[2:3], mx.full(x[3:].shape, -2.0, x.dtype)])
        arguments: tuple[Any, ...] = (spoiled, mx.broadcast_to(index[2:3], index.shape), weight, *rest)
    else:
        first_argument = made.arguments[0]
        others = mx.full(first_argument.shape, float("nan"), first_argument.dtype)
        keep = (mx.arange(8) == 2).reshape(8, *[1] * (first_argument.ndim - 1))
        arguments = (mx.where(keep, first_argument, others), *made.arguments[1:])
    for got, all_rows in zip(run(made, arguments, tiles, check=False), whole, strict=True):
        np.testing.assert_array_equal(bits(got)[2], all_rows[2], err_msg="row 2 among rows of other content")


def test_attention_does_not_depend_on_the_padding_of_its_lists() -> None:
    made = problem(Case("attend_rows", "mxfp4", "float32", 3, "wide"))
    query, ring, slots, rows, select, *rest = made.arguments
    more = mx.full((3, 9), -1, mx.int32)
    wider = (query, ring, mx.concatenate([slots, more], 1), rows, mx.concatenate([select, more], 1), *rest)
    (a,), (b,) = run(made, made.arguments, check=False), run(made, wider, check=False)
    np.testing.assert_array_equal(bits(a), bits(b))


def test_the_pairwise_set_meets_every_pair() -> None:
    from itertools import combinations

    from tests.kernels.cases import FACTORS

    names = ("op", "format", "dtype", "rows", "size")
    cases = pairwise()
    for (a, xs), (b, ys) in combinations(zip(names, FACTORS, strict=True), 2):
        met = {(getattr(c, a), getattr(c, b)) for c in cases}
        assert met == {(x, y) for x in xs for y in ys}
    assert {c.rows for c in cases} == set(ROWS)
    assert len(cases) < 80
