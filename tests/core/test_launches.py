"""What MLX is told about CUDA graphs: nothing but on CUDA, and nothing where the user has said it."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import pytest
from tests.core.engines import toy_config

from sparkwright import assemble
from sparkwright.core.assembly import load_target
from sparkwright.core.errors import SparkwrightError
from sparkwright.core.launches import SWITCH


@pytest.mark.parametrize(("cuda", "before", "after"), [(True, None, "0"), (True, "1", "1"), (False, None, None)])
@pytest.mark.parametrize("way", ["engine", "target"])
def test_the_switch(
    cuda: bool, before: str | None, after: str | None, way: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SWITCH, "")
    monkeypatch.delenv(SWITCH)  # so that it is put back
    if before is not None:
        monkeypatch.setenv(SWITCH, before)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: cuda)
    if way == "engine":
        assemble(toy_config({})).close()
    else:
        with pytest.raises(SparkwrightError):
            load_target(tmp_path)  # no model there: what comes before loading is enough
    assert os.environ.get(SWITCH) == after
