"""The measurements of a comparison on disk: an append-only file of whole groups, which a killed run continues from.

`run.json` says what is measured (plan, configurations, environment) and is written once, by rename. `pairs.jsonl` gets
one line a measurement, forced to the disk before the next is begun. A line is complete or it does not exist: a torn
last line (kill, full disk) is cut off when the file is opened again, and its group is measured anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from sparkwright.core.compare.records import CompareError, RunRecord
from sparkwright.core.errors import OutputError

FORMAT = 1
_HINT = "free some space and run the same command again: it continues from the pairs on disk"


@attrs.frozen
class Entry:
    """One measurement. kind: "pair" (index: the group), "gate", "reference" or "profile". runs: by arm name, in the
    order they were made. clock: seconds since the start of the process, at the end of the measurement."""

    kind: str
    index: int
    prompt: str
    runs: dict[str, RunRecord]
    clock: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)


class Store:
    """An output directory, locked while it is open. `entries` holds what was there and what was added."""

    def __init__(self, directory: Path, header: Mapping[str, Any]) -> None:
        self.directory = directory
        self.entries: list[Entry] = []
        self._file: BinaryIO | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file = open(directory / "pairs.jsonl", "a+b")  # noqa: SIM115 (held open and locked until close)
        except OSError as error:
            raise OutputError(f"cannot write into {directory}: {error.strerror}; choose another --out") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise OutputError(
                f"{directory} is in use by another comparison that is running; choose another --out"
            ) from None
        try:
            self.resumed = self._check_header(header)
            self._read()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def pairs(self) -> list[Entry]:
        return sorted((e for e in self.entries if e.kind == "pair"), key=lambda e: e.index)

    def has(self, kind: str, index: int) -> bool:
        return any(e.kind == kind and e.index == index for e in self.entries)

    def add(self, entry: Entry) -> None:
        """Append one measurement and force it to the disk. OutputError if that fails; the file then ends as before."""
        assert self._file is not None
        line = json.dumps(entry.to_dict(), separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._cut(end)
            raise OutputError(
                f"{self.directory / 'pairs.jsonl'}: {error.strerror}; {len(self.pairs)} complete pairs are kept. "
                f"{_HINT}"
            ) from None
        self.entries.append(entry)

    def _cut(self, end: int) -> None:
        """Drop a line that was written in part; if even that fails, the next opening drops it."""
        assert self._file is not None
        path = self.directory / "pairs.jsonl"
        with contextlib.suppress(OSError):  # the buffer could not be written: that is why we are here
            self._file.close()
        self._file = open(path, "a+b")  # noqa: SIM115
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file.truncate(end)

    def _check_header(self, header: Mapping[str, Any]) -> bool:
        """Write run.json, or make sure that the one there describes the same comparison. True if it was there."""
        path = self.directory / "run.json"
        wanted = json.loads(json.dumps({"format": FORMAT, **header}))
        if not path.exists():
            write_atomically(path, json.dumps(wanted, indent=1, ensure_ascii=False) + "\n")
            return False
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CompareError(f"{path} cannot be read ({error}); choose another --out") from None
        if not isinstance(found, dict):
            raise CompareError(f"{path} is not a comparison's header; choose another --out")
        different = [key for key in sorted({*wanted, *found}) if key != "command" and wanted.get(key) != found.get(key)]
        if different:
            what = "; ".join(_explain(key, found.get(key), wanted.get(key)) for key in different)
            raise CompareError(
                f"{self.directory} holds another comparison, and pairs of two comparisons must not be mixed: {what}. "
                "Choose another --out, or run the command it was started with"
            )
        return True

    def _read(self) -> None:
        assert self._file is not None
        self._file.seek(0)
        raw = self._file.read()
        whole = raw.rfind(b"\n") + 1
        for number, line in enumerate(raw[:whole].splitlines(), 1):
            try:
                data = json.loads(line)
                runs = {name: RunRecord.from_dict(run) for name, run in data.pop("runs").items()}
                entry = Entry(runs=runs, **data)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise CompareError(
                    f"{self.directory / 'pairs.jsonl'}, line {number} is damaged (only the last line may be); "
                    "remove that line to measure its pair again, or choose another --out"
                ) from None
            if self.has(entry.kind, entry.index):
                raise CompareError(
                    f"{self.directory / 'pairs.jsonl'}, line {number}: {entry.kind} {entry.index} is there twice; "
                    "remove one of the lines, or choose another --out"
                )
            self.entries.append(entry)
        if whole < len(raw):
            self._file.truncate(whole)


def _explain(key: str, found: Any, wanted: Any) -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        parts = [k for k in sorted({*found, *wanted}) if found.get(k) != wanted.get(k)]
        return ", ".join(f"{key}.{k} was {_short(found.get(k))} and is {_short(wanted.get(k))}" for k in parts)
    return f"{key} was {_short(found)} and is {_short(wanted)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def write_atomically(path: Path, text: str) -> None:
    """Write a whole file or nothing: beside it, forced to the disk, then renamed. OutputError if it cannot be done."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OutputError(f"cannot write {path}: {error.strerror}; {_HINT}") from None
