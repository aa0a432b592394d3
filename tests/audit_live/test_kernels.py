"""The live check of kernels: a backend with a planted fault is caught in the op, call and row; a right one passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import pytest
from tests.audit_live import live

from sparkwright.core.assembly import assemble
from sparkwright.core.audit.kernels import KernelsResult, audit_kernels
from sparkwright.core.check import LiveCheck
from sparkwright.core.contracts import Choice, Op, OpSpec, Provider
from sparkwright.core.errors import NumericError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.kernels import reference

Make = Callable[[Op], Op]
PROMPT = list(range(3, 20))


@attrs.define(eq=False)
class Planted:
    """Answers for every op with a copy of its reference, and for one op with what `make` makes of it."""

    name: str
    make: Make

    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec) -> Op:
        meaning = reference(op)
        return self.make(meaning) if op.name == self.name else lambda *a, **k: meaning(*a, **k)


def backend(name: str = "", make: Make = lambda op: op) -> Provider:
    return Provider(kind="kernels", name="planted", summary="toy", build=lambda options, site: Planted(name, make))


def audit(folder: Path, name: str = "", make: Make = lambda op: op) -> KernelsResult:
    config = live.config(folder, {"kernels": {"use": ["planted"]}}, backend(name, make))
    return audit_kernels(config, [PROMPT], max_tokens=8)


def test_right_kernels_stay_within_their_bounds(folder: Path) -> None:
    result = audit(folder)
    assert result.passed and result.first is None and not result.references
    assert result.submitted > 5 and "bits twice" in result.meaning
    names = {op.op for op in result.ops}
    assert {"attend_rows", "indexer_select", "route_scores", "grouped_experts", "markov_chain"} <= names
    seen = next(op for op in result.ops if op.op == "attend_rows")
    assert seen.calls > 8 and len(seen.rows) >= 2 and seen.worst == 0 and max(seen.rows) <= 8


def test_a_planted_fault_is_caught_in_the_op_call_and_row(folder: Path) -> None:
    result = audit(folder, "hyper_expand", lambda op: lambda branch, *a: op(branch * 1.01, *a))
    assert not result.passed and result.first is not None
    # The prompt is long and runs the reference: six calls of three layers. The first kernel is the drafter's.
    assert (result.first.op, result.first.call, result.first.row) == ("hyper_expand", 6, 0)
    assert result.first.shape[1:] == (4, 64) and result.first.difference > result.first.bound > 0
    assert "hyper_expand" in result.meaning and "call 6" in result.meaning
    clean = [op.op for op in result.ops if op.op != "hyper_expand" and op.excess is not None]
    assert clean == [], "after an excess the generation goes on with the reference"


def test_the_row_of_the_fault_is_named(folder: Path) -> None:
    def make(op: Op) -> Op:
        def kernel(x: mx.array, *rest: Any) -> Any:
            return op(x, *rest) + 0.1 * (mx.arange(x.shape[0]) == 2)[:, None, None]

        return kernel

    result = audit(folder, "norm_rotate", make)
    assert result.first is not None and result.first.op == "norm_rotate" and result.first.row == 2
    assert result.first.shape[0] > 2


def test_calls_are_counted_from_the_beginning_of_each_forward(folder: Path) -> None:
    """One call of a forward's only hashed layer is call 0, also in a late round."""
    calls = [0]

    def make(op: Op) -> Op:
        def kernel(*arguments: Any) -> Any:
            calls[0] += 1
            index, weight = op(*arguments)
            return index, weight * (1.5 if calls[0] > 6 else 1.0)

        return kernel

    result = audit(folder, "route_hash", make)
    assert result.first is not None and (result.first.op, result.first.call) == ("route_hash", 0)
    assert result.first.output == 1


@pytest.mark.parametrize("fault", ["unwritten", "unsteady", "shape", "dtype"])
def test_other_faults_have_names_of_their_own(folder: Path, fault: str) -> None:
    calls = [0]

    def make(op: Op) -> Op:
        def kernel(*arguments: Any) -> Any:
            out = op(*arguments)
            calls[0] += 1
            if fault == "unwritten":
                return mx.where(mx.arange(out.shape[-1]) == 3, mx.nan, out)
            if fault == "unsteady":
                return out * (1 + calls[0] % 2 * 2.0**-22)
            return out[:, :-1] if fault == "shape" else out.astype(mx.bfloat16)

        return kernel

    result = audit(folder, "swiglu_matmul", make)
    assert result.first is not None and result.first.op == "swiglu_matmul"
    says = {"unwritten": "differs", "unsteady": "not repeatable", "shape": "the reference", "dtype": "bfloat16"}
    assert says[fault] in result.first.fault
    assert (result.first.difference == float("inf")) == (fault == "unwritten"), "NaN is infinitely wrong"


def test_another_expert_is_an_excess(folder: Path) -> None:
    def make(op: Op) -> Op:
        def kernel(x: mx.array, gate: mx.array, bias: mx.array, k: int, scale: float) -> Any:
            return op(x, gate, -bias, k, scale)

        return kernel

    result = audit(folder, "route_scores", make)
    assert result.first is not None and result.first.op == "route_scores"
    assert "other numbers" in result.first.fault


SCORES = mx.array([[1.0, 0.5, 0.5000001], [1.0, 0.5, 0.2]])


def choices(position: int, result: mx.array, x: mx.array) -> dict[str, Choice]:
    return {"rows": Choice(result, SCORES)}


def top(x: mx.array) -> mx.array:
    return mx.array([[0, 2], [0, 1]])


def test_a_choice_between_equals_is_a_tie_and_no_other_is() -> None:
    op = OpSpec("top", f"{__name__}:top", "toy", f"{__name__}:choices")
    check = LiveCheck(fatal=False)
    x = mx.zeros((2, 3))
    check.wrap(op, "toy", lambda x: mx.array([[0, 1], [0, 1]]))(x)
    assert check.first is None and check.tallies["top", "toy"].ties == 1
    check.wrap(op, "toy", lambda x: mx.array([[0, 2], [0, 2]]))(x)
    assert check.first is not None and check.first.row == 1


def test_a_kernel_that_writes_into_its_input_is_caught() -> None:
    def writes(x: mx.array) -> mx.array:
        x[0, 0] = 7.0
        return mx.array([[0, 2], [0, 1]])

    check = LiveCheck(fatal=False)
    check.wrap(OpSpec("top", f"{__name__}:top", "toy"), "toy", writes)(mx.zeros((2, 3)))
    assert check.first is not None and check.first.fault == "changed its inputs"


def test_kernels_check_stops_a_generation_at_the_first_excess(folder: Path) -> None:
    settings = {"kernels": {"use": ["planted"], "check": True}}
    with assemble(live.config(folder, settings, backend())) as engine:
        right = engine.complete(PROMPT, max_tokens=6)
    with assemble(live.config(folder, {})) as engine:
        assert engine.complete(PROMPT, max_tokens=6).tokens == right.tokens
    wrong = backend("hyper_mix", lambda op: lambda x, *a: tuple(y * 1.1 for y in op(x, *a)))
    with (
        assemble(live.config(folder, settings, wrong)) as engine,
        pytest.raises(NumericError, match=r"'planted', op 'hyper_mix', call 6 .* row 0 .*unfused"),
    ):
        engine.complete(PROMPT, max_tokens=6)


def test_nothing_but_references_is_no_pass(folder: Path) -> None:
    config = live.config(folder, {"kernels": {"use": ["unfused"]}})
    result = audit_kernels(config, [PROMPT], max_tokens=2)
    assert not result.passed and "othing was compared" in result.meaning and "attend_rows" in result.references
