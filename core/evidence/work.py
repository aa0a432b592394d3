"""The work folder beside a bundle: what is finished, so that a killed run goes on from there.

`run.json` says what is measured, `parts/NAME.json` is one finished step, whole or not there. The folder is locked while
a run is at work; it is removed when the bundle holds every step, and nothing in it goes into a bundle unscrubbed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparkwright.core.errors import OutputError

HEADER = "run.json"
PATIENCE = 50
"""Tenths of a second that a lock is waited for: the child of a killed run needs a moment to end."""


class Work:
    """A locked work folder. header: what must be the same for parts to belong together."""

    def __init__(
        self, folder: Path, header: Mapping[str, Any], *, again: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self.folder, self.parts = folder, folder / "parts"
        self.written: list[str] = []  # sha256 of every bundle that this folder's run wrote, or was about to
        self.header: dict[str, Any] = json.loads(json.dumps(header))
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file where the work folder should be; choose another --out")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / "lock").exists():
            raise OutputError(f"{folder} holds something else than the work of an evidence run; choose another --out")
        self._lock = self._locked(sleep)
        try:
            self._open(again)
        except OSError as error:
            self.close()
            raise OutputError(f"cannot write into {folder}: {error.strerror}; choose another --out") from None
        except BaseException:
            self.close()
            raise

    def _locked(self, sleep: Callable[[float], None]) -> int:
        """A descriptor that holds the folder's lock; it may have been removed by another run while we waited."""
        contended = False
        for _ in range(PATIENCE):
            try:
                self.folder.mkdir(exist_ok=True)
                lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            except FileNotFoundError:  # removed between the two lines, or the parent folder is missing
                if not self.folder.parent.is_dir():
                    raise OutputError(f"the folder {self.folder.parent} does not exist; create it first") from None
                continue
            except OSError as error:
                raise OutputError(
                    f"cannot write into {self.folder.parent}: {error.strerror}; choose another --out"
                ) from None
            contended = True
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_ino == os.stat(self.folder / "lock").st_ino:
                    return lock
            except OSError:
                sleep(0.1)
            os.close(lock)
        if not contended:  # a file system that makes no folders, such as /proc
            raise OutputError(f"cannot write into {self.folder.parent}; choose another --out")
        raise OutputError(f"{self.folder} is in use by another run; wait for it, or choose another --out")

    def _open(self, again: bool) -> None:
        path = self.folder / HEADER
        if again:
            path.unlink(missing_ok=True)
        self.parts.mkdir(exist_ok=True)
        found = read_object(path)
        if found is None:
            for old in ("parts", "speed"):  # of a run whose header is lost, or that is begun anew
                shutil.rmtree(self.folder / old, ignore_errors=True)
            (self.folder / "costs.json").unlink(missing_ok=True)
            self.parts.mkdir(exist_ok=True)
            write_atomically(path, (json.dumps(self.header, indent=1) + "\n").encode())
            return
        written = found.pop("written", [])
        if found != self.header:
            what = "; ".join(
                f"{key} was {_short(found.get(key))} and is {_short(self.header.get(key))}"
                for key in sorted({*found, *self.header})
                if found.get(key) != self.header.get(key)
            )
            raise OutputError(
                f"{self.folder} holds the parts of another run: {what}. Run the command it was started with, choose "
                "another --out, or start anew with --force"
            )
        self.written = [str(one) for one in written] if isinstance(written, list) else []

    @property
    def lock(self) -> int:
        return self._lock

    def note_written(self, sha256: str) -> None:
        self.written.append(sha256)
        text = json.dumps({**self.header, "written": self.written}, indent=1) + "\n"
        write_atomically(self.folder / HEADER, text.encode())

    def finished(self, step: str) -> dict[str, Any] | None:
        """A step's part; None if it is not there, or is no part of this version."""
        part = read_object(self.parts / f"{step}.json")
        return part if part is not None and part.get("step") == step and isinstance(part.get("status"), str) else None

    def keep(self, step: str, part: Mapping[str, Any]) -> None:
        text = json.dumps(part, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        write_atomically(self.parts / f"{step}.json", text.encode())

    def remove(self) -> None:
        """After the bundle. By a rename first: a run that is killed in here leaves no half of a work folder."""
        clear_away(self.folder)
        with suppress(OSError):
            self.folder.rename(_done(self.folder))
            clear_away(self.folder)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Work:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _done(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.done")


def clear_away(work: Path) -> None:
    """Removes what is left of a work folder that is done with, and the folder if nobody put anything else there."""
    folder = _done(work)
    for old in ("parts", "speed"):
        shutil.rmtree(folder / old, ignore_errors=True)
    with suppress(OSError):
        for name in (HEADER, "costs.json", "child.log", "lock"):
            (folder / name).unlink(missing_ok=True)
        for part in folder.glob(".*.part"):
            part.unlink()
        folder.rmdir()


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object of our own; None if the file is not there or not whole."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def write_atomically(path: Path, data: bytes) -> None:
    """A whole file or nothing: beside it, forced to the disk, then renamed. OutputError if it cannot be done."""
    part = path.with_name(f".{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write {path}: {error.strerror}; free some space and run the same command again: it continues from "
            "what is finished"
        ) from None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
