"""Takes whatever could name a person or a machine out of plain data: paths, user and host names, addresses.

The first defence is that steps only report what they mean to report; this is the second, for error messages and for
options that hold paths. It does not know every name in the world: it knows those of this process's user and host, and
the shapes of paths, e-mail and network addresses. Too much is taken out rather than too little.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs

NOBODY = frozenset(
    {
        "admin", "administrator", "code", "daemon", "default", "draft", "guest", "home", "host", "localhost",
        "mac", "macbook", "machine", "model", "models", "nobody", "path", "pi", "python", "root", "rows",
        "runner", "steps", "system", "target", "test", "tester", "text", "tokens", "ubuntu", "user", "users",
        "verify", "work",
    }
)  # fmt: skip
"""User and host names that name nobody; replacing them would only make sentences unreadable."""
LEAST = 3
"""Letters of a name below which it is no name: replacing every `a` or `ai` would say more than it hides."""

_SCHEME = re.compile(r"\b(?!https?://)[a-z][a-z0-9+.-]*://[^\s'\"`<>]*", re.I)
_QUOTED = re.compile(r"(['\"`])(?:~|[A-Za-z]:)?[/\\](?:(?!\1).)*\1")
# An unknown path goes on over blanks as long as one of the next words still has a slash in it.
_PATH = re.compile(
    r"(?<![\w/>~.])(?:~[\w.-]*/|/(?=[^\s/])|[A-Za-z]:\\)[^\s'\"`,;)\]}]*(?:(?: [^\s/]+){0,4} [^\s/]*/\S*)*"
)
_FOLDER = "\x00"
_MAIL = re.compile(r"[\w.+-]+@[\w-][\w.-]*")
_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])|(?<![\w:])(?:[0-9a-f]{2}[:-]){5}[0-9a-f]{2}(?![\w:])"
    r"|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    re.I,
)
_HEX = re.compile(r"[0-9a-f]{12,}")


@attrs.frozen
class Scrubber:
    """paths: what a path becomes, longest first ("<model>", "<path>"). names: (name, what it becomes). keep: strings
    that stay as they are when they are the whole of a value (names of prompts and steps)."""

    paths: tuple[tuple[str, str], ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    keep: frozenset[str] = frozenset()

    def value(self, value: Any) -> Any:
        """The same plain data with every string and every key scrubbed."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def text(self, text: str) -> str:
        if text in self.keep:
            return text
        text = unicodedata.normalize("NFC", text)
        # Below the model and the work folder file names are ours; below any other folder they may be anybody's.
        for path, shown in self.paths:
            if shown != "<path>":
                text = re.sub(re.escape(path) + r"(?![\w-])", shown, text, flags=re.I)
        text = _SCHEME.sub("<path>", text)
        text = _QUOTED.sub(lambda found: f"{found[1]}<path>{found[1]}", text)
        for path, shown in self.paths:
            if shown == "<path>":  # a known folder may have blanks in its name: one word for it, then the rest goes
                text = re.sub(re.escape(path) + r"(?![\w-])", f"/{_FOLDER}", text, flags=re.I)
        text = _PATH.sub(lambda found: "<path>" + found[0][len(found[0].rstrip(":.")) :], text)
        text = _MAIL.sub("<e-mail>", text)
        text = _ADDRESS.sub("<address>", text)
        for name, shown in self.names:
            text = _without(text, name, shown)
        return text


def _without(text: str, name: str, shown: str) -> str:
    """Text without a name that stands as a word, or anywhere if it is long; never inside a hash or a mark of ours."""
    anywhere = len(name) >= 6
    pattern = re.escape(name) if anywhere else rf"(?<![^\W\d_]){re.escape(name)}(?![^\W\d_])"
    hashes = [found.span() for found in _HEX.finditer(text)]
    marks = [found.span() for found in re.finditer(r"<(?:model|work|path|e-mail|address|user|host)>", text)]

    def replace(found: re.Match[str]) -> str:
        start, end = found.span()
        inside = any(a <= start and end <= b and (a, b) != (start, end) for a, b in [*hashes, *marks])
        return found[0] if inside else shown

    return re.sub(pattern, replace, text, flags=re.I)


def scrubber_for(
    *, model: Iterable[Path] = (), work: Iterable[Path] = (), others: Iterable[str | Path] = (),
    keep: Iterable[str] = (), names: tuple[tuple[str, str], ...] | None = None,
) -> Scrubber:  # fmt: skip
    """A scrubber for this process. others: paths of which nothing may be seen. names: instead of this machine's."""
    known: dict[str, str] = {}
    tell = [("<model>", model), ("<work>", work), ("<path>", others), ("<path>", _places())]
    for shown, paths in tell:
        for path in paths:
            for spelling in _spellings(path):
                known.setdefault(spelling, shown)
    for path in [p for _, group in tell for p in group]:
        for parent in Path(path).expanduser().absolute().parents:
            if len(parent.parts) > 2:  # "/Users" names nobody
                known.setdefault(str(parent), "<path>")
    longest = sorted((item for item in known.items() if len(item[0]) > 2), key=lambda item: -len(item[0]))
    own = names if names is not None else (*(("<user>", n) for n in _users()), *(("<host>", n) for n in _hosts()))
    usable = {
        unicodedata.normalize("NFC", name): shown
        for shown, name in own
        if len(name) >= LEAST and name.casefold() not in NOBODY
    }
    ordered = sorted(usable.items(), key=lambda item: -len(item[0]))
    return Scrubber(tuple(longest), tuple(ordered), frozenset(keep))


def _spellings(path: str | Path) -> set[str]:
    given = Path(path).expanduser()
    found = {str(path), str(given), str(given.absolute())}
    with suppress(OSError, RuntimeError):
        found.add(str(given.resolve()))
    found = {unicodedata.normalize("NFC", spelling) for spelling in found}
    return {s for s in found | {quote(s) for s in found} if os.sep in s or "%" in s}


def _places() -> list[Path]:
    places = [Path(sys.prefix), Path(sys.base_prefix), Path(tempfile.gettempdir()), Path(__file__).parents[2]]
    with suppress(OSError):
        places.append(Path.cwd())
    with suppress(RuntimeError):
        places.append(Path.home())
    return places


def _users() -> set[str]:
    """Every name this process's user has: account, home folder, and the name in full."""
    found = {os.environ.get(key, "") for key in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    with suppress(Exception):  # no entry for this user id (a container)
        found.add(getpass.getuser())
    with suppress(RuntimeError):
        found.add(Path.home().name)
    with suppress(ImportError, KeyError):
        import pwd

        entry = pwd.getpwuid(os.getuid())
        full = entry.pw_gecos.split(",")[0].strip()
        found |= {entry.pw_name, Path(entry.pw_dir).name, full, *full.split()}
    return {name for name in found if name}


def _hosts() -> set[str]:
    found = {socket.gethostname(), platform.node(), os.environ.get("HOSTNAME", ""), os.environ.get("HOST", "")}
    if sys.platform == "darwin":
        for key in ("ComputerName", "LocalHostName", "HostName"):
            with suppress(OSError, subprocess.SubprocessError):
                asked = ["scutil", "--get", key]
                found.add(subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout.strip())
    return {name for host in found for name in (host, host.partition(".")[0]) if name}
