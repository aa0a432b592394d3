"""The wheel built from the sdist: it has the templates, and in an empty environment it serves who writes plugins.

The second test fetches what a user's `pip install` would fetch (about 100 MB): it needs a network or an index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[2]
TEMPLATES = "core/scaffold/templates"


def run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPARKWRIGHT_", "VIRTUAL_ENV"))}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@attrs.frozen
class Built:
    """What is published: the sdist, unpacked, and the wheel built from that."""

    source: Path
    wheel: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist")
    run(*build, "--sdist", ROOT, cwd=folder)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    source = folder / "source"
    source.mkdir()
    run("tar", "xzf", sdist, "-C", source, "--strip-components=1", cwd=folder)
    run(*build, "--wheel", source, cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    return Built(source, wheel)


@pytest.mark.kit
def test_templates_and_examples_are_in_what_is_published(built: Built) -> None:
    inside = {name for name in zipfile.ZipFile(built.wheel).namelist() if "/scaffold/" in name}
    files = [p.relative_to(ROOT).as_posix() for p in (ROOT / TEMPLATES).rglob("*") if p.is_file()]
    files = [path for path in files if "__pycache__" not in path and "_cache/" not in path]
    assert len(files) > 20 and {f"sparkwright/{path}" for path in files} <= inside
    assert all((built.source / path).is_file() for path in files)
    for example in (ROOT / "examples").glob("*/pyproject.toml"):
        name = example.parent.name
        assert (built.source / "examples" / name / f"sparkwright_{name}.py").is_file()


@pytest.mark.slow
def test_the_installed_package_serves_who_writes_plugins(built: Built, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    here, python = tmp_path / "elsewhere", tmp_path / "env/bin/python"
    here.mkdir()
    run(python, "-m", "pip", "install", "--quiet", f"sparkwright[cpu] @ file://{built.wheel}", "hatchling", cwd=here)
    command = tmp_path / "env/bin/sparkwright"
    where = run(python, "-c", "import sparkwright; print(sparkwright.__file__)", cwd=here)
    assert str(tmp_path / "env") in where

    run(command, "plugin", "check", "lookup", cwd=here)
    run(command, "plugin", "new", "mine", "--kind", "drafter", cwd=here)
    offline = ("--quiet", "--no-build-isolation", "--no-deps", "--no-index")
    run(python, "-m", "pip", "install", *offline, here / "sparkwright-mine", cwd=here)
    for example in ("suffix_automaton", "trigram"):
        run(python, "-m", "pip", "install", *offline, built.source / "examples" / example, cwd=here)
    listed = json.loads(run(command, "plugins", "list", "--json", cwd=here))
    names = {item["name"] for item in listed["installed"]}
    assert {"mine", "suffix_automaton", "trigram", "deepseek_v4", "lookup"} <= names and not listed["unusable"]
    run(command, "plugin", "check", "mine", cwd=here)
    run(command, "plugin", "check", "suffix_automaton", cwd=here)
    settings = ("--set", "target.use=trigram", "--set", "drafter.use=suffix_automaton", "--set", "scheduler.use=fixed")
    said = run(command, "generate", "def sparkwright_", *settings, "--max-tokens", "60", "--json", cwd=here)
    assert json.loads(said)["stats"]["accepted"] > 0
