"""The example packages: short, of every kind, documented, and their own tests pass (those of conformance in `kit`)."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import attrs
import pytest
from tests.examples_packages.packages import EXAMPLES, NAMES, lines_of_code, module

from sparkwright.core.contracts import KINDS
from sparkwright.core.plugins import discover


def test_lines_of_code_are_counted_without_prose() -> None:
    assert lines_of_code('"""Two\nlines."""\n\n# a comment\nx = """not\nprose"""  # code\n"""About x."""\n') == 2


def test_there_is_one_of_every_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.syspath_prepend(str(EXAMPLES / name))
    entries = [EntryPoint(name, f"sparkwright_{name}", "sparkwright.plugins") for name in NAMES]
    found = discover(entries=entries, allow=",".join(NAMES), strict=True)
    assert {(item.provider.kind, item.provider.name) for item in found.installed} == {
        ("drafter", "suffix_automaton"), ("scheduler", "window"), ("verifier", "typical"), ("sampler", "json"),
        ("kernels", "expand"), ("observer", "meter"), ("target", "trigram"),
    }  # fmt: skip
    assert {item.provider.kind for item in found.installed} == set(KINDS)


@pytest.mark.parametrize("name", NAMES)
def test_each_is_short_and_documented(name: str) -> None:
    folder = EXAMPLES / name
    assert lines_of_code(module(name).read_text(encoding="utf-8")) < 150
    assert [path.name for path in folder.glob("*.py")] == [f"sparkwright_{name}.py"]
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["name"] == f"sparkwright-{name.replace('_', '-')}"
    assert project["entry-points"]["sparkwright.plugins"] == {name: f"sparkwright_{name}"}
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert f"pip install ./examples/{name}\n" in readme and f"sparkwright plugin check {name}" in readme
    assert f"[{name}]({name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_each_readme_lists_every_option_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.syspath_prepend(str(EXAMPLES / name))
    entries = [EntryPoint(name, f"sparkwright_{name}", "sparkwright.plugins") for name in NAMES]
    for item in discover(entries=entries, allow=",".join(NAMES), strict=True).installed:
        readme = (EXAMPLES / item.entry / "README.md").read_text(encoding="utf-8")
        rows = [line.split("|")[1:3] for line in readme.splitlines() if line.startswith("| `")]
        listed = {cells[0].strip(" `"): cells[1].strip(" `") for cells in rows}
        options = item.provider.options
        said = {field.name: getattr(options(), field.name) for field in attrs.fields(options)}
        written = {k: str(v).lower() if isinstance(v, bool) else f'"{v}"' if isinstance(v, str) else str(v)
                   for k, v in said.items()}  # fmt: skip
        assert listed == written, item.entry


def run_their_tests(tmp_path: Path, names: list[str], *more: str) -> str:
    """pytest on the examples' own tests, in one process of its own; its last line."""
    paths = " ".join(str(EXAMPLES / name) for name in names)
    settings = f"[pytest]\nfilterwarnings = error\npythonpath = {paths}\naddopts = --import-mode=importlib\n"
    (tmp_path / "pytest.ini").write_text(settings)
    tests = [str(EXAMPLES / name / "tests") for name in names]
    ini = ["-c", str(tmp_path / "pytest.ini"), "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ini, *more, *tests],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_they_do_what_they_say(tmp_path: Path) -> None:
    tail = run_their_tests(tmp_path, NAMES, "-k", "not conformance")
    assert int(tail.split(" passed")[0].split()[-1]) >= 25, tail


@pytest.mark.kit
@pytest.mark.parametrize("names", [["json"], [name for name in NAMES if name != "json"]], ids=["json", "the others"])
def test_they_keep_their_contracts(names: list[str], tmp_path: Path) -> None:
    tail = run_their_tests(tmp_path, names, "-k", "conformance")
    assert int(tail.split(" passed")[0].split()[-1]) >= 10 * len(names), tail


@pytest.mark.kit
def test_they_are_clean_under_mypy_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MYPYPATH", ":".join(str(EXAMPLES / name) for name in NAMES))
    files = [str(module(name)) for name in NAMES]
    files += [str(path) for name in NAMES for path in (EXAMPLES / name / "tests").glob("*.py")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", *files],
        cwd=EXAMPLES, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
