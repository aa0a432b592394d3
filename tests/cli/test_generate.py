"""`sparkwright generate`: what it prints where, its exit codes, and that bad input is one clear message."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Cli, Done

TOY = ("--set", "target.use=toy", "--set", "engine.costs=none")
PLAIN = (*TOY, "--drafter", "none", "--sampler", "greedy")
Process = Callable[..., "subprocess.Popen[bytes]"]


def toy(option: str) -> tuple[str, str]:
    return "--set", f"target.toy.{option}"


# ------------------------------------------------------------------------------------------------------------- output


def test_text_goes_to_standard_output_and_measurements_to_standard_error(cli: Cli) -> None:
    done = cli("generate", "abc", *PLAIN, "-m", "5")
    assert (done.code, done.out) == (0, "defgh\n")
    assert "5 tokens, ended by max_tokens; prefill of 3 tokens" in done.err
    assert "promise: identity" in done.err and "rounds, none with drafts (drafter none" in done.err


def test_quiet_prints_the_text_and_nothing_else(cli: Cli) -> None:
    assert cli("generate", "abc", *PLAIN, "-m", "5", "--quiet") == Done(0, "defgh\n", "")


def test_speculation_is_summed_up(cli: Cli) -> None:
    done = cli(
        "generate", "abcdefghijklmnopqrstuvwxyzabc", *TOY, "--sampler", "greedy", "--scheduler", "fixed", "-m", "40"
    )
    assert done.out == ("abcdefghijklmnopqrstuvwxyz" * 2)[3:43] + "\n"
    assert "with drafts: tau" in done.err and "acceptance by position  1: 100%" in done.err


def test_json_is_one_object_with_everything_in_it(cli: Cli) -> None:
    done = cli("generate", "abc", *PLAIN, "-m", "5", "--json", "--seed", "9")
    assert done.err == ""
    data = done.json
    assert (data["text"], data["tokens"], data["finish"], data["seed"]) == ("defgh", [3, 4, 5, 6, 7], "max_tokens", 9)
    assert data["slots"]["target"] == {"requested": "toy", "effective": "toy", "reason": ""}
    assert data["stats"]["tokens"] == 5 and data["stats"]["tau"] is None and len(data["config_sha256"]) == 64


def test_a_trace_is_json_lines_from_request_to_result(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    done = cli("generate", "abcabcabc", *TOY, "--sampler", "greedy", "-m", "12", "--trace", str(path), "--json")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["request", *["round"] * done.json["stats"]["rounds"], "result"]
    assert lines[0]["prompt"] == [0, 1, 2] * 3 and lines[0]["eos"] == []
    emitted = [token for line in lines if line["event"] == "round" for token in line["tokens"]]
    assert lines[-1]["tokens"] == done.json["tokens"] == [done.json["tokens"][0], *emitted]


def test_watching_changes_nothing_that_is_hashed(cli: Cli) -> None:
    arguments = ("generate", "abc", *PLAIN, "-m", "2", "--json")
    plain = cli(*arguments).json["config_sha256"]
    assert cli(*arguments, "--trace", "t.jsonl").json["config_sha256"] == plain
    assert cli(*arguments, "--seed", "1").json["config_sha256"] != plain


def test_the_log_goes_to_standard_error_as_json_lines(cli: Cli) -> None:
    log = ("--set", "observers.use=['log']", "--set", "observers.log.format=json", "--set", "observers.log.rounds=true")
    done = cli("generate", "abc", *PLAIN, "-m", "3", "--quiet", *log)
    lines = [json.loads(line) for line in done.err.splitlines()]
    assert [line["event"] for line in lines] == ["request_started", *["round_finished"] * 2, "request_finished"]
    assert done.out == "def\n" and lines[-1]["tokens"] == 3
    done = cli("generate", "abc", *PLAIN, "-m", "3", "--quiet", "--set", "observers.use=['log']")
    assert done.out == "def\n" and "request_finished" in done.err and "round_finished" not in done.err


def test_flags_reach_the_slots_and_say_where_they_come_from(cli: Cli) -> None:
    def stopped(*flags: str) -> str:
        text: str = cli("generate", "abc", *PLAIN, "-m", "9", "--json", *flags).json["text"]
        return text

    assert stopped("--stop", "gh") == "def" and stopped("--stop", "zz", "--stop", "f") == "de"
    flags = ("--temperature", "0.5", "--top-p", "0.9", "--top-k", "3", "--min-p", "0.1", "--seed", "3", "--ignore-eos")
    assert cli("generate", "abc", *TOY, "-m", "3", "--json", *flags).code == 0
    cli("generate", "abc", *TOY, "--top-k", "-3").failed(2, "sampler.chain.top_k is -3", "(--top-k)")
    done = cli("generate", "abc", *PLAIN, "--temp", "0.7")
    done.failed(2, "--temp 0.7: the sampler 'greedy' has no temperature", "use --sampler chain")


def test_a_prompt_comes_from_a_file_or_from_standard_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("abc")
    for source, stdin in ((["-f", "prompt.txt"], b""), (["-"], b"abc")):
        assert cli("generate", *source, *PLAIN, "-m", "3", "--quiet", stdin=stdin).out == "def\n"


def test_a_configuration_file_and_the_environment_are_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.toml").write_text("[target]\nuse = 'toy'\n[generation]\nmax_tokens = 4\n[drafter]\nuse = 'none'")
    monkeypatch.setenv("SPARKWRIGHT_SAMPLER__USE", "greedy")
    assert cli("generate", "abc", "--config", "run.toml", "--quiet").out == "defg\n"
    cli("generate", "abc", "--config", "nowhere.toml").failed(2, "nowhere.toml: cannot be read")


def test_control_characters_of_a_model_do_not_reach_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from sparkwright.core.cli.generate import printable

    hostile = "a\x1b[31mé漢\n\tb\x9b\x07\r"
    assert printable(hostile) == hostile  # a file or pipe gets what the model wrote
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert printable(hostile) == "a\\x1b[31mé漢\n\tb\\x9b\\x07\\x0d"


def test_an_observer_that_fails_is_a_warning(cli: Cli) -> None:
    done = cli("generate", "abc", *PLAIN, "-m", "3", "--set", "observers.use=['odd']")
    assert (done.code, done.out) == (0, "def\n")
    assert "warning: observer plugin 'odd' raised in sparkwright_round_finished and was switched off" in done.err


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("abc", "--set", "target.use='mlx_lm'"), 4, ["no model"]),
        (("abc", "--model", "nowhere"), 4, ["nowhere does not exist", "expected a model folder"]),
        (("abc", *PLAIN, "--drafter", "lokup"), 2, ["no drafter plugin is named 'lokup'", "did you mean 'lookup'"]),
        (("abc", *PLAIN, "--set", "generation.sede=1"), 2, ["unknown key 'generation.sede'", "did you mean 'seed'"]),
        (("abc", *PLAIN, "--set", "nonsense"), 2, ["expected KEY=VALUE"]),
        (("abc", *PLAIN, *toy("fault=build")), 3, ["target plugin 'toy' raised in build: ZeroDivisionError"]),
        (("abc", *PLAIN, *toy("fault=describe")), 3, ["target plugin 'toy' raised in describe"]),
        (("abc", *PLAIN, *toy("fault=round")), 3, ["target plugin 'toy' raised in sparkwright_target_forward: Zero"]),
        (("abc", *PLAIN, *toy("fault=nonfinite")), 5, ["target plugin 'toy' gave logits that are not finite"]),
        (("", *PLAIN), 2, ["the prompt is empty"]),
        (("abcdef", *PLAIN, *toy("context=4")), 2, ["the prompt has 6 tokens and the model's context is 4"]),
        (("abc", *PLAIN, "-m", "0"), 2, ["generation.max_tokens is 0", "(--max-tokens)"]),
        (("abc", *PLAIN, "-m", "x"), 2, ["'x' is not a valid integer"]),
        (("abc", *PLAIN, "--stop", ""), 2, ["stop is ['']"]),
        (("abc", *PLAIN, "--trace", "nowhere/t.jsonl"), 6, ["nowhere/t.jsonl cannot be written: No such file"]),
        (("abc", *PLAIN, "--trace", "."), 6, ["cannot be written: Is a directory"]),
        (("abc", *PLAIN, "--set", "observers.use=['trace']"), 2, ["observers.trace.path is not set"]),
        (("-f", "nowhere.txt", *PLAIN), 2, ["the prompt file nowhere.txt cannot be read"]),
        (("abc", "-f", "x", *PLAIN), 2, ["give one prompt"]),
        ((*PLAIN,), 2, ["give one prompt"]),
        (("abc", *PLAIN, "--chat"), 2, ["no chat format"]),
        (("abc", *PLAIN, "--system", "be brief"), 2, ["--system needs a chat"]),
        (("abc", *TOY, "--sampler", "plane"), 2, ["no sampler plugin is named 'plane'"]),
        (("abc", *TOY, "--verifier", "greedy"), 3, ["verifier 'greedy' is exact only without randomness"]),
        (("abc", *PLAIN, "--nonsense"), 2, ["No such option"]),
        (("a\udcffb", *PLAIN), 2, ["the prompt is not valid text", "at character 1"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_clear_error(cli: Cli, arguments: tuple[str, ...], code: int, says: list[str]) -> None:
    done = cli("generate", *arguments)
    done.failed(code, *says)


def test_a_prompt_that_is_not_utf_8_is_refused_with_the_byte(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    cli("generate", "-f", "latin.txt", *PLAIN).failed(2, "latin.txt is not UTF-8: byte 0xe9 at offset 3")
    cli("generate", "-", *PLAIN, stdin=b"\xff").failed(2, "standard input is not UTF-8: byte 0xff at offset 0")


def test_a_plugin_that_cannot_be_imported_is_no_harm_unless_it_is_asked_for(cli: Cli) -> None:
    assert cli("generate", "abc", *PLAIN, "-m", "1", "--quiet") == Done(0, "d\n", "")
    done = cli("generate", "abc", *PLAIN, "--drafter", "bad")
    done.failed(2, "no drafter plugin is named 'bad'", "broken: swt_bad (swt-toys 1.2): RuntimeError: on purpose")
    done = cli("--strict-plugins", "generate", "abc", *PLAIN)
    done.failed(3, "--strict-plugins", "swt_bad (swt-toys 1.2): RuntimeError: on purpose")


def test_an_allow_list_that_leaves_nothing_or_names_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKWRIGHT_PLUGINS", "")
    cli("generate", "abc", *PLAIN).failed(2, "no target plugin is named 'toy'", "installed: none")
    monkeypatch.setenv("SPARKWRIGHT_PLUGINS", "chian")
    cli("generate", "abc", *PLAIN).failed(2, "SPARKWRIGHT_PLUGINS names the plugin 'chian'", "did you mean 'chain'")


# ----------------------------------------------------------------------------------- a process and its surroundings


def quiet_end(child: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    try:
        out, err = child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        raise
    text = err.decode()
    assert "Traceback" not in text and "internal error" not in text and "Exception ignored" not in text, text
    return child.returncode, (out or b"").decode(), text


def test_a_reader_that_goes_away_ends_it_quietly(process: Process) -> None:
    reader, writer = os.pipe()
    child = process("generate", "abc", *PLAIN, "-m", "1000000", stdout=writer)
    os.close(writer)
    assert os.read(reader, 4)
    os.close(reader)
    code, _, err = quiet_end(child)
    assert (code, err) == (141, "")


def test_a_reader_that_goes_away_before_json_ends_it_quietly(process: Process) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    child = process("generate", "abc", *PLAIN, "-m", "5", "--json", stdout=writer)
    os.close(writer)
    code, _, err = quiet_end(child)
    assert (code, err) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_is_one_error(process: Process, more: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        child = process("generate", "abc", *PLAIN, "-m", "5", *more, stdout=full)
        code, _, err = quiet_end(child)
    assert code == 6 and err == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_trace_that_cannot_be_written_on_is_a_warning(process: Process) -> None:
    code, out, err = quiet_end(process("generate", "abc", *PLAIN, "-m", "5", "--trace", "/dev/full"))
    assert (code, out) == (0, "defgh\n")
    assert "warning: observer plugin 'trace' raised in sparkwright_request_started and was switched off" in err


def test_ctrl_c_ends_the_text_and_prints_what_was_measured(process: Process) -> None:
    child = process("generate", "abc", *PLAIN, "-m", "1000000")
    assert child.stdout is not None
    assert b"".join(child.stdout.read(1) for _ in range(10)) == b"defghijklm"
    child.send_signal(signal.SIGINT)
    code, out, err = quiet_end(child)
    assert code == 130 and out.endswith("\n")
    assert f"{10 + len(out) - 1} tokens, ended by cancelled" in err and "decode" in err and "promise" in err


def test_ctrl_c_while_a_model_loads_ends_it(process: Process) -> None:
    child = process("generate", "abc", *PLAIN, *toy("fault=load"))
    assert child.stdout is not None
    assert child.stdout.readline() == b"loading\n"
    child.send_signal(signal.SIGINT)
    assert quiet_end(child) == (130, "", "\ninterrupted\n")


def test_bytes_that_are_no_text_in_an_argument_are_refused(process: Process) -> None:
    code, _, err = quiet_end(process("generate", b"caf\xe9", *PLAIN))
    assert code == 2 and err.startswith("error: the prompt is not valid text")


def test_an_output_that_cannot_show_a_character_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    from sparkwright.core.cli.shared import write
    from sparkwright.core.errors import OutputError

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    write("plain")
    with pytest.raises(OutputError, match="takes ascii and cannot show 'é'"):
        write("caf\xe9")


def test_a_fault_of_our_own_is_one_line_and_seventy(process: Process, package: Path) -> None:
    toys = package / "swt_toys.py"
    broken = (
        "\nimport sparkwright.core.assembly as ours\ndef run(self):\n    raise ZeroDivisionError('ours')\n"
        "ours._Assembly.run = run\n"
    )
    toys.write_text(toys.read_text() + broken)
    child = process("generate", "abc", *PLAIN)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 70 and b"Traceback" not in err
    assert err.startswith(b"internal error: ZeroDivisionError: ours\n") and b"SPARKWRIGHT_DEBUG=1" in err


def test_force_reaches_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    from sparkwright.core.cli.generate import generate

    seen: dict[str, object] = {}

    def assemble(config: Any, **_: object) -> None:
        seen["force"] = config.engine.force
        raise click.Abort

    monkeypatch.setattr("sparkwright.core.assembly.assemble", assemble)
    for arguments, force in ((["x"], False), (["x", "--force"], True)):
        with pytest.raises(click.Abort):
            generate.main(arguments, standalone_mode=False)
        assert seen["force"] is force
