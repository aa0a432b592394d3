"""Each tiny model is made and loaded once for the session: targets are read-only, states are not shared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.mlx_lm_target import tiny

from sparkwright.plugins.targets.mlx_lm import MlxLmTarget


@pytest.fixture(scope="session")
def directory_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tiny.make(tmp_path_factory.mktemp(name), name)
        return made[name]

    return get


@pytest.fixture(scope="session")
def target_of(directory_of: Callable[[str], Path]) -> Callable[[str], MlxLmTarget]:
    loaded: dict[str, MlxLmTarget] = {}

    def get(name: str) -> MlxLmTarget:
        if name not in loaded:
            loaded[name] = tiny.load(directory_of(name), taps=(-1, 0, 2))
        return loaded[name]

    return get
