"""The backend keeps its contract, means what the op's reference means, and declines what it does not cover."""

from __future__ import annotations

import mlx.core as mx
import pytest
from sparkwright.core.contracts import OpSpec
from sparkwright.core.kernels import reference
from sparkwright.core.testing import Check, parametrize_with_checks
from sparkwright_expand import MEANING, Backend, Options, on_cpu, source, sparkwright_register_kernels

OP = OpSpec("hyper_expand", MEANING, "")


@parametrize_with_checks(sparkwright_register_kernels())
def test_conformance(check: Check) -> None:
    check.run()


def arguments(rows: int, streams: int, width: int, dtype: mx.Dtype) -> list[mx.array]:
    keys = mx.random.split(mx.random.key(rows), 4)
    shapes = [(rows, width), (rows, streams, width), (rows, streams), (rows, streams, streams)]
    types = [dtype, dtype, mx.float32, mx.float32]
    return [mx.random.normal(s, key=k).astype(t) for s, k, t in zip(shapes, keys, types, strict=True)]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_every_number_of_rows_means_what_the_reference_means(dtype: mx.Dtype) -> None:
    run, meaning = on_cpu(), reference(OP)
    for rows in range(1, 9):
        given = arguments(rows, 4, 96, dtype)
        got, wanted = run(*given), meaning(*given)
        assert got.dtype == dtype and mx.allclose(got, wanted, rtol=1e-2 if dtype == mx.bfloat16 else 1e-5, atol=1e-5)
        alone = run(*(a[:1] for a in given))
        assert mx.array_equal(alone[0], got[0])  # bit for bit: a row does not know how many there are


def test_it_declines_what_it_does_not_cover() -> None:
    def ask(op: OpSpec = OP, device: str = "cuda", dtype: str = "bfloat16", streams: int = 4, cpu: bool = True) -> bool:
        backend = Backend(Options(cpu=cpu))
        return backend.sparkwright_select_kernel(op, device, dtype, (streams, 4096)) is not None

    assert ask(device="cpu") and not ask(device="cpu", cpu=False)
    assert not ask(dtype="float64") and not ask(streams=9) and not ask(device="tpu")
    assert not ask(op=OpSpec("hyper_expand", "somewhere.else:hyper_expand", ""), device="cpu")
    assert not ask(op=OpSpec("hyper_mix", MEANING, ""), device="cpu")


def test_both_devices_get_the_same_body() -> None:
    metal, cuda = source("metal"), source("cuda")
    assert "thread_position_in_grid" in metal and "blockIdx" in cuda
    for text in (metal, cuda):
        assert "ROW" not in text and "CHANNEL" not in text and text.count("{") == text.count("}")
