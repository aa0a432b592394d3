"""The generated reference is what the code says now, and nothing of the five sources can come or go unnoticed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import click
import pytest

from sparkwright.core import cli as cli_module
from sparkwright.core import hookspecs
from sparkwright.core.config import SLOTS, TABLES
from sparkwright.core.contracts import option
from sparkwright.core.plugins import Catalogue

ROOT = Path(__file__).parents[2]


def test_the_committed_reference_matches_the_code() -> None:
    run = subprocess.run([sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def load(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # inspect looks modules up by name
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def generate(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load(ROOT / "docs/generate.py", "generate", monkeypatch)


Change = Callable[[ModuleType, pytest.MonkeyPatch, Path], None]


def hook(edit: Callable[[str], str]) -> Change:
    def change(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        source = Path(str(hookspecs.__file__)).read_text(encoding="utf-8")
        changed = edit(source)
        assert changed != source
        (folder / "changed_hookspecs.py").write_text(changed, encoding="utf-8")
        changed_module = load(folder / "changed_hookspecs.py", "changed_hookspecs", monkeypatch)
        monkeypatch.setattr(generate, "hookspecs", changed_module)

    return change


def contract(old: str, new: str) -> Change:
    def change(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        source = Path(str(generate.contracts_module.__file__)).read_text(encoding="utf-8")
        assert old in source
        (folder / "changed_contracts.py").write_text(source.replace(old, new), encoding="utf-8")
        changed = load(folder / "changed_contracts.py", "changed_contracts", monkeypatch)
        monkeypatch.setattr(generate, "contracts_module", changed)

    return change


def a_hook_comes(source: str) -> str:
    return source + '\n\n@hookspec\ndef sparkwright_new_hook(what: int) -> None:\n    """Observers: something new."""\n'


def a_hook_goes(source: str) -> str:
    before, found, _ = source.rpartition("@hookspec\ndef sparkwright_engine_closed")
    assert found
    return before.rstrip() + "\n"


def an_argument_comes(source: str) -> str:
    return source.replace("def sparkwright_engine_closed()", "def sparkwright_engine_closed(why: str)")


def catalogue(edit: Callable[[Catalogue], Catalogue]) -> Change:
    def change(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        changed = edit(generate.bundled())
        monkeypatch.setattr(generate, "bundled", lambda: changed)

    return change


@attrs.frozen
class OneOption:
    size: int = option(1, "how much")


def a_provider_comes(found: Catalogue) -> Catalogue:
    new = attrs.evolve(found.get("drafter", "lookup", "a test").provider, name="new", summary="a new one")
    return found.with_providers(new)


def a_provider_goes(found: Catalogue) -> Catalogue:
    return attrs.evolve(found, installed=tuple(i for i in found.installed if i.provider.name != "lookup"))


def options_become(cls: type) -> Callable[[Catalogue], Catalogue]:
    def edit(found: Catalogue) -> Catalogue:
        return found.with_providers(attrs.evolve(found.get("drafter", "lookup", "a test").provider, options=cls))

    return edit


def a_flag_comes(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from sparkwright.core.cli.doctor import doctor

    monkeypatch.setattr(doctor, "params", [*doctor.params, click.Option(["--new"], help="Something new.")])


def a_flag_goes(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    from sparkwright.core.cli.doctor import doctor

    monkeypatch.setattr(doctor, "params", doctor.params[:-1])


def table(edit: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def change(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setattr(generate, "TABLES", edit(dict(TABLES)))

    return change


def slot(generate: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(generate, "SLOTS", SLOTS | {"new": "none"})


CHANGES: dict[str, tuple[str, Change]] = {
    "a hook comes": ("hooks", hook(a_hook_comes)),
    "a hook goes": ("hooks", hook(a_hook_goes)),
    "a hook takes another argument": ("hooks", hook(an_argument_comes)),
    "a contract's field comes": ("contracts", contract("    block: int\n", "    block: int\n    new: int = 0\n")),
    "a contract's method goes": ("contracts", contract("def encode_part(", "def _encode_part(")),
    "a contract's constant changes": ("contracts", contract("WIDEST_VERIFY = 8", "WIDEST_VERIFY = 9")),
    "an argument of option comes": ("contracts", contract("help: str, validator", "help: str, why: str, validator")),
    "a provider comes": ("plugins", catalogue(a_provider_comes)),
    "a provider goes": ("plugins", catalogue(a_provider_goes)),
    "an option comes": ("plugins", catalogue(options_become(OneOption))),
    "the options go": ("plugins", catalogue(options_become(attrs.make_class("NoOptions", [])))),
    "a flag comes": ("command_line", a_flag_comes),
    "a flag goes": ("command_line", a_flag_goes),
    "a configuration table comes": ("configuration", table(lambda t: t | {"new": OneOption})),
    "a configuration table goes": ("configuration", table(lambda t: {k: v for k, v in t.items() if k != "engine"})),
    "a slot comes": ("configuration", slot),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_check_fails_when(
    what: str, generate: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, change = CHANGES[what]
    monkeypatch.setattr(generate, "FOLDER", tmp_path / "docs" / "reference")
    generate.FOLDER.mkdir(parents=True)
    monkeypatch.setattr(generate, "PAGES", {f"{page}.md": getattr(generate, page)})
    assert generate.main(check=False) == 0 and generate.main(check=True) == 0
    change(generate, monkeypatch, tmp_path)
    assert generate.main(check=True) == 1
    assert f"{page}.md" in capsys.readouterr().err


@pytest.mark.parametrize("gone", [False, True])
def test_a_command_without_its_exit_statuses_stops_the_generator(
    gone: bool, generate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = dict(cli_module.COMMANDS)
    if gone:
        del commands["doctor"]
    else:
        commands["doctor2"] = commands["doctor"]
    monkeypatch.setattr(cli_module, "COMMANDS", commands)
    with pytest.raises(SystemExit, match="doctor"):
        list(generate.exit_statuses())


def test_an_option_without_help_stops_the_generator(generate: ModuleType) -> None:
    bare = attrs.make_class("Bare", {"size": attrs.field(default=1, type=int)})
    with pytest.raises(KeyError, match="help"):
        generate.options_table(bare)
