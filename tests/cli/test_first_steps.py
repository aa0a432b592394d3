"""What a newcomer stumbles over: names that are nearly right, empty prompts, narrow terminals, silence in a log."""

from __future__ import annotations

import io
import itertools
import json
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from sparkwright.core.cli import shared

TOY = ("--set", "target.use=toy", "--set", "engine.costs=none")


def test_a_misspelt_plugin_table_warns_with_the_nearest_name(cli: Cli) -> None:
    done = cli("config", "show", "--set", "drafter.dsprak.top_k=3")
    assert done.code == 0
    assert "warning: 'drafter.dsprak.top_k' is for the drafter plugin 'dsprak'" in done.err
    assert "and changes nothing; did you mean 'dspark'?" in done.err


def test_a_slot_set_to_a_name_says_which_key_takes_it(cli: Cli) -> None:
    for slot, name in (("drafter", "none"), ("observers", "log")):
        done = cli("config", "show", "--set", f"{slot}={name}")
        done.failed(2, f"'{slot}' is a table, not a value; did you mean {slot}.use={name}?")


def test_a_sampler_without_a_temperature_says_which_one_has_it(cli: Cli) -> None:
    done = cli("generate", "abc", *TOY, "--sampler", "greedy", "--temp", "0.5")
    done.failed(2, "--temp 0.5: the sampler 'greedy' has no temperature", "--sampler chain")


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_prompt_is_refused_before_anything_is_loaded(cli: Cli, empty: str) -> None:
    cli("generate", empty, *TOY, "--set", "target.toy.fault=build").failed(2, "the prompt is empty", "--raw")
    cli("generate", "-", *TOY, stdin=empty.encode()).failed(2, "the prompt is empty")


def test_a_model_that_no_tool_is_for_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba9"}))
    cli("models", "inspect", str(tmp_path)).failed(
        4, "holds a model of type 'mamba9', which no installed target knows", "inspect checkpoints: deepseek_v4"
    )
    (tmp_path / "config.json").unlink()
    cli("models", "inspect", str(tmp_path)).failed(4, "holds no config.json that can be read")


@pytest.mark.parametrize("command", [("plugins", "list"), ("kernels", "list"), ("config", "show", "--resolved")])
def test_tables_fit_eighty_columns_with_names_in_one_piece(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(shared.stdout, "width", 80)
    lines = cli(*command).out.splitlines()
    assert max(map(len, lines)) <= 80
    words = {word for line in lines for word in line.split()}
    whole = {"plugins": "cost_aware", "kernels": "grouped_rows_matmul", "config": "sampler.chain.repetition_penalty"}
    assert whole[command[0]] in words
    assert len(lines) < {"plugins": 45, "kernels": 45, "config": 80}[command[0]]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_rewrites_a_line_on_a_terminal_and_adds_one_now_and_then_to_a_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for stream, expected in (
        (io.StringIO(), "load 4/9\nload 8/9\n"),
        (Terminal(), "".join(f"\r\x1b[Kload {i}/9" for i in range(1, 10)) + "\r\x1b[K"),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        clock = itertools.count(0.0, shared.EVERY / 4 + 0.01)
        with shared.ProgressLine(clock=clock.__next__) as line:
            for step in range(1, 10):
                line.update("load", step, 9)
        assert stream.getvalue() == expected
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with shared.ProgressLine(False, clock=itertools.count(0.0, 100.0).__next__) as line:
        line.update("load", 1, 9)
    assert stream.getvalue() == ""
