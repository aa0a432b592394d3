"""my_plugin keeps a backend's contract, and means what the op's reference means."""

from __future__ import annotations

import mlx.core as mx
from sparkwright.core.contracts import OpSpec
from sparkwright.core.kernels import reference
from sparkwright.core.testing import Check, parametrize_with_checks

from sparkwright_my_plugin import MEANING, OP, Backend, sparkwright_register_kernels

SPEC = OpSpec(OP, MEANING, "")


@parametrize_with_checks(sparkwright_register_kernels())
def test_conformance(check: Check) -> None:
    check.run()


def test_it_means_what_the_reference_means() -> None:
    kernel = Backend().sparkwright_select_kernel(SPEC, "cpu", "float32", "", (4, 96))
    assert kernel is not None
    for rows in range(1, 9):
        shapes = [(rows, 96), (rows, 4, 96), (rows, 4), (rows, 4, 4)]
        keys = mx.random.split(mx.random.key(rows), 4)
        given = [mx.random.normal(shape, key=key) for shape, key in zip(shapes, keys, strict=True)]
        assert mx.allclose(kernel(*given), reference(SPEC)(*given), rtol=1e-5, atol=1e-5)


def test_it_declines_other_ops() -> None:
    other = OpSpec(OP, "somewhere.else:hyper_expand", "")
    assert Backend().sparkwright_select_kernel(other, "cpu", "float32", "", (4, 96)) is None
