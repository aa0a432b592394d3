"""Every command and snippet of README.md and docs/ is executed, or says why it is not."""

from __future__ import annotations

import re
import shutil
import subprocess
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


@pytest.mark.parametrize("page", pages())
def test_a_page_has_no_code_that_the_reader_does_not_see(page: str) -> None:
    list(blocks(page))  # refuses indented code, other fences, languages it does not know


@pytest.mark.parametrize("page", PAGES)
def test_blocks_left_to_ci_are_run_there(page: str) -> None:
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    called = set(re.findall(r"readme_command (\w+)", script))
    named = {block.value for block in blocks(page) if block.note == "ci"}
    assert named <= (called if page == "README.md" else set())


@pytest.mark.parametrize("page", PAGES)
def test_configurations_are_valid(page: str, tmp_path: Path) -> None:
    for block in blocks(page):
        if block.language == "toml" and not block.note:  # one with a file name is used by the commands after it
            path = tmp_path / "shown.toml"
            path.write_text(block.text, encoding="utf-8")
            config = load_config(path)
            assert not config.warnings, f"{block}: {config.warnings}"


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
    found = shutil.which(command[0], path=environment["PATH"])
    assert found is not None, f"{block}: no {command[0]} in {environment['PATH']}"
    command[0] = found
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    expected = int(block.value) if block.note == "fails" else 0
    assert done.returncode == expected, f"{block} left with {done.returncode}:\n{done.stdout}\n{done.stderr}"


def run_page(page: str, folder: Path, environment: dict[str, str], source: Path) -> None:
    """Execute a page in an empty folder with the commands of an environment; the examples are those of `source`."""
    if page.startswith("examples/"):  # they are told from the repository's root
        shutil.copytree(
            source / "examples", folder / "examples", ignore=shutil.ignore_patterns("models", "__pycache__")
        )
    for block in blocks(page):
        run(block, folder, environment)


@pytest.mark.kit
@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_says(page: str, tmp_path: Path, environment: dict[str, str]) -> None:
    run_page(page, tmp_path, environment, ROOT)
