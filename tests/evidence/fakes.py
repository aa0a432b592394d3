"""Steps that cost nothing, for tests of everything around the steps; and a bundle made of a real run's numbers."""

from __future__ import annotations

import copy
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.core.errors import ModelError
from sparkwright.core.evidence import bundle
from sparkwright.core.evidence.run import Report, gather
from sparkwright.core.evidence.steps import Job, Outcome, Step, Tell, perform

HERE = "tests.evidence.fakes"
SAMPLE = Path(__file__).with_name("sample.json")


def good(job: Job, tell: Tell) -> Outcome:
    """Notes beside the work folder that it ran, and how often."""
    with Path(f"{job.work}.ran").open("a") as file:
        file.write(f"{job.step}\n")
    tell("counting", 1, 2)
    return Outcome("ok", f"{job.step} is as it should be", {"rows": [1, 2, 3]}, "c" * 64)


def wrong(job: Job, tell: Tell) -> Outcome:
    return Outcome("not passed", "an audit found something", {})


def refused(job: Job, tell: Tell) -> Outcome:
    raise ModelError(f"{job.model}: the model is damaged")


def broken(job: Job, tell: Tell) -> Outcome:
    raise ZeroDivisionError("on purpose")


def killed(job: Job, tell: Tell) -> Outcome:
    print("printed by a library", flush=True)  # standard output of a child is not its channel
    print("the last words", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGABRT)
    raise AssertionError


def chatty(job: Job, tell: Tell) -> Outcome:
    print('{"outcome": "not this one"}', flush=True)
    for done in range(3):
        tell("counting", done, 3)
    return Outcome("ok", "said", {"not finite": float("nan")})


def endless(job: Job, tell: Tell) -> Outcome:
    """Says its process id, and then waits for ever."""
    Path(f"{job.work}.part").write_text(str(os.getpid()))
    os.replace(f"{job.work}.part", f"{job.work}.pid")
    tell("waiting", 0, 1)
    signal.pause()
    raise AssertionError


def step(name: str, function: Callable[[Job, Tell], Outcome]) -> Step:
    return Step(name, f"what {name} is", f"{HERE}:{function.__name__}")


THREE = tuple(step(name, good) for name in ("one", "two", "three"))


def here(job: Job, tell: Tell, *, log: Path, keep_open: tuple[int, ...]) -> Mapping[str, Any]:
    """A `launch` that runs the step in this process."""
    return perform(job, tell)


def model(folder: Path) -> Path:
    """A folder that looks like a model to whoever reads headers only."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "toy"}')
    header = b'{"w": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def run(folder: Path, out: str | Path = "out.zip", **options: Any) -> Report:
    """`gather` into `folder` with the three good steps, unless told otherwise."""
    made = model(folder / "model")
    given: dict[str, Any] = {"steps": THREE, "launch": here, "names": (), "sets": [f"target.model={made}"]} | options
    return gather(folder / out, **given)


def ran(folder: Path, out: str = "out.zip") -> list[str]:
    """Which fake steps have run, in order."""
    path = folder / f"{out}.work.ran"
    return path.read_text().split() if path.exists() else []


def sample() -> dict[str, Any]:
    """manifest (without hashes) and parts of a --quick run of the bundled model on a CPU."""
    data: dict[str, Any] = json.loads(SAMPLE.read_text())
    parts = data.pop("parts")
    return {"manifest": data | {"created": "2026-11-30"}, "parts": copy.deepcopy(parts)}


def packed(folder: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> Path:
    """The sample as a bundle, changed before it is packed."""
    data = sample()
    change(data)
    path = folder / "sample.zip"
    path.write_bytes(bundle.pack(data["manifest"], data["parts"]))
    return path
