"""A run goes on from what is finished: after a kill at any write, Ctrl-C, a failed step, a full disk, another run."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.evidence import fakes

from sparkwright.core.errors import ModelError, OutputError, RequestError
from sparkwright.core.evidence import bundle, work
from sparkwright.core.evidence.run import gather
from sparkwright.core.evidence.steps import Settings

KILLING = """
import os, signal, sys
from pathlib import Path
from tests.evidence import fakes

folder, start = Path(sys.argv[1]), 0
while start < 120:
    start += 1
    if os.fork() == 0:
        left = [start]
        def dying(real):
            def call(*arguments, **named):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **named)
            return call
        for name in ("open", "fsync", "replace", "unlink", "rmdir", "mkdir", "close"):
            setattr(os, name, dying(getattr(os, name)))
        fakes.run(folder)
        os._exit(0)
    _, status = os.wait()
    lines = fakes.ran(folder)
    print(os.waitstatus_to_exitcode(status), ",".join(lines), (folder / "out.zip").exists(), flush=True)
    if status == 0:
        break
"""


@pytest.mark.kit
def test_a_run_that_is_killed_at_every_write_goes_on_each_time(tmp_path: Path) -> None:
    """kill -9 at the first, second, ... file operation of a run, all on the same folder, until one comes through."""
    done = subprocess.run(
        [sys.executable, "-c", KILLING, str(tmp_path)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tries = [line.split() for line in done.stdout.splitlines()]
    kills = [t for t in tries if t[0] == "-9"]
    assert len(kills) >= 10 and tries[-1][0] == "0"
    steps = [t[1].split(",") for t in tries if len(t) == 3]
    assert {"one", "two", "three"} <= set(steps[-1])
    assert all(len(names) < 3 + len(kills) for names in steps), "finished steps are not run again"
    found = bundle.read(tmp_path / "out.zip")
    assert sorted(found.parts) == ["01-one.json", "02-two.json", "03-three.json"]
    assert not (tmp_path / "out.zip.work").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "out.zip", "out.zip.work.ran"]


def test_finished_steps_are_not_run_again_and_failed_ones_are(tmp_path: Path) -> None:
    steps = (*fakes.THREE[:2], fakes.step("three", fakes.refused))
    first = fakes.run(tmp_path, steps=steps)
    assert [s.status for s in first.steps] == ["ok", "ok", "failed"]
    assert not first.complete and first.passed and first.work == tmp_path / "out.zip.work"
    assert first.steps[2].summary == "<model>: the model is damaged"
    assert bundle.read(first.file).manifest["steps"][2]["status"] == "failed"
    again = fakes.run(tmp_path)
    assert [(s.status, s.resumed) for s in again.steps] == [("ok", True), ("ok", True), ("ok", False)]
    assert again.complete and again.work is None and not (tmp_path / "out.zip.work").exists()
    assert bundle.read(again.file).manifest["steps"][2]["status"] == "ok"


def test_only_runs_what_is_asked_and_the_rest_can_follow(tmp_path: Path) -> None:
    one = fakes.run(tmp_path, only=["two"])
    assert [s.status for s in one.steps] == [None, "ok", None] and fakes.ran(tmp_path) == ["two"]
    assert one.complete and bundle.read(one.file).manifest["steps"][0]["summary"] == "not run"
    rest = fakes.run(tmp_path)
    assert [s.status for s in rest.steps] == ["ok", "ok", "ok"]
    with pytest.raises(RequestError, match="--only tow: no such step; did you mean 'two'"):
        fakes.run(tmp_path, "other.zip", only=["tow"])


def test_an_audit_that_did_not_pass_is_a_result(tmp_path: Path) -> None:
    report = fakes.run(tmp_path, steps=(fakes.step("one", fakes.wrong), *fakes.THREE[1:]))
    assert not report.passed and report.complete and report.work is None


def test_ctrl_c_keeps_what_is_finished(tmp_path: Path) -> None:
    def launch(job: Any, tell: Any, **named: Any) -> Any:
        if job.step == "two":
            raise KeyboardInterrupt
        return fakes.here(job, tell, **named)

    with pytest.raises(KeyboardInterrupt):
        fakes.run(tmp_path, launch=launch)
    assert not (tmp_path / "out.zip").exists()
    assert [s.resumed for s in fakes.run(tmp_path).steps] == [True, False, False]


def test_parts_of_another_run_are_not_mixed_in(tmp_path: Path) -> None:
    fakes.run(tmp_path, only=["one"])
    with pytest.raises(OutputError, match=r"the parts of another run: settings was .*--force"):
        fakes.run(tmp_path, settings=attrs.evolve(Settings(), pairs=3))
    (tmp_path / "model" / "config.json").write_text('{"model_type": "another"}')
    with pytest.raises(OutputError, match="checkpoint_sha256 was"):
        gather(tmp_path / "out.zip", steps=fakes.THREE, launch=fakes.here, sets=[f"target.model={tmp_path / 'model'}"])
    report = fakes.run(tmp_path, settings=attrs.evolve(Settings(), pairs=3), force=True)
    assert not any(s.resumed for s in report.steps)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": "one"}', '{"step": "two", "status": "ok"}', "\x00\xff"])
def test_a_part_that_is_not_whole_is_measured_again(tmp_path: Path, text: str) -> None:
    fakes.run(tmp_path, only=["one"])
    (tmp_path / "out.zip.work" / "parts" / "one.json").write_text(text)
    assert not fakes.run(tmp_path).steps[0].resumed


def test_a_lost_header_throws_its_parts_away(tmp_path: Path) -> None:
    fakes.run(tmp_path, only=["one"])
    (tmp_path / "out.zip.work" / "run.json").write_text("{")
    (tmp_path / "out.zip").unlink()
    assert not fakes.run(tmp_path).steps[0].resumed


# ------------------------------------------------------------------------------------------------- bad places


def test_an_existing_file_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    (tmp_path / "out.zip").write_text("precious")
    with pytest.raises(OutputError, match=r"exists; choose another --out, or replace it with --force"):
        fakes.run(tmp_path)
    assert (tmp_path / "out.zip").read_text() == "precious" and not (tmp_path / "out.zip.work").exists()
    assert fakes.run(tmp_path, force=True).complete


def test_the_same_command_again_shows_what_is_finished(tmp_path: Path) -> None:
    first, again = fakes.run(tmp_path), fakes.run(tmp_path)
    assert len(fakes.ran(tmp_path)) == 3 and again.sha256 == first.sha256
    assert all(s.resumed for s in again.steps) and not (tmp_path / "out.zip.work").exists()
    with pytest.raises(OutputError, match="exists"):  # another command, the same file
        fakes.run(tmp_path, settings=attrs.evolve(Settings(), pairs=3))
    assert fakes.run(tmp_path, force=True).complete and len(fakes.ran(tmp_path)) == 6


def test_places_that_cannot_be_written_to_are_named(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"the folder .*/nowhere does not exist"):
        fakes.run(tmp_path, "nowhere/out.zip")
    with pytest.raises(OutputError, match=r"is a folder; expected the name of a file"):
        fakes.run(tmp_path, ".")
    if Path("/proc").is_dir():
        with pytest.raises(OutputError, match="cannot write into /proc; choose another"):
            fakes.run(tmp_path, "/proc/out.zip")
    (tmp_path / "a.zip.work").write_text("")
    with pytest.raises(OutputError, match=r"is a file where the work folder should be"):
        fakes.run(tmp_path, "a.zip")
    (tmp_path / "b.zip.work").mkdir()
    (tmp_path / "b.zip.work" / "thesis.txt").write_text("years")
    for force in (False, True):
        with pytest.raises(OutputError, match="holds something else"):
            fakes.run(tmp_path, "b.zip", force=force)
    assert (tmp_path / "b.zip.work" / "thesis.txt").read_text() == "years"


def test_a_missing_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    for model, said in ((f"{tmp_path}/none", "does not exist"), (__file__, "a file"), (tmp_path, "no config.json")):
        with pytest.raises(ModelError, match=said):
            gather(tmp_path / "out.zip", sets=[f"target.model={model}"], steps=fakes.THREE, launch=fakes.here)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    (fakes.model(tmp_path / "model") / "model.safetensors").unlink()
    options = {"sets": [f"target.model={tmp_path / 'model'}"], "launch": fakes.here, "only": ["checkpoint"]}
    report = gather(tmp_path / "out.zip", **options)  # type: ignore[arg-type]
    assert [s.summary for s in report.steps if s.status == "failed"] == [
        "the model folder holds no .safetensors files: no weights, or in another format"
    ]


def test_two_runs_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "out.zip.work"
    folder.mkdir()
    waits: list[float] = []
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="is in use by another run"):
            work.Work(folder, {}, sleep=waits.append)
        assert sum(waits) >= 4, "a killed run's child has time to end"

        def let_go(seconds: float) -> None:
            fcntl.flock(lock, fcntl.LOCK_UN)

        work.Work(folder, {}, sleep=let_go).close()


def test_a_lock_in_a_folder_that_was_removed_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = tmp_path / "w", fcntl.flock
    removed: list[bool] = []

    def late(lock: int, how: int) -> None:
        real(lock, how)
        if not removed:
            (folder / "lock").unlink()
            removed.append(True)

    monkeypatch.setattr(fcntl, "flock", late)
    with work.Work(folder, {}) as held:
        assert os.fstat(held.lock).st_ino == (folder / "lock").stat().st_ino


@pytest.mark.parametrize("at", range(1, 7))
def test_a_full_disk_is_one_sentence_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The header, three parts, the header again and the zip: each write in turn has no room."""
    real, count = os.fsync, iter(range(1, 100))

    def full(file: int) -> None:
        if next(count) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left on device"):
        fakes.run(tmp_path)
    assert not (tmp_path / "out.zip").exists()
    assert not [p for p in tmp_path.rglob("*.part")]
    kept = len(list((tmp_path / "out.zip.work" / "parts").iterdir()))
    assert kept == min(max(at - 2, 0), 3)
    report = fakes.run(tmp_path)
    assert [s.resumed for s in report.steps] == [i < kept for i in range(3)]


def test_a_bundle_of_this_run_may_be_replaced_by_it_even_after_a_kill_between_note_and_file(tmp_path: Path) -> None:
    fakes.run(tmp_path, only=["one"])
    header = json.loads((tmp_path / "out.zip.work" / "run.json").read_text())
    header["written"].append("f" * 64)  # noted, and then killed
    (tmp_path / "out.zip.work" / "run.json").write_text(json.dumps(header))
    assert fakes.run(tmp_path).complete
