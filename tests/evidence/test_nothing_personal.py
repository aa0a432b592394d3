"""A user, a home, a host and an e-mail are planted wherever they could come from, and looked for in the zip."""

from __future__ import annotations

import getpass
import io
import json
import os
import platform
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.evidence import fakes

from sparkwright.core.errors import ConfigError
from sparkwright.core.evidence import run as evidence
from sparkwright.core.evidence.steps import STEPS, Job, Outcome, Step, Tell

USER, FULL, HOST, MAIL = "zaphodb", "Zaphod Quux Beeblebrox", "heart-of-gold", "zaphod@betelgeuse.example"
SECRET = "petunias4242"  # a value of the environment
TRACES = [USER, "beeblebrox", "quux", HOST, "betelgeuse", SECRET, "improbability"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of that user, in which everything happens."""
    import pwd

    folder = tmp_path / "Users" / USER
    folder.mkdir(parents=True)
    entry = pwd.struct_passwd((USER, "x", 501, 20, f"{FULL},,,{MAIL}", str(folder), "/bin/sh"))
    for key, value in {"HOME": str(folder), "USER": USER, "LOGNAME": USER, "HOSTNAME": HOST, "SPARKWRIGHT_NOTE": SECRET,
                       "SPARKWRIGHT_ENGINE__COSTS": "none", "HF_TOKEN": SECRET, "EMAIL": MAIL}.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(socket, "gethostname", lambda: f"{HOST}.local")
    monkeypatch.setattr(platform, "node", lambda: HOST)
    monkeypatch.setattr(getpass, "getuser", lambda: USER)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: entry)
    monkeypatch.chdir(folder)
    return folder


def model(home: Path) -> Path:
    """A model folder with a blank in its path, the user in a shard's name, and a path and an e-mail in its config."""
    folder = fakes.model(home / "Infinite Improbability" / f"{USER} model")
    about = {"model_type": "toy", "_name_or_path": str(folder), "author": f"{FULL} <{MAIL}>"}
    (folder / "config.json").write_text(json.dumps(about))
    (folder / f"{USER}-{HOST}.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return folder


def leaks(job: Job, tell: Tell) -> Outcome:
    """A step that reports all that it should not."""
    said = f"{FULL} at {HOST}.local wrote {job.model}/x and ~/y and {Path.home()}/My Files/z; ask {MAIL}"
    data: dict[str, Any] = {said: said, "list": [{"a": [said]}], "env": dict(os.environ), "cwd": os.getcwd()}
    data["env"] = {key: value for key, value in data["env"].items() if SECRET not in value}
    return Outcome("ok", said, data)


def raises(job: Job, tell: Tell) -> Outcome:
    with open(f"{job.model}/{USER}'s missing file.json"):
        raise AssertionError


def contents(path: Path) -> str:
    """Everything in the file that could be read: names, contents, comments, extra fields, and the bytes as they are."""
    raw = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        said = [archive.comment.decode()]
        for info in archive.infolist():
            said += [info.filename, info.comment.decode(), info.extra.decode("latin-1"), archive.read(info).decode()]
            assert info.date_time == (1980, 1, 1, 0, 0, 0), "a clock says where in the world it stands"
    return "\n".join([*said, raw.decode("latin-1")]).casefold()


def test_what_is_planted_is_not_in_the_bundle(home: Path, tmp_path: Path) -> None:
    folder = model(home)
    mine = (fakes.step("leaks", leaks), fakes.step("raises", raises))
    own = tuple(Step(s.name, s.what, s.function.replace(fakes.HERE, __name__)) for s in mine)
    report = evidence.gather(
        home / f"{USER} evidence.zip", sets=[f"target.model={folder}"], steps=(*own, *STEPS[:3]), launch=fakes.here
    )
    assert [s.status for s in report.steps] == ["ok", "failed", "ok", "ok", report.steps[4].status]
    said = contents(report.file)
    for trace in [*TRACES, str(tmp_path).casefold(), MAIL, "/users/"]:
        assert trace.casefold() not in said, trace
    assert "<model>" in said and "<user>" in said and "<host>" in said and "<e-mail>" in said
    assert report.work is not None
    kept = "\n".join(p.read_text().casefold() for p in (report.work / "parts").iterdir())
    assert not [trace for trace in TRACES if trace in kept], "the parts are scrubbed, too"


def test_every_step_that_fails_on_a_model_says_so_without_naming_its_owner(home: Path) -> None:
    """The real steps, on a folder that no target takes: their errors name paths."""
    folder = model(home)
    options = [f"target.model={folder}", "target.use=deepseek_v4", f"drafter.model={home}/adapters of {FULL}"]
    report = evidence.gather(home / "e.zip", sets=options, only=["kernels", "consistency", "speed"], launch=fakes.here)
    failed = [s for s in report.steps if s.status == "failed"]
    assert len(failed) == 3 and not report.complete and report.passed
    said = contents(report.file)
    assert not [trace for trace in TRACES if trace.casefold() in said]
    assert all(str(home) not in s.summary for s in report.steps)


def test_planting_works(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the scrubber every one of them is found: the tests above can fail."""
    from sparkwright.core.evidence.scrub import Scrubber

    monkeypatch.setattr(Scrubber, "text", lambda self, text: text)
    own = Step("leaks", "", f"{__name__}:leaks")
    report = evidence.gather(
        home / "e.zip", sets=[f"target.model={model(home)}"], steps=(own, STEPS[1]), launch=fakes.here
    )
    said = contents(report.file)
    for trace in (USER, "beeblebrox", HOST, "betelgeuse", "improbability"):
        assert trace in said, trace


def test_the_environment_is_not_reported(home: Path) -> None:
    report = evidence.gather(
        home / "e.zip", sets=[f"target.model={model(home)}"], only=["doctor", "machine"], launch=fakes.here
    )
    said = contents(report.file)
    assert SECRET not in said and "sparkwright_note" not in said and "hf_token" not in said


def test_a_configuration_that_is_wrong_is_refused_before_anything_is_written(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"drafter\.use"):
        evidence.gather(home / "e.zip", sets=["drafter.use=dsprak"], launch=fakes.here)
    assert list(home.iterdir()) == []
