"""`plugin new`: what it refuses, and that what it makes is whole and clean for any name."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.scaffold.packages import one_of_each

from sparkwright.core import contracts
from sparkwright.core.cli.plugin_new import new
from sparkwright.core.errors import ConfigError, OutputError
from sparkwright.core.plugins import Catalogue, Installed, Unusable, providers_of
from sparkwright.core.scaffold import KINDS, LONGEST, new_package, taken_by


def test_there_is_a_template_for_every_kind_of_plugin() -> None:
    assert sorted(KINDS.values()) == sorted(contracts.KINDS)


BAD = ["", "9lives", "my-plugin", "My", "a b", "../x", "naïve", "use", "model", "x" * 41, "a\n"]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_name_is_refused_in_one_sentence_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        new_package(name, "drafter", tmp_path / "made")
    assert "\n" not in str(caught.value) and "expected" in str(caught.value)
    assert not (tmp_path / "made").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for there in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(OutputError, match=r"(is not empty|is a file); name another folder"):
            new_package("mine", "sampler", there)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert new_package("mine", "sampler", tmp_path / "empty").files


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot be written \(Not a directory\)"):
        new_package("mine", "sampler", tmp_path / "file" / "below")


def test_a_name_that_is_taken_is_said(tmp_path: Path) -> None:
    made = CliRunner().invoke(new, ["lookup", "--kind", "drafter", "--out", str(tmp_path / "a")])
    assert made.exit_code == 0 and "note: a drafter 'lookup' comes from sparkwright" in made.stderr
    made = CliRunner().invoke(new, ["lookup", "--kind", "sampler", "--out", str(tmp_path / "b")])
    assert "note: the plugin name 'lookup' is taken by sparkwright" in made.stderr
    made = CliRunner().invoke(new, ["made_drafter", "--kind", "drafter", "--out", str(tmp_path / "c")])
    assert made.exit_code == 0 and not made.stderr and "pytest" in made.stdout


def test_a_name_taken_by_a_plugin_that_does_not_load_is_taken_too(tmp_path: Path) -> None:
    broken = Catalogue((), (Unusable("mine", "their-package", "2.0", "broken", "ImportError: no"),))
    assert taken_by("mine", "drafter", broken) == "the plugin name 'mine' is taken by their-package"
    assert taken_by("other", "drafter", broken) is None
    one = providers_of(_imported(one_of_each(tmp_path)["kernel"].folder, "made_kernel"), "k")[0]
    other = Catalogue((Installed(one, "entry", "their-package", "1"),))
    assert taken_by("made_kernel", "kernel", other) == "a kernel 'made_kernel' comes from their-package 1"


def _imported(folder: Path, name: str) -> object:
    file = folder / "src" / f"sparkwright_{name}" / "__init__.py"
    spec = importlib.util.spec_from_file_location(f"sparkwright_{name}_for_a_test", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["a", "none", "class", "a__b_", "x" * LONGEST])
def test_any_name_gives_whole_packages(name: str, tmp_path: Path) -> None:
    for kind, slot in KINDS.items():
        made = new_package(name, kind, tmp_path / kind)
        texts = {file: (made.folder / file).read_text(encoding="utf-8") for file in made.files}
        for file, text in texts.items():
            left = [word for word in ("my_plugin", "my-plugin", "my_kind", "MY_") if word in text]
            assert not left, (kind, file, left)
            if file.endswith(".py"):
                ast.parse(text)
        project = tomllib.loads(texts["pyproject.toml"])
        entry = project["project"]["entry-points"]["sparkwright.plugins"]
        assert entry == {name: f"sparkwright_{name}"} and f"src/sparkwright_{name}/__init__.py" in texts
        assert made.command in texts["README.md"] and f"plugin check {name}" in texts["README.md"]
        assert f": {'an' if kind == 'observer' else 'a'} {kind} for sparkwright" in texts["README.md"]
        assert ("sparkwright compare" in texts["README.md"]) == (kind != "observer")  # it replaces nothing
        (provider,) = providers_of(_imported(made.folder, name), name)
        assert (provider.kind, provider.name) == (slot, name)


def test_what_is_made_is_clean_by_its_own_rules_for_long_names_too(tmp_path: Path) -> None:
    one_of_each(tmp_path)
    one_of_each(tmp_path, "x" * (LONGEST - 9))
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise", "."],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_default_folder_is_named_after_the_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = new_package("two__words_", "observer")
    assert made.folder == Path("sparkwright-two-words") and (tmp_path / made.folder / "README.md").is_file()
