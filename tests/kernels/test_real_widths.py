"""Products at the widths of the released models, uninstrumented, a sample of outputs held against float64."""

from __future__ import annotations

import attrs
import mlx.core as mx
import numpy as np
import pytest
from mslrun import mlx_hook
from tests.kernels.cases import f64

from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.kernels.fused.launcher import Launcher
from sparkwright.plugins.kernels.fused.table import find

pytestmark = [pytest.mark.kernels, pytest.mark.slow]

WIDTHS = [(4096, 1024), (7168, 1536), (1536, 65536), (16384, 7168), (4096, 129280)]


@pytest.mark.parametrize(("columns", "outputs"), WIDTHS)
@pytest.mark.parametrize("format", ["mxfp4", "affine4", "mxfp8"])
@pytest.mark.parametrize("rows", [1, 6, 8])
def test_a_product_of_released_width(columns: int, outputs: int, format: str, rows: int) -> None:
    rng = np.random.default_rng(columns + outputs)
    bits, group = (8 if format == "mxfp8" else 4), (64 if format == "affine4" else 32)
    codes = rng.integers(0, 1 << 32, (outputs, columns * bits // 32), np.uint32)
    if format == "affine4":
        scales = mx.array(rng.random((outputs, columns // group), np.float32)).astype(mx.bfloat16)
        linear = Linear(mx.array(codes), scales, -8 * scales, "affine", bits, group)
    else:
        codes &= 0x77777777  # no NaN codes
        scales = mx.array(rng.integers(118, 130, (outputs, columns // group), np.uint8))
        linear = Linear(mx.array(codes), scales, None, "mxfp8" if bits == 8 else "mxfp4", bits, group)
    x = mx.array(rng.standard_normal((rows, columns), np.float32))
    kernel = find(Launcher("metal"), ops.SMALL_ROWS_MATMUL, "float32", format, (columns, outputs))
    assert kernel is not None
    with mlx_hook.emulate(check=False):
        got = f64(kernel(x, linear))
    assert np.isfinite(got).all()
    sample = np.unique(np.concatenate([[0, outputs - 1], rng.integers(0, outputs, 200)])).astype(np.int32)
    if linear.biases is not None and linear.scales is not None:  # MLX would dequantise in the scales' bfloat16
        wide = (linear.scales.astype(mx.float32), linear.biases.astype(mx.float32))
        linear = attrs.evolve(linear, scales=wide[0], biases=wide[1])
    w = f64(linear.lookup(mx.array(sample), "float32"))
    expected, terms = f64(x) @ w.T, np.abs(f64(x)) @ np.abs(w).T
    assert np.all(np.abs(got[:, sample] - expected) <= terms * 2.0**-20)
