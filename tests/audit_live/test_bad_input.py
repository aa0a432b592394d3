"""Every audit command given nonsense says one clear sentence, with --json too; Ctrl-C in the middle ends it at once."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.core.cli import main
from sparkwright.core.cli.audit import finite
from sparkwright.core.hookspecs import hookimpl

AUDITS = ("law", "identity", "consistency", "rollback", "kernels")
OF_A_MODEL = AUDITS[1:]
TEXTS = ("consistency", "rollback")
PROMPTS = ("identity", "kernels")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """run("audit", ...) -> exit status, standard output, standard error; a fault of ours raises (SPARKWRIGHT_DEBUG)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "blank.txt").write_text("  \n\n \n")
    (tmp_path / "three.txt").write_text("w1 w2 w3")
    (tmp_path / "binary.txt").write_bytes(b"\x7fELF\x02\x01\xff\xfe\x00\x80")
    (tmp_path / "nul.txt").write_bytes(b"w1 \x00 w2\n" * 3)
    (tmp_path / "folder.txt").mkdir()

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sparkwright", "audit", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        assert isinstance(left.value.code, int)
        return (left.value.code, *capfd.readouterr())

    return call


def refused(run: Run, code: int, says: str, *arguments: str) -> None:
    """The same sentence with and without --json, on standard error, and nothing on standard output."""
    for more in ((), ("--json",)):
        left, out, err = run(*arguments, *more)
        assert left == code and out == "", (left, out, err)
        assert says in err and "Traceback" not in err and "internal error" not in err, err
        assert sum(line.lower().startswith("error:") for line in err.splitlines()) == 1, err


@pytest.mark.parametrize("audit", AUDITS)
def test_wrong_settings(run: Run, audit: str) -> None:
    refused(run, 2, "unknown key 'verifier.uze'; did you mean", audit, "--set", "verifier.uze=coupled")
    refused(run, 2, "did you mean 'coupled'", audit, "--set", "verifier.use=cuopled")
    refused(run, 2, "temperature", audit, "--set", "sampler.chain.temperature=warm")
    refused(run, 2, "KEY=VALUE", audit, "--set", "nothing")
    refused(run, 2, "missing.toml", audit, "--config", "missing.toml")


@pytest.mark.parametrize("audit", OF_A_MODEL)
def test_models_that_are_none(run: Run, audit: str, tmp_path: Path) -> None:
    refused(run, 4, "no/such/model", audit, "--model", "no/such/model")
    (tmp_path / "hollow").mkdir()
    refused(run, 3, "no target plugin recognises", audit, "--model", "hollow")
    (tmp_path / "hollow" / "config.json").write_text('{"model_type": "deepseek_v4"}')
    refused(run, 4, "is missing", audit, "--model", "hollow")
    (tmp_path / "hollow" / "config.json").write_bytes(b"\x00\xff")
    refused(run, 3, "no target plugin recognises", audit, "--model", "hollow")


@pytest.mark.parametrize("audit", TEXTS)
def test_texts_that_are_none(run: Run, audit: str, folder: Path) -> None:
    model = ("--model", str(folder))
    least = {"consistency": "at least 16 are needed", "rollback": "at least 36 are needed"}[audit]
    refused(run, 2, "the text has 0 tokens; " + least, audit, *model, "--text", "empty.txt")
    refused(run, 2, "the text has 3 tokens; " + least, audit, *model, "--text", "three.txt")
    refused(run, 2, "the text has 9 tokens; " + least, audit, *model, "--text", "nul.txt")
    refused(run, 2, "binary.txt is not UTF-8 (at byte 6)", audit, *model, "--text", "binary.txt")
    refused(run, 2, "missing.txt cannot be read: No such file", audit, *model, "--text", "missing.txt")
    refused(run, 2, "folder.txt cannot be read: Is a directory", audit, *model, "--text", "folder.txt")


@pytest.mark.parametrize("audit", PROMPTS)
def test_prompts_that_are_none(run: Run, audit: str, folder: Path) -> None:
    model = ("--model", str(folder), *(("--set", "verifier.use=coupled") if audit == "identity" else ()))
    refused(run, 2, "empty.txt holds no line of text", audit, *model, "--prompts", "empty.txt")
    refused(run, 2, "blank.txt holds no line of text", audit, *model, "--prompts", "blank.txt")
    refused(run, 2, "binary.txt is not UTF-8 (at byte 6)", audit, *model, "--prompts", "binary.txt")
    refused(run, 2, "missing.txt cannot be read", audit, *model, "--prompts", "missing.txt")


def test_numbers_that_make_no_sense(run: Run, folder: Path) -> None:
    model = ("--model", str(folder))
    for arguments in (
        ("law", "--trials", "0"), ("law", "--trials", "many"), ("law", "--seed", "-1"), ("law", "--drafts", "dark"),
        ("identity", *model, "--seeds", "0"), ("identity", *model, "--tokens", "0"),
        ("consistency", *model, "--tokens", "15"), ("consistency", *model, "--reference", "-1"),
        ("rollback", *model, "--tokens", "35"), ("kernels", *model, "--tokens", "0"),
    ):  # fmt: skip
        code, out, err = run(*arguments)
        assert code == 2 and out == "" and "Invalid value for" in err and "Traceback" not in err, (arguments, err)


@pytest.mark.parametrize(
    ("kind", "name", "method", "home"),
    [
        ("sampler", "chain", "advance", "sparkwright.plugins.samplers.chain.Chain"),
        ("verifier", "stochastic", "verify", "sparkwright.plugins.verifiers.stochastic.Stochastic"),
        ("scheduler", "fixed", "plan", "sparkwright.plugins.schedulers.fixed.Fixed"),
    ],
)
def test_a_plugin_that_raises_in_the_audit_of_the_law(
    run: Run, monkeypatch: pytest.MonkeyPatch, kind: str, name: str, method: str, home: str
) -> None:
    @hookimpl
    def oops(self: object) -> None:
        raise ValueError("oops")

    hook = f"sparkwright_{kind}_{method}"
    monkeypatch.setattr(f"{home}.{hook}", oops)
    says = f"{kind} plugin '{name}' raised in {hook}: ValueError: oops"
    refused(run, 3, says, "law", "--trials", "10", "--set", f"{kind}.use={name}")


def test_a_promise_that_another_audit_is_for(run: Run, folder: Path) -> None:
    model = ("--model", str(folder))
    refused(run, 2, "its audit is `audit law`", "identity", *model, "--set", "verifier.use=stochastic")


@pytest.mark.parametrize("audit", AUDITS)
def test_every_outcome_is_json(run: Run, audit: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(f"w{(7 * i * i + i) % 250}" for i in range(90)))
    (tmp_path / "prompts.txt").write_text("w1 w2 w3 w4 w5\n")
    model = ("--model", str(folder))
    arguments = {
        "law": ("--trials", "6000", "--drafts", "point"),
        "identity": (*model, "--set", "verifier.use=coupled", "--set", "scheduler.use=fixed",
                     "--prompts", "prompts.txt", "--tokens", "12"),
        "consistency": (*model, "--text", "text.txt", "--tokens", "17"),
        "rollback": (*model, "--text", "text.txt", "--tokens", "80"),
        "kernels": (*model, "--prompts", "prompts.txt", "--tokens", "2"),
    }[audit]  # fmt: skip
    code, out, err = run(audit, *arguments, "--json")
    data = json.loads(out, parse_constant=pytest.fail)  # NaN and Infinity are no JSON
    assert data["audit"] == audit and code == (9 if audit == "kernels" else 0), (code, data["meaning"])
    assert data["undecided"] is (audit == "kernels") and data["passed"] is (audit != "kernels")
    assert err == ""


def test_what_is_not_finite_becomes_null() -> None:
    data = {"a": float("inf"), "b": [1.5, float("nan"), {"c": -float("inf")}], "d": (True, None, "x", 3)}
    assert finite(data) == {"a": None, "b": [1.5, None, {"c": None}], "d": [True, None, "x", 3]}


@pytest.mark.exact
@pytest.mark.parametrize(
    ("audit", "word"),
    [
        (("law", "--trials", "100000000"), b"trials"),
        (("consistency", "--tokens", "2000"), b"decode "),
        (("rollback", "--tokens", "2000"), b"clean run"),
        (("identity", "--seeds", "10000", "--set", "verifier.use=coupled"), b"identity"),
        (("kernels", "--tokens", "3000"), b"load"),
    ],
)
def test_ctrl_c_in_the_middle_ends_it(audit: tuple[str, ...], word: bytes, tmp_path: Path) -> None:
    """With the bundled model: nothing on standard output, the progress line taken back, one word, its own status."""
    own, theirs = pty.openpty()
    environ = {n: v for n, v in os.environ.items() if n != "SPARKWRIGHT_DEBUG"} | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", "from sparkwright.core.cli import main; main()", "audit", *audit]
    child = subprocess.Popen(command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = b""
    while word not in seen:
        seen += _read(own)
    child.send_signal(signal.SIGINT)
    rest = b""
    while part := _read(own):
        rest += part
    out, _ = child.communicate(timeout=60)
    os.close(own)
    assert (child.returncode, out) == (130, b""), rest[-500:]
    assert rest.endswith(b"\r\x1b[K\r\ninterrupted\r\n") and b"Traceback" not in rest, "the progress line is taken back"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left behind"


def _read(end: int) -> bytes:
    """What the terminal has got; nothing once nobody writes to it."""
    try:
        return os.read(end, 4096)
    except OSError:
        return b""
