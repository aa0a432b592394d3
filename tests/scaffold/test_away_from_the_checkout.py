"""The wheel built from the sdist, in an empty environment: plugins, checks and new packages work without a checkout.

It fetches what a user's `pip install` would fetch (about 100 MB), so it needs a network or a package index.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SPARKWRIGHT_", "VIRTUAL_ENV"))}
    environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False,
        timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_the_installed_package_serves_who_writes_plugins(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path / "dist", ROOT, cwd=tmp_path)
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    source = tmp_path / "source"
    source.mkdir()
    run("tar", "xzf", sdist, "-C", source, "--strip-components=1", cwd=tmp_path)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path / "dist", source, cwd=tmp_path)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    templates = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "core/scaffold/templates").rglob("*") if p.is_file())
    templates = [f"sparkwright/{path}" for path in templates if "__pycache__" not in path and "_cache" not in path]
    assert len(templates) > 20 and set(templates) <= set(inside)
    assert (source / "examples/json/sparkwright_json.py").is_file()

    venv.create(tmp_path / "env", with_pip=True)
    here, python = tmp_path / "elsewhere", tmp_path / "env/bin/python"
    here.mkdir()
    run(python, "-m", "pip", "install", "--quiet", f"sparkwright[cpu] @ file://{wheel}", "hatchling", cwd=here)
    command = tmp_path / "env/bin/sparkwright"
    where = run(python, "-c", "import sparkwright; print(sparkwright.__file__)", cwd=here)
    assert str(tmp_path / "env") in where

    run(command, "plugin", "check", "lookup", cwd=here)
    run(command, "plugin", "new", "mine", "--kind", "drafter", cwd=here)
    offline = ("--quiet", "--no-build-isolation", "--no-deps", "--no-index")
    run(python, "-m", "pip", "install", *offline, here / "sparkwright-mine", cwd=here)
    for example in ("suffix_automaton", "trigram"):
        run(python, "-m", "pip", "install", *offline, source / "examples" / example, cwd=here)
    listed = json.loads(run(command, "plugins", "list", "--json", cwd=here))
    names = {item["name"] for item in listed["installed"]}
    assert {"mine", "suffix_automaton", "trigram", "deepseek_v4", "lookup"} <= names and not listed["unusable"]
    run(command, "plugin", "check", "mine", cwd=here)
    run(command, "plugin", "check", "suffix_automaton", cwd=here)
    settings = ("--set", "target.use=trigram", "--set", "drafter.use=suffix_automaton", "--set", "scheduler.use=fixed")
    said = run(command, "generate", *settings, "--prompt", "def sparkwright_", "--max-tokens", "60", "--json", cwd=here)
    assert json.loads(said)["stats"]["accepted"] > 0
