"""`gather`: an evidence run from a model to a bundle. Runs what is not finished yet, keeps each step, packs them."""

from __future__ import annotations

import datetime
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs

from sparkwright.core.config import load_config
from sparkwright.core.errors import OutputError, RequestError, did_you_mean
from sparkwright.core.evidence import bundle, facts
from sparkwright.core.evidence.child import in_a_process
from sparkwright.core.evidence.scrub import Scrubber, scrubber_for
from sparkwright.core.evidence.steps import STATUSES, STEPS, Job, Settings, Step, Tell, bundled_model
from sparkwright.core.evidence.work import Work, clear_away, write_atomically


class Launch(Protocol):
    """How a step is run: `in_a_process`, or in this one."""

    def __call__(self, job: Job, tell: Tell, *, log: Path, keep_open: tuple[int, ...]) -> Mapping[str, Any]: ...


@attrs.frozen
class StepReport:
    """One step as it is in the bundle. resumed: it was finished before this call. None: it has not been run."""

    name: str
    status: str | None
    summary: str
    seconds: float
    resumed: bool = False


@attrs.frozen
class Report:
    """What a run came to. work: the folder that is kept because something is missing, or None."""

    file: Path
    sha256: str
    bytes: int
    steps: tuple[StepReport, ...]
    work: Path | None

    @property
    def passed(self) -> bool:
        """Whether no audit found anything wrong."""
        return not any(s.status == "not passed" for s in self.steps)

    @property
    def complete(self) -> bool:
        """Whether no step that was asked for failed to run."""
        return not any(s.status == "failed" for s in self.steps)

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.file), "sha256": self.sha256, "bytes": self.bytes, "passed": self.passed,
            "complete": self.complete, "steps": [attrs.asdict(step) for step in self.steps],
            "work": None if self.work is None else str(self.work),
        }  # fmt: skip


def gather(
    out: str | Path,
    *,
    config_file: Path | None = None,
    sets: Sequence[str] = (),
    only: Sequence[str] = (),
    settings: Settings | None = None,
    force: bool = False,
    progress: Callable[[int, int, str, str, int, int], None] = lambda *_: None,
    finished: Callable[[StepReport], None] = lambda _: None,
    launch: Launch = in_a_process,
    steps: Sequence[Step] = STEPS,
    names: tuple[tuple[str, str], ...] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Measure everything, and write the bundle.

    only: names of steps, the others are left for another call. progress: told (number of the step, steps, step, what,
    done, total). finished: told of each step, also of those that an earlier call finished. names: personal names
    instead of this machine's. Raises ConfigError, ModelError, OutputError, RequestError; KeyboardInterrupt goes
    through, and what is finished is kept.
    """
    asked = settings or Settings()
    file = _out(out)
    chosen = _chosen(only, steps)
    config = load_config(config_file, sets=sets)
    model = bundled_model(config)
    folder = file.with_name(file.name + ".work")
    header = {
        "format": bundle.FORMAT,
        "versions": facts.versions(),
        "config_sha256": config.sha256,
        "checkpoint_sha256": facts.checkpoint(model)["sha256"],
        "settings": attrs.asdict(asked),
    }
    given = [v.value for v in config.values.values() if isinstance(v.value, str) and os.sep in v.value]
    others: list[str | Path] = [*given, *([config_file] if config_file else []), file, file.parent]
    scrub = scrubber_for(model=[model], work=[folder], others=others, keep=_keep(steps), names=names)
    before = _finished(file, scrub.value(header), chosen, steps) if not force and not folder.exists() else None
    if before is not None:
        clear_away(folder)  # of a run that was killed just before its end
        for one in before.steps:
            finished(one)
        return before
    with Work(folder, header, again=force) as work:
        _may_replace(file, work, force)
        fresh: set[str] = set()
        for number, step in enumerate(chosen, 1):
            part, resumed = work.finished(step.name), True
            if part is None or part["status"] == "failed":
                job = Job(
                    step.name, step.function, str(model.absolute()), str(folder.absolute()),
                    None if config_file is None else str(config_file), tuple(sets), asked,
                )  # fmt: skip

                def tell(what: str, done: int, total: int, number: int = number, step: Step = step) -> None:
                    progress(number, len(chosen), step.name, what, done, total)

                tell("starting", 0, 0)
                began = clock()
                outcome = launch(job, tell, log=folder / "child.log", keep_open=(work.lock,))
                seconds = round(clock() - began, 3)
                part, resumed = scrub.value(_part(step, outcome, header, seconds)), False
                work.keep(step.name, part)
                fresh.add(step.name)
            finished(_reported(step, part, resumed))
        return _pack(file, work, header, steps, scrub, fresh)


def _part(step: Step, outcome: Mapping[str, Any], header: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """A step's file: the outcome, and what it depends on."""
    status = str(outcome["status"])
    assert status in STATUSES
    return {
        "format": bundle.FORMAT,
        "step": step.name,
        "what": step.what,
        "status": status,
        "summary": " ".join(str(outcome["summary"]).split()),
        "seconds": seconds,
        "peak_memory_bytes": outcome.get("peak_memory_bytes"),
        "versions": header["versions"],
        "config_sha256": outcome.get("config_sha256") or header["config_sha256"],
        "checkpoint_sha256": header["checkpoint_sha256"],
        "settings": header["settings"],
        "data": outcome["data"],
    }


def _reported(step: Step, part: Mapping[str, Any], resumed: bool) -> StepReport:
    return StepReport(step.name, part["status"], part["summary"], part["seconds"], resumed)


def _pack(
    file: Path, work: Work, header: Mapping[str, Any], steps: Sequence[Step], scrub: Scrubber, fresh: set[str]
) -> Report:
    """Everything that is finished, into the bundle, scrubbed once more: parts may lie there from before."""
    found = {step.name: work.finished(step.name) for step in steps}
    parts: dict[str, Any] = {}
    reports: list[StepReport] = []
    for number, step in enumerate(steps, 1):
        part = found[step.name]
        if part is None:
            reports.append(_missing(step))
            continue
        reports.append(_reported(step, part, step.name not in fresh))
        parts[f"{number:02}-{step.name}.json"] = scrub.value(part)
    machine = found.get("machine") or {}
    manifest = {
        "kind": bundle.KIND,
        "created": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **header,
        "machine": machine.get("summary", "not known: the step was not run"),
        "steps": [
            {"name": r.name, "status": r.status, "summary": r.summary, "seconds": r.seconds} for r in reports
        ],
    }  # fmt: skip
    data = bundle.pack(scrub.value(manifest), parts)
    sha256 = hashlib.sha256(data).hexdigest()
    work.note_written(sha256)  # before the file: a run killed between the two may replace it
    write_atomically(file, data)
    whole = all(r.status not in (None, "failed") for r in reports)
    if whole:
        work.remove()
    return Report(file, sha256, len(data), tuple(reports), None if whole else work.folder)


def _out(out: str | Path) -> Path:
    file = Path(out).expanduser()
    if file.is_dir():
        raise OutputError(f"{file} is a folder; expected the name of a file, such as {file / 'evidence.zip'}")
    if not file.parent.is_dir():
        raise OutputError(f"the folder {file.parent} does not exist; create it, or choose another --out")
    return file


def _finished(file: Path, header: Mapping[str, Any], chosen: Sequence[Step], steps: Sequence[Step]) -> Report | None:
    """What an earlier call of the same command came to, if the file holds all that this one asks for."""
    try:
        found = bundle.read(file)
    except bundle.BundleError:
        return None
    if any(found.manifest.get(key) != value for key, value in header.items()):
        return None
    parts = {part.get("step"): part for part in found.parts.values()}
    if any(parts.get(step.name, {}).get("status") in (None, "failed") for step in chosen):
        return None
    reports = tuple(_reported(step, parts[step.name], True) if step.name in parts else _missing(step) for step in steps)
    return Report(file, found.sha256, found.bytes, reports, None)


def _missing(step: Step) -> StepReport:
    return StepReport(step.name, None, "not run", 0.0)


def _may_replace(file: Path, work: Work, force: bool) -> None:
    """An existing file is replaced only if this very run wrote it (and goes on), or if it is asked for."""
    if force or not file.exists():
        return
    try:
        found = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise OutputError(f"{file} cannot be read: {error.strerror}") from None
    if found not in work.written:
        fresh = not any(work.parts.iterdir())
        if fresh:
            work.remove()
        raise OutputError(f"{file} exists; choose another --out, or replace it with --force")


def _chosen(only: Sequence[str], steps: Sequence[Step]) -> list[Step]:
    known = [step.name for step in steps]
    for name in only:
        if name not in known:
            raise RequestError(f"--only {name}: no such step{did_you_mean(name, known)}; steps: {', '.join(known)}")
    return [step for step in steps if not only or step.name in only]


def _keep(steps: Sequence[Step]) -> list[str]:
    """Strings that stay, whatever the user is called: names of steps, statuses, bundled prompts and their kinds."""
    from sparkwright.core.compare.prompts import SETS, load_prompts

    prompts = load_prompts("all")
    return [*(s.name for s in steps), *(s.what for s in steps), *STATUSES, *SETS, *(p.id for p in prompts)]
