"""A step in a process of its own: what comes back, how a death is told, and that no child outlives its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.evidence import fakes

from sparkwright.core.evidence.child import in_a_process
from sparkwright.core.evidence.steps import Job

pytestmark = pytest.mark.kit

PARENT = """
import sys
from pathlib import Path
from tests.evidence import fakes
from sparkwright.core.evidence.child import in_a_process
fakes.run(Path(sys.argv[1]), steps=(fakes.THREE[0], fakes.step("two", fakes.endless)), launch=in_a_process)
"""


def job(folder: Path, function: Any) -> Job:
    return Job("step", f"{fakes.HERE}:{function.__name__}", "/m", str(folder))


def test_outcome_and_progress_come_back_and_prints_do_not_disturb(tmp_path: Path) -> None:
    told: list[Any] = []
    found = in_a_process(job(tmp_path, fakes.chatty), lambda *seen: told.append(seen), log=tmp_path / "log")
    assert found["status"] == "ok" and found["summary"] == "said" and found["data"] == {"not finite": None}
    assert told[0] == ("counting", 0, 3)
    assert "not this one" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("function", "says"),
    [(fakes.killed, "ended by SIGABRT before it had a result; its last words: the last words"),
     (fakes.broken, "ZeroDivisionError: on purpose"), (fakes.refused, "/m: the model is damaged")],
)  # fmt: skip
def test_a_step_that_dies_is_a_failed_step(tmp_path: Path, function: Any, says: str) -> None:
    found = in_a_process(job(tmp_path, function), lambda *_: None, log=tmp_path / "log")
    assert found["status"] == "failed" and says in found["summary"] and "\n" not in found["summary"]


def test_the_others_go_on_after_a_death(tmp_path: Path) -> None:
    report = fakes.run(tmp_path, steps=(fakes.step("one", fakes.killed), fakes.THREE[1]), launch=in_a_process)
    assert [s.status for s in report.steps] == ["failed", "ok"]


def alive(process: int) -> bool:
    """A zombie, whose new parent has not asked for it yet, is dead."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc who is alive")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_no_child_outlives_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    """The parent is killed (or interrupted) in a step; the child holds the lock, and is gone when it can be had."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        pid = tmp_path / "out.zip.work.pid"
        while not pid.exists():
            assert parent.poll() is None
            os.sched_yield()
        child = int(pid.read_text())
        parent.send_signal(how)
        parent.wait(timeout=30)
    report = fakes.run(tmp_path, steps=fakes.THREE[:2])  # waits for the lock
    assert [(s.status, s.resumed) for s in report.steps] == [("ok", True), ("ok", False)]
    assert not alive(child)


def test_a_job_survives_being_sent(tmp_path: Path) -> None:
    sent = Job("s", "m:f", "/m", "/w", "/c.toml", ("a.b=1",))
    assert Job.from_dict(json.loads(json.dumps(sent.to_dict()))) == sent
