"""Scales of mxfp4 and mxfp8 at the ends of their range: exact, by kernels that keep every bit, or refused by name."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mslrun import mlx_hook
from tests.kernels.cases import f64
from tests.kernels.test_cuda_text import recorder

from sparkwright.core.errors import PluginError
from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear
from sparkwright.plugins.kernels.fused.experts import grouped_experts
from sparkwright.plugins.kernels.fused.launcher import Launcher
from sparkwright.plugins.kernels.fused.matmul import small_rows_matmul
from sparkwright.plugins.kernels.fused.weights import TILE_SCALES, tileable

pytestmark = pytest.mark.kernels


def weight(mode: Any, *scales: int, k: int = 256) -> tuple[Linear, Any]:
    """Five rows, whose groups have these scale bytes in turn; and the same in float64."""
    rng, bits = np.random.default_rng(0), int(mode[-1])
    codes = rng.integers(0, 2**32, (5, k * bits // 32), dtype=np.uint32)
    if bits == 8:
        codes &= 0x77777777  # no NaN
    bytes_ = np.resize(np.array(scales, np.uint8), (5, k // 32))
    linear = Linear(mx.array(codes), mx.array(bytes_), None, mode, bits, 32)
    ones = mx.full((5, k // 32), 127, mx.uint8)
    neutral = mx.dequantize(linear.weight, ones, group_size=32, bits=bits, mode=mode, dtype=mx.float32)
    return linear, f64(neutral) * np.exp2(np.repeat(bytes_.astype(np.float64) - 127, 32, axis=1))


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize("scale", [1, 40, 86, 127, 168, 200, 225])
def test_a_product_is_right_whatever_the_scale(mode: str, scale: int) -> None:
    linear, w = weight(mode, scale)
    x = mx.array(np.random.default_rng(1).standard_normal((2, 256)).astype(np.float32))
    with mlx_hook.emulate(check=False):
        y = small_rows_matmul(Launcher("metal", False))(x, linear)
    wanted, terms = f64(x) @ w.T, np.abs(f64(x)) @ np.abs(w).T
    assert np.all(np.abs(f64(y) - wanted) <= terms * 2.0**-20 + 2.0**-140)


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8"])
@pytest.mark.parametrize(
    ("scales", "tiles"), [((120, 121), True), (TILE_SCALES, True), ((120, 86), False), ((168, 120), False)]
)
def test_tiles_on_cuda_take_only_scales_whose_products_keep_every_bit(
    mode: str, scales: tuple[int, ...], tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One scale out of range sends the matrix, whatever the rows, to the body that multiplies in float32."""
    linear, _ = weight(mode, *scales)
    texts: list[str] = []
    monkeypatch.setattr(mx.fast, "cuda_kernel", recorder(texts))
    for rows in (1, 6):
        small_rows_matmul(Launcher("cuda"))(mx.zeros((rows, 256), mx.bfloat16), linear)
    assert [("tile_dot<TILE_A" in text) for text in texts] == [tiles] * 2
    assert tileable(Launcher("cuda"), mx.bfloat16, linear) is tiles


@pytest.mark.parametrize(("scale", "said"), [(241, "2^114"), (255, "NaN")])
def test_a_scale_that_no_kernel_takes_is_refused_by_name(scale: int, said: str) -> None:
    linear, _ = weight("mxfp4", 120, scale)
    with pytest.raises(PluginError, match="mxfp4 weight of shape") as error:
        small_rows_matmul(Launcher("metal", False))(mx.zeros((1, 256)), linear)
    assert said in str(error.value) and "unfused" in str(error.value)
    codes = mx.zeros((2, 256, 32), mx.uint32)
    w1, w3, w2 = (Linear(codes, mx.full((2, 256, 8), s, mx.uint8), None, "mxfp4", 4, 32) for s in (120, 120, scale))
    bank = ExpertBank(w1, w3, w2)
    with pytest.raises(PluginError, match="mxfp4 weight of shape"):
        grouped_experts(Launcher("metal", False))(
            mx.zeros((1, 256)), mx.zeros((1, 1), mx.int32), mx.ones((1, 1)), bank, 10.0
        )
