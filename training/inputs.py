"""How every script here asks for what it needs, and says in one sentence, with status 1, what it does not find.

Importing it is part of that: a package that is not installed ends a script with a sentence too.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from types import TracebackType
from typing import NoReturn

HERE = Path(__file__).parent
CARD = "docs/demo-model.md"
SOURCES = HERE / "sources.sha256"
"""Hashes of the files that fetch.sh brings: `HASH  wheels/NAME` or `HASH  debs/NAME`, as sha256sum writes them."""
MADE = HERE / "made.sha256"
"""Hashes of what the shipped model was trained with, made of all of SOURCES: `HASH  NAME`."""


def stop(said: str) -> NoReturn:
    raise SystemExit(f"{Path(sys.argv[0]).name}: {said}")


def file(path: Path, made_by: str) -> Path:
    """The path, if there is a file with something in it."""
    if not path.is_file():
        stop(f"{path} is not there; {made_by} makes it ({CARD}, Training it again)")
    if not path.stat().st_size:
        stop(f"{path} is empty; {made_by} makes it anew ({CARD}, Training it again)")
    return path


def folder(path: Path, made_by: str) -> Path:
    if not path.is_dir():
        stop(f"{path} is no folder; {made_by} makes it ({CARD}, Training it again)")
    return path


def weights(path: Path, made_by: str) -> Path:
    """The path, if its header can be read and the file is as long as the header says."""
    size = file(path, made_by).stat().st_size
    try:
        with path.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > size:
                raise ValueError
            header = json.loads(opened.read(length))
        header.pop("__metadata__", None)
        whole = 8 + length + max(entry["data_offsets"][1] for entry in header.values())
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        stop(f"{path} is no safetensors file; {made_by} makes it ({CARD}, Training it again)")
    if size != whole:
        stop(f"{path} has {size:,} bytes of {whole:,}: it was not written to the end; run {made_by} again")
    return path


def out(path: Path) -> Path:
    """A file to write: its folder is made."""
    if path.is_dir():
        stop(f"{path} is a folder, and a file is to be written there; give the file's name")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def listed(path: Path) -> dict[str, str]:
    """Name -> hash."""
    pairs = (line.split(maxsplit=1) for line in path.read_text(encoding="utf-8").splitlines())
    return {name.lstrip("*"): digest for digest, name in pairs}


def same(name: str, data: bytes) -> dict[str, object]:
    """The hash of what was made, and whether it is what the shipped model was trained with."""
    digest = hashlib.sha256(data).hexdigest()
    return {"sha256": digest, "as_shipped": listed(MADE).get(name) == digest}


def sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Instead of a traceback, where the fault is not the script's."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        name = error.name.split(".")[0]
        print(
            f"{Path(sys.argv[0]).name}: this Python has no package {name}; "
            f"{CARD} (Training it again) says what to install",
            file=sys.stderr,
        )
    else:
        sys.__excepthook__(kind, error, trace)


sys.excepthook = sentence
