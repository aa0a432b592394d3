"""The command: what it passes on, what it prints, how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sparkwright.core.compare as package
from sparkwright.core.cli.compare import compare
from sparkwright.core.compare import CompareError, CompareResult
from sparkwright.core.compare.runner import Settings
from sparkwright.core.compare.simulated import simulated_spec


@pytest.fixture
def asked(simulated: Callable[..., CompareResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Puts a simulated comparison behind the command and collects what the command asked for."""
    seen: dict[str, Any] = {}

    def fake(base: Any, **options: Any) -> CompareResult:
        seen.update(options, base=base)
        options["announce"](["arm B (swap) differs from the base in 1 resolved values, no others:", "  a.b: 1 -> 2"])
        if options["self_test"]:
            quick = Settings(tokens=8, gate=1, profile=0)
            times, out = options["self_test"], tmp_path / f"test-{options['self_test']}"
            return simulated(simulated_spec("A"), pairs=4, self_test=times, settings=quick, out=out)
        return simulated()

    monkeypatch.setattr(package, "compare", fake)
    monkeypatch.chdir(tmp_path)
    return seen


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(compare, list(arguments))


def test_options_reach_the_library_and_the_table_ends_with_the_verdict(asked: dict[str, Any]) -> None:
    run = invoke(
        "my.toml", "--swap", "drafter.use=none", "--swap", "drafter.use=lookup", "--model", "m", "--set", "a.b=1",
        "--allow", "kernels", "--prompts", "code", "--pairs", "12", "--tokens", "40", "--eos", "--seed", "3",
        "--isolate", "--cooldown", "0.5", "--no-profile", "--out", "there",
    )  # fmt: skip
    assert run.exit_code == 0, run.output
    want = {
        "base": Path("my.toml"), "swap": ("drafter.use=none", "drafter.use=lookup"), "allow": ("kernels",),
        "sets": ("a.b=1", "target.model=m"), "prompts": "code", "pairs": 12, "tokens": 40, "ignore_eos": False,
        "seed": 3, "isolate": True, "cooldown": 0.5, "profile": 0, "out": Path("there"), "self_test": 0,
        "margin": 0.03, "alpha": 0.05, "gate": 3, "b": (),
    }  # fmt: skip
    assert {key: asked[key] for key in want} == want
    assert "a.b: 1 -> 2" in run.stderr
    flat = re.sub(r"\s+", " ", run.stdout)
    assert "swap is faster (+" in flat and "wins / losses / ties (within 0.5%) 6 / 0 / 0" in flat
    assert flat.rstrip().endswith("report.html")


def test_json_is_one_object_with_the_raw_pairs(asked: dict[str, Any]) -> None:
    run = invoke("my.toml", "--swap", "drafter.use=none", "--json")
    data = json.loads(run.stdout)
    assert data["complete"] and len([m for m in data["measurements"] if m["kind"] == "pair"]) == 6


def test_without_out_the_same_command_has_the_same_folder_and_another_has_another(asked: dict[str, Any]) -> None:
    folders = []
    for arguments in (
        ["x.toml", "--swap", "a.b=1"], ["x.toml", "--swap", "a.b=1"], ["x.toml", "--swap", "a.b=2"],
        ["x.toml", "--swap", "a.b=1", "--pairs", "9"], ["x.toml", "--swap", "a.b=1", "--margin", "0.1"],
    ):  # fmt: skip
        assert invoke(*arguments).exit_code == 0
        folders.append(asked["out"])
    assert folders[0] == folders[1] == folders[4] and len(set(folders)) == 3


def test_the_self_test_has_repetitions_and_shows_its_rate(asked: dict[str, Any]) -> None:
    run = invoke("my.toml", "--self-test", "--repeats", "6", "--pairs", "4")
    assert asked["self_test"] == 6
    assert "A against A, 6 times 4 pairs" in re.sub(r"\s+", " ", run.stdout)
    assert invoke("my.toml", "--self-test").exit_code == 0 and asked["self_test"] == 20
    assert "--repeats belongs to --self-test" in invoke("my.toml", "--repeats", "6").output
    assert isinstance(invoke("my.toml", "--self-test", "--repeats", "0").exception, CompareError)


def test_two_bases_are_refused(asked: dict[str, Any]) -> None:
    run = invoke("x.toml", "--a", "y.toml", "--b", "z.toml")
    assert run.exit_code == 2 and "the base is given twice" in run.output
    assert invoke("--a", "y.toml", "--b", "z.toml").exit_code == 0
    assert asked["base"] == Path("y.toml") and asked["b"] == (Path("z.toml"),)


def test_an_interruption_says_where_the_pairs_are(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> CompareResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(package, "compare", interrupted)
    run = invoke("x.toml", "--swap", "a.b=1", "--out", "there")
    assert run.exit_code != 0
    assert "what was measured is kept in there; the same command continues from there" in run.output
