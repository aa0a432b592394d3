"""The environment in which pages are executed."""

from __future__ import annotations

import os
import sysconfig
import venv
from pathlib import Path

import pytest

PAGES_SETTINGS = {
    "COLUMNS": "100",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip reads 0 as "no isolation": the build tools are those installed here
    "PIP_NO_INDEX": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment of its own on top of this one, so that a page may install what it makes; no network is needed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    inside = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    outside = sysconfig.get_path("purelib")
    Path(inside, "outside.pth").write_text(f"import site; site.addsitedir({outside!r})\n", encoding="utf-8")
    for name in ("pip", "pytest", "sparkwright", "mypy"):
        command = folder / "bin" / name
        command.write_text(f'#!/bin/sh\nexec {folder}/bin/python -m {name} "$@"\n', encoding="utf-8")
        command.chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARKWRIGHT_", "PYTEST_", "PIP_"))}
    return (
        kept
        | PAGES_SETTINGS
        | {
            "PATH": f"{folder}/bin:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(folder),
            "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        }
    )
