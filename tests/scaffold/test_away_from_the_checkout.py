"""The wheel built from the sdist: it has the templates, and in an empty environment it serves who writes plugins.

The second test fetches what a user's `pip install` would fetch (about 100 MB): it needs a network or an index.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from tests.scaffold.published import ROOT, Built, build, install, run

TEMPLATES = "core/scaffold/templates"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("built"))


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
    here, python = tmp_path / "elsewhere", install(built, tmp_path / "env", "hatchling")
    here.mkdir()
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
