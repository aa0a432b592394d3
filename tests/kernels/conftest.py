"""Compiled kernels of the tests live beside pytest's own cache: by content, so a stale one cannot be taken."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _kernel_cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = getattr(request.config, "cache", None)
    folder = cache.mkdir("mslrun") if cache else tmp_path_factory.mktemp("mslrun")
    os.environ.setdefault("MSLRUN_CACHE", str(folder))
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(folder / "zig"))
