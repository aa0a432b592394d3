"""Settings for every test: MLX's bundled BLAS (its rows are bit-equal), no network, no user caches."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before anything imports MLX: OpenBLAS would round one row and several rows differently.
os.environ["SPARKWRIGHT_OPENBLAS"] = "0"
os.environ["SPARKWRIGHT_DEBUG"] = "1"
os.environ.pop("SPARKWRIGHT_PLUGINS", None)
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured cost curves of this machine's user must not reach a test, nor a test's the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
