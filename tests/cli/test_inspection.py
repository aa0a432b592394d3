"""`sparkwright config` and `sparkwright plugins`, and the group itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from sparkwright.core.cli import COMMANDS


def test_every_command_has_help_and_a_summary(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    for name in COMMANDS:
        assert name in done.out
    for name in ("generate", "config", "plugins"):
        done = cli(name, "--help")
        assert done.code == 0 and "Usage: sparkwright" in done.out


def test_the_group_alone_and_unknown_commands(cli: Cli) -> None:
    assert cli().code == 2
    cli("generat").failed(2, "No such command")
    done = cli("--version")
    assert done.code == 0 and done.out.startswith("sparkwright, version ")


def test_config_show_says_what_is_set_and_where(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.toml").write_text("[generation]\nseed = 3\n")
    monkeypatch.setenv("SPARKWRIGHT_SAMPLER__CHAIN__TOP_P", "0.5")
    arguments = ("config", "show", "--config", "run.toml", "--set", "drafter.use=none")
    values = cli(*arguments, "--json").json["values"]
    assert values == {
        "generation.seed": {"value": 3, "origin": "run.toml"},
        "sampler.chain.top_p": {"value": 0.5, "origin": "environment SPARKWRIGHT_SAMPLER__CHAIN__TOP_P"},
        "drafter.use": {"value": "none", "origin": "--set drafter.use=none"},
    }
    resolved = cli(*arguments, "--json", "--resolved").json
    assert resolved["values"]["engine.prefill_chunk"] == {"value": 512, "origin": "default"}
    assert resolved["sha256"] == cli(*arguments, "--json").json["sha256"]
    text = cli(*arguments, "--resolved")
    assert text.code == 0 and "generation.seed" in text.out and resolved["sha256"] in text.out
    assert "Nothing is set" in cli("config", "show").out or "sampler.chain.top_p" in cli("config", "show").out


def test_config_show_reports_every_problem(cli: Cli) -> None:
    done = cli("config", "show", "--set", "generation.sede=1", "--set", "drafter.use=lokup")
    done.failed(2, "'generation.sede'", "'lokup'")


def test_warnings_are_shown(cli: Cli) -> None:
    done = cli("config", "show", "--set", "drafter.absent.x=1")
    assert done.code == 0 and "warning: 'drafter.absent.x' is for the drafter plugin 'absent'" in done.err


def test_plugins_list_shows_what_is_usable_and_what_is_not(cli: Cli) -> None:
    done = cli("plugins", "list", "--json")
    data = done.json
    found = {(item["kind"], item["name"]): item for item in data["installed"]}
    assert found["target", "toy"]["distribution"] == "swt-toys" and found["target", "toy"]["version"] == "1.2"
    assert ("drafter", "lookup") in found
    (broken,) = [item for item in data["unusable"] if item["entry"] == "swt_bad"]
    assert (broken["why"], broken["reason"]) == ("broken", "RuntimeError: on purpose")
    text = cli("plugins", "list")
    assert "toy" in text.out and "broken: swt_bad (swt-toys 1.2): RuntimeError: on purpose" in text.out
    cli("--strict-plugins", "plugins", "list").failed(3, "swt_bad")


def test_plugins_show_lists_options_with_types_defaults_and_help(cli: Cli) -> None:
    (item,) = cli("plugins", "show", "toy", "--json").json
    assert item["options"][0]["name"] == "fault" and item["options"][0]["type"] == "text"
    assert item["options"][1] == {
        "name": "after", "type": "a whole number", "default": 5, "help": "forwards before a fault in a round",
    }  # fmt: skip
    done = cli("plugins", "show", "target:toy")
    assert done.code == 0 and "target 'toy': the alphabet" in done.out and "[target.toy]" in done.out
    assert len(cli("plugins", "show", "greedy", "--json").json) == 2  # a verifier and a sampler
    assert len(cli("plugins", "show", "sampler:greedy", "--json").json) == 1
    cli("plugins", "show", "tou").failed(3, "no plugin is named 'tou'", "swt_bad")
    cli("plugins", "show", "drafter:toy").failed(3, "no plugin is named 'drafter:toy'")
