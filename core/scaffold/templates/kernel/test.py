"""my_plugin keeps a backend's contract, and means what the op's reference means."""

from __future__ import annotations

import mlx.core as mx
from sparkwright.core.contracts import OpSpec
from sparkwright.core.testing import Check, parametrize_with_checks

from sparkwright_my_plugin import (
    MEANING,
    OP,
    Backend,
    hyper_expand,
    sparkwright_register_kernels,
)


@parametrize_with_checks(sparkwright_register_kernels())
def test_conformance(check: Check) -> None:
    check.run()


def test_it_sums_what_it_should() -> None:
    one = mx.ones((1, 1, 2))
    y = hyper_expand(branch=3 * one[:, 0], streams=5 * one, post=7 * one[:, 0, :1], comb=2 * one[:, :, :1])
    assert y.tolist() == [[[31.0, 31.0]]]  # 7 * 3 + 2 * 5


def test_it_declines_other_ops() -> None:
    def covers(op: OpSpec) -> bool:
        return Backend().sparkwright_select_kernel(op, "cpu", "float32", "", (4, 96)) is not None

    assert covers(OpSpec(OP, MEANING, ""))
    assert not covers(OpSpec(OP, "somewhere.else:hyper_expand", ""))  # the same name, and another meaning
