"""The drafter's chain from its Metal source: every slot's logits in float64, its tokens, its confidence."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mslrun import KernelFault, mlx_hook
from mslrun.mutate import without_barriers
from tests.kernels.cases import Case, Make, f64

from sparkwright.core.contracts import Op
from sparkwright.plugins.drafters.dspark import MARKOV_CHAIN
from sparkwright.plugins.kernels.fused.launcher import Launcher
from sparkwright.plugins.kernels.fused.table import find

pytestmark = pytest.mark.kernels


def kernel(format: str, backend: str = "metal") -> Op:
    found = find(Launcher("metal" if backend == "metal" else "cuda"), MARKOV_CHAIN, "float32", format, (64, 37))
    assert found is not None
    return found


@pytest.mark.parametrize(("format", "rank"), [("bfloat16", 24), ("float32", 37), ("affine8", 64), ("mxfp4", 512)])
def test_every_slot_is_biased_by_the_token_before_it(format: str, rank: int) -> None:
    make = Make(Case("markov_chain", format, "float32", 5, "odd"))
    (w1, f1), (w2, f2) = make.matrix(37, rank), make.matrix(37, rank)
    base, hidden = make.array(5, 37, scale=0.3), make.array(5, 16)
    confidence = make.array(16 + rank)
    anchor = mx.array([11], dtype=mx.int32)

    def pick(slot: int, logits: mx.array) -> mx.array:
        return mx.argmax(logits, axis=-1).astype(mx.int32)

    with mlx_hook.emulate(lint=True):
        tokens, logits, claims = kernel(format)(base, hidden, anchor, w1, w2, confidence, pick)
    drawn = [11, *np.array(tokens).tolist()]
    expected = f64(base) + f1[drawn[:-1]] @ f2.T
    np.testing.assert_allclose(f64(logits), expected, rtol=0, atol=3e-6 * max(1.0, np.abs(expected).max()))
    assert drawn[1:] == f64(logits).argmax(1).tolist()
    known = f64(hidden) @ f64(confidence)[:16] + f1[drawn[:-1]] @ f64(confidence)[16:]
    np.testing.assert_allclose(f64(claims), known, rtol=1e-5, atol=1e-5)


def test_a_deleted_barrier_is_reported() -> None:
    make = Make(Case("markov_chain", "float32", "float32", 1, "odd"))
    (w1, _), (w2, _) = make.matrix(37, 1029), make.matrix(37, 1029)
    arguments = (make.array(1, 37), make.array(1, 4), mx.array([2], dtype=mx.int32), w1, w2, None)
    with (
        pytest.raises(KernelFault, match=r"race|uninitialised"),
        mlx_hook.emulate(edit=lambda text: without_barriers(text, ["BARRIER"])[0].text),
    ):
        kernel("float32")(*arguments, lambda slot, logits: mx.argmax(logits, axis=-1).astype(mx.int32))
