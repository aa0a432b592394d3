"""Kernel backends with one thing wrong, for an op that squares rows and adds what all rows share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
from tests.kit.bad.twin import Twin, provider

from sparkwright.core.contracts import Op, OpSpec, Provider
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing import OpCase


def reference(x: mx.array, shared: mx.array) -> mx.array:
    """x [r, d], shared [d] -> x * x + shared."""
    return x * x + shared


OP = OpSpec("square_rows", "tests.kit.bad.kernels:reference", "squares rows")


def case(rows: int, seed: int) -> tuple[mx.array, mx.array]:
    rng = np.random.default_rng([rows, seed])
    return mx.array(rng.normal(size=(rows, 24)).astype(np.float32)), mx.array(rng.normal(size=24).astype(np.float32))


def cases() -> list[OpCase]:
    return [OpCase(OP, case, widths=(24,))]


def right(x: mx.array, shared: mx.array) -> mx.array:
    return mx.square(x) + shared


def wrong_row(x: mx.array, shared: mx.array) -> mx.array:
    """Row 6 of eight is off by one element."""
    row = (mx.arange(x.shape[0]) == 6)[:, None] & (mx.arange(x.shape[1]) == 3)
    return right(x, shared) + mx.where(row, 0.1, 0.0)


def neighbours(x: mx.array, shared: mx.array) -> mx.array:
    """A sum over all rows that cancels, in numbers as well as it can."""
    total = x.sum(axis=0, keepdims=True)
    return right(x, shared) + (total * 3e-8)


def unwritten(x: mx.array, shared: mx.array) -> mx.array:
    """The tail of an odd number of rows is left as it was found."""
    tail = (mx.arange(x.shape[0]) == x.shape[0] - 1)[:, None] & (mx.arange(x.shape[1]) > 20)
    return mx.where(tail & (x.shape[0] % 2 == 1), float("nan"), right(x, shared))


def seven(x: mx.array, shared: mx.array) -> mx.array:
    if x.shape[0] > 7:
        raise ValueError("too many rows")
    return right(x, shared)


@attrs.define(eq=False)
class Backend:
    kernel: Op

    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec, dtype: str) -> Op | None:
        return self.kernel if op == OP and dtype == "float32" else None


class KnowsAll(Backend):
    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec, dtype: str) -> Op | None:
        return {"square_rows": self.kernel}[op.name]


class Greedy(Backend):
    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec, dtype: str) -> Op | None:
        return self.kernel


SOURCE = """
  const uint column = thread_position_in_grid.x, i = thread_position_in_grid.y * D + column;
  y[i] = x[i] * x[i] + shared[COLUMN];
"""


def metal(column: str) -> Op:
    """The op as a Metal kernel; `column` is which shared number is added."""

    def run(x: mx.array, shared: mx.array) -> mx.array:
        r, d = x.shape
        make: Any = mx.fast.metal_kernel
        kernel = make(
            name=f"kit_square_rows_{len(column)}", input_names=["x", "shared"], output_names=["y"],
            source=SOURCE.replace("COLUMN", column),
        )  # fmt: skip
        (y,) = kernel(
            inputs=[x, shared], template=[("D", d)], grid=(d, r, 1), threadgroup=(d, 1, 1),
            output_shapes=[(r, d)], output_dtypes=[mx.float32],
        )  # fmt: skip
        made: mx.array = y
        return made

    return run


class OnMetal(Backend):
    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec, dtype: str, device: str) -> Op | None:  # type: ignore[override]
        return self.kernel if op == OP and dtype == "float32" and device == "metal" else None


def make(kernel: Op, kind: Callable[[Op], Backend] = Backend) -> Provider:
    return provider("kernels", lambda site: kind(kernel), None, tools={"cases": "tests.kit.bad.kernels:cases"})


GOOD = make(right)
ON_METAL = make(metal("column"), OnMetal)
TWINS = [
    Twin("wrong in one row", "agrees with the reference", make(wrong_row), GOOD),
    Twin("seven rows at most", "agrees with the reference", make(seven), GOOD),
    Twin("depends on neighbours", "rows are apart", make(neighbours), GOOD),
    Twin("leaves elements unwritten", "every element is written", make(unwritten), GOOD),
    Twin("raises for an op it does not have", "selection", make(right, KnowsAll), GOOD),
    Twin("Metal text that reads out of bounds", "Metal source", make(metal("column + 1"), OnMetal), ON_METAL),
    Twin("Metal text with another meaning", "Metal source", make(metal("D - 1 - column"), OnMetal), ON_METAL),
    Twin("answers for any op", "selection", make(right, Greedy), GOOD),
]
