"""Killed, interrupted, out of space, arms that fail: a clear message, nothing lost, nothing counted twice."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparkwright.core.compare.records import ArmSpec, CompareError, RunRecord
from sparkwright.core.compare.result import CompareResult
from sparkwright.core.compare.runner import Settings
from sparkwright.core.compare.simulated import Machine, SimulatedOpener, simulated_spec
from sparkwright.core.compare.store import Entry, Store
from sparkwright.core.errors import OutputError, SparkwrightError

Compare = Callable[..., CompareResult]


def measured(folder: Path) -> list[tuple[Any, ...]]:
    """What identifies each measurement on disk, sorted; clocks are left out."""
    lines = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
    return sorted((e["kind"], e["index"], e["prompt"], json.dumps(e["runs"])) for e in lines)


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
import conftest
from sparkwright.core.compare import simulated, store
left = int(sys.argv[2])
def before():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
whole = store.os.fsync
def torn(fd):  # now and then the kill comes while a line is being written
    if left == 1 and os.fstat(fd).st_size > 400:
        os.truncate(fd, os.fstat(fd).st_size - 37)
        os.kill(os.getpid(), signal.SIGKILL)
    whole(fd)
store.os.fsync = torn
class Opener(simulated.SimulatedOpener):
    def __call__(self, spec, *, stages=False):
        arm = super().__call__(spec, stages=stages)
        import attrs
        return attrs.evolve(arm, before=before)
conftest.Simulated(Path(sys.argv[1]))(opener=Opener())
"""


def test_killed_ten_times_at_random_moments_and_resumed_the_pairs_are_the_same(
    simulated: Compare, tmp_path: Path
) -> None:
    simulated(out=tmp_path / "whole")
    coin, kills = random.Random(4), 0
    for _ in range(40):
        moment = coin.randrange(1, 12) if kills < 10 else 10**6
        script = [sys.executable, "-c", KILLED, str(tmp_path), str(moment), str(Path(__file__).parent)]
        done = subprocess.run(script, capture_output=True, text=True, timeout=120)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1
    assert kills == 10
    assert measured(tmp_path / "out") == measured(tmp_path / "whole")
    a, b = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("out", "whole"))
    assert a["complete"] and a["comparisons"] == b["comparisons"]


@attrs.frozen
class FailsAt:
    """Opens simulated arms that raise `error` at run number `at`."""

    at: int
    error: BaseException

    def __call__(self, spec: ArmSpec, *, stages: bool = False) -> Any:
        arm = SimulatedOpener(self.machine)(spec, stages=stages)

        def before() -> None:
            if self.machine.runs == self.at:
                raise self.error

        return attrs.evolve(arm, before=before)  # type: ignore[misc]

    machine: Machine = attrs.field(factory=Machine)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SparkwrightError("plugin 'lookup' gave 9 drafts, at most 5 were asked for."), "plugin 'lookup' gave 9 drafts"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_an_arm_that_fails_in_the_middle_leaves_its_pairs_and_is_named(
    simulated: Compare, tmp_path: Path, error: Exception, said: str
) -> None:
    with pytest.raises(CompareError) as caught:
        simulated(opener=FailsAt(10, error))  # 4 runs of the gate, a reference, then pairs
    message = str(caught.value)
    assert said in message
    assert "failed in pair 3 of 6, prompt 'code-1'" in message and "arm " in message
    assert f"2 of 6 pairs are kept in {tmp_path / 'out'}; the same command continues from them" in message.replace(
        "\n", " "
    )
    partial = json.loads((tmp_path / "out" / "result.json").read_text())
    assert partial["complete"] is False and said in partial["stopped"]
    assert len([m for m in partial["measurements"] if m["kind"] == "pair"]) == 2
    assert "Incomplete: 2 of 6 pairs" in (tmp_path / "out" / "report.html").read_text()
    assert simulated().complete  # the fault is gone: the rest is measured


def test_an_arm_that_cannot_be_assembled_is_named_before_anything_is_measured(
    simulated: Compare, tmp_path: Path
) -> None:
    bad = simulated_spec("B", "verifier.use=greedy", refuse="verifier 'greedy' needs a sampler without randomness")
    with pytest.raises(
        CompareError,
        match=r"arm B \(verifier.use=greedy\) cannot be assembled: verifier 'greedy' needs .* Nothing was measured yet",
    ):
        simulated(simulated_spec("A"), bad)


def test_an_interruption_keeps_the_pairs_and_the_reports(simulated: Compare, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        simulated(opener=FailsAt(9, KeyboardInterrupt()))
    assert json.loads((tmp_path / "out" / "result.json").read_text())["stopped"] == "KeyboardInterrupt"
    assert len([e for e in measured(tmp_path / "out") if e[0] == "pair"]) == 2


def test_zero_pairs_and_other_impossible_numbers_are_refused_before_anything_is_opened(
    simulated: Compare, tmp_path: Path
) -> None:
    for options, message in (
        ({"pairs": 0}, "--pairs is 0"),
        ({"pairs": -3}, "--pairs is -3"),
        ({"settings": Settings(tokens=1)}, "--tokens is 1; expected at least 2"),
        ({"settings": Settings(cooldown=-1.0)}, "--cooldown is -1.0"),
        ({"margin": 0.0}, "--margin is 0.0; expected a fraction"),
        ({"alpha": 1.0}, "--alpha is 1.0"),
        ({"self_test": 3, "pairs": 1}, "--pairs is 1, but a self-test needs at least 2"),
        ({"self_test": -1}, "--self-test is -1"),
        ({"prompts": ()}, "there are no prompts"),
    ):
        with pytest.raises(CompareError, match=message):
            simulated(**options)
    with pytest.raises(CompareError, match="nothing to compare"):
        simulated(simulated_spec("A"))
    assert not (tmp_path / "out").exists()


class Full:
    """A file on a disk that takes `room` more bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> int:
        if len(data) > self._room:
            self._file.write(data[: self._room])
            self._file.flush()
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= len(data)
        return int(self._file.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_is_a_clear_message_and_the_next_run_continues(
    simulated: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Store.__init__

    def small(self: Store, *args: Any) -> None:
        opened(self, *args)
        self._file = Full(self._file, 5000)  # type: ignore[assignment]

    monkeypatch.setattr(Store, "__init__", small)
    with pytest.raises(OutputError, match=r"No space left on device; \d complete pairs are kept\. free some space"):
        simulated()
    monkeypatch.undo()
    kept = measured(tmp_path / "out")
    assert kept and all(line.endswith("}") for line in (tmp_path / "out" / "pairs.jsonl").read_text().splitlines())
    assert simulated().complete
    assert set(kept) <= set(measured(tmp_path / "out"))


def test_a_report_that_cannot_be_written_is_an_output_error_and_leaves_no_half_file(
    simulated: Compare, tmp_path: Path
) -> None:
    (tmp_path / "out" / "result.md").mkdir(parents=True)
    with pytest.raises(OutputError, match=r"cannot write .*result\.md"):
        simulated()
    assert not list((tmp_path / "out").glob(".*.part"))


def test_a_folder_that_cannot_be_written_is_refused_at_once(simulated: Compare, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot write into .*file/out: Not a directory; choose another --out"):
        simulated(out=tmp_path / "file" / "out")


def test_pairs_of_another_comparison_are_never_mixed_in(simulated: Compare, tmp_path: Path) -> None:
    simulated()
    for options, what in (
        ({"pairs": 8}, "pairs was 6 and is 8"),
        ({"environment": {"versions": {"mlx": "9.9"}}}, r"environment\.versions was null and is"),
        ({"settings": Settings(tokens=32, gate=2, gate_tokens=8, profile=2)}, r"settings\.tokens was 24 and is 32"),
    ):
        with pytest.raises(CompareError, match=f"holds another comparison.*{what}"):
            simulated(**options)
    with pytest.raises(CompareError, match=r"arms\.B was"):
        simulated(simulated_spec("A"), simulated_spec("B", "swap", effect=0.2, block=4))
    assert simulated(margin=0.5).complete  # how the pairs are read may change


def test_two_runs_into_one_folder_at_the_same_time_are_refused(tmp_path: Path) -> None:
    with (
        Store(tmp_path, {"command": "a"}),
        pytest.raises(OutputError, match="in use by another comparison that is running"),
    ):
        Store(tmp_path, {"command": "a"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [lines[0], "not json", *lines[1:]], "line 2 is damaged"),
        (lambda lines: [*lines, lines[-1]], "is there twice"),
        (lambda lines: [line.replace('"tokens"', '"tokns"') for line in lines], "line 1 is damaged"),
    ],
)
def test_a_damaged_file_of_pairs_is_refused_by_line(
    simulated: Compare, tmp_path: Path, damage: Callable[[list[str]], list[str]], message: str
) -> None:
    simulated()
    file = tmp_path / "out" / "pairs.jsonl"
    file.write_text("\n".join(damage(file.read_text().splitlines())) + "\n")
    with pytest.raises(CompareError, match=message):
        simulated()


def test_a_torn_last_line_is_measured_again(tmp_path: Path) -> None:
    run = RunRecord((1, 2), "max_tokens", "law", 3, 0.1, 0.2)
    with Store(tmp_path, {"command": "a"}) as store:
        for index in range(3):
            store.add(Entry("pair", index, "p", {"A": run}))
    file = tmp_path / "pairs.jsonl"
    os.truncate(file, file.stat().st_size - 5)
    with Store(tmp_path, {"command": "again"}) as store:
        assert store.resumed and [e.index for e in store.pairs] == [0, 1]
        store.add(Entry("pair", 2, "p", {"A": run}))
    with Store(tmp_path, {"command": "a"}) as store:
        assert [e.index for e in store.pairs] == [0, 1, 2] and store.pairs[2].runs["A"] == run


def test_a_resumed_run_whose_engine_is_another_is_refused(simulated: Compare, tmp_path: Path) -> None:
    with pytest.raises(CompareError):
        simulated(opener=FailsAt(10, ZeroDivisionError()))

    class Recalibrated(SimulatedOpener):
        def __call__(self, spec: ArmSpec, *, stages: bool = False) -> Any:
            arm = super().__call__(spec, stages=stages)

            class Other:
                effective = arm.effective

                def complete(self, *args: Any, **kwargs: Any) -> RunRecord:
                    return attrs.evolve(arm.complete(*args, **kwargs), config_sha256="new")

                def close(self) -> None:
                    return None

            return Other()

    with pytest.raises(CompareError, match="plugin versions or cost curves have changed since"):
        simulated(opener=Recalibrated())
