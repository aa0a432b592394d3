"""A tiny V4 checkpoint with its drafter, in official names."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.audit_live import live
from tests.dspark.folders import write_folder
from tests.dspark.tiny import spark_weights


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("audited"), live.SPARK, spark_weights(live.SPARK, 1))
