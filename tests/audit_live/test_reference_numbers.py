"""What the reference runs on: every tensor of a checkpoint in any layout, by the names that the definition asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deepseek_v4_checkpoint import conversions, tinyq
from tests.deepseek_v4_checkpoint.tinyq import Oracle

from sparkwright.plugins.deepseek_v4 import weights as module
from sparkwright.plugins.deepseek_v4.checkpoint import open_checkpoint
from sparkwright.plugins.deepseek_v4.headers import Tensor
from sparkwright.plugins.deepseek_v4.weights import Numbers


def assert_numbers(folder: Path, exact: Oracle, rounding: float = 0.0) -> None:
    numbers = Numbers(open_checkpoint(folder))
    for name, wanted in exact.items():
        found = numbers[name]
        assert np.issubdtype(found.dtype, np.integer) if name.endswith("tid2eid") else found.dtype == np.float64, name
        assert found.shape == wanted.shape and np.abs(found - wanted).max() <= rounding * np.abs(wanted).max(), name


def test_official_layout(tmp_path: Path) -> None:
    assert_numbers(tmp_path, tinyq.write(tmp_path))


def test_floats_in_official_names(tmp_path: Path) -> None:
    _, exact = tinyq.make()
    tinyq.save(tmp_path, tinyq.as_floats(exact, "BF16"))
    assert_numbers(tmp_path, exact)


@pytest.mark.parametrize(("experts", "dense"), [("mxfp4", "mxfp8"), ("affine3", "affine8")])
def test_conversions_with_stacked_experts(
    tmp_path: Path, experts: str, dense: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each bank is read once, however many experts are asked for one by one."""
    _, exact = tinyq.make()
    raw, meant = conversions.convert(exact, "mlx-lm", experts, dense, "bfloat16")
    tinyq.save(tmp_path, raw)
    one: Oracle = {}
    for name, array in meant.items():
        if ".ffn.experts." in name and array.ndim == 3:
            one |= {name.replace(".experts.", f".experts.{e}."): array[e] for e in range(len(array))}
        elif not name.startswith("mtp."):
            one[name] = array
    asked = sorted(name for name in one if ".ffn.experts." in name)
    assert len(asked) > 100
    assert_numbers(tmp_path, one, 0.0 if experts == "mxfp4" else 1e-6)
    read: list[str] = []
    right = module._numpy

    def counted(tensor: Tensor, *into: Any) -> Any:
        read.append(tensor.name)
        return right(tensor, *into)

    monkeypatch.setattr(module, "_numpy", counted)
    numbers = Numbers(open_checkpoint(tmp_path))
    for name in asked:
        numbers[name]
    assert len(read) == len(set(read)), "a bank was read twice"
