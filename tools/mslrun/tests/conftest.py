"""One cache for a test run, kept between runs unless MSLRUN_CACHE says otherwise."""

from __future__ import annotations

import pytest

from mslrun import ToolchainError
from mslrun.toolchain import clang


def pytest_sessionstart(session: pytest.Session) -> None:
    try:
        clang()
    except ToolchainError as error:
        pytest.exit(str(error), returncode=3)
