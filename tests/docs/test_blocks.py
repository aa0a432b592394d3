"""Every command and snippet of README.md and docs/ is executed, or says why it is not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from tests.docs.blocks import END, LIMITS, ROOT, START, Block, blocks, not_run, pages

from sparkwright.core.config import load_config

PAGES = [page for page in pages() if list(blocks(page))]


def test_what_is_not_run_is_listed_with_its_reason() -> None:
    page = LIMITS.read_text(encoding="utf-8")
    listed = page.split(START)[1].split(END)[0].strip()
    print(listed)
    assert listed == not_run().strip(), "run python -m tests.docs.blocks"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_left_to_ci_are_run_there(page: str) -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    called = set(re.findall(r"readme_command (\w+)", script))
    named = {block.value for block in blocks(page) if block.note == "ci"}
    assert named <= (called if page == "README.md" else set())


@pytest.mark.parametrize("page", PAGES)
def test_configurations_are_valid(page: str, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.language == "toml" and block.note in ("", "file") and block.value not in ("pyproject.toml",):
            path = tmp_path / "shown.toml"
            path.write_text(block.text, encoding="utf-8")
            config = load_config(path)
            assert not config.warnings, f"{block}: {config.warnings}"


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
    return kept | {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(folder),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "COLUMNS": "100",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip reads 0 as "no isolation": the build tools are those installed here
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run(block: Block, folder: Path, environment: dict[str, str]) -> None:
    """Execute one block in a page's folder; an assertion with its output if it does not end as it should."""
    if block.note == "file":
        path = folder / block.value
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return
    if block.note in ("ci", "not run") or block.language == "toml":
        return
    script = folder / f".block{block.line}"
    script.write_text(block.text, encoding="utf-8")
    command = ["python", str(script)] if block.language == "python" else ["bash", "-euo", "pipefail", str(script)]
    command[0] = shutil.which(command[0], path=environment["PATH"]) or sys.executable
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    expected = int(block.value) if block.note == "fails" else 0
    assert done.returncode == expected, f"{block} left with {done.returncode}:\n{done.stdout}\n{done.stderr}"


@pytest.mark.kit
@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    for block in blocks(page):
        run(block, tmp_path, environment)
