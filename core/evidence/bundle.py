"""The bundle: a zip of JSON files with a manifest that has every file's hash. Written by `pack`, read by `read`.

A bundle is read as what a stranger sent: sizes are checked before anything is unpacked, nothing is extracted to the
disk, names are matched against a pattern, and whatever is wrong is a BundleError.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core.errors import SparkwrightError, did_you_mean

FORMAT = 1
KIND = "sparkwright evidence"
MANIFEST = "manifest.json"
LARGEST_FILE = 32 << 20
MOST_FILES = 64
LARGEST_MEMBER = 16 << 20
LARGEST_TOTAL = 64 << 20
DEEPEST = 40
_NAME = re.compile(r"[a-z0-9_-]{1,60}\.json")
_STAMP = (1980, 1, 1, 0, 0, 0)  # a zip's clock is local time: it would say where in the world it was made


class BundleError(SparkwrightError):
    """A file that is no bundle, or a damaged one."""

    exit_code = 9


@attrs.frozen
class Bundle:
    """What a bundle holds. parts: by file name, the manifest left out. sha256: of the whole file."""

    manifest: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, Any]]
    sha256: str
    bytes: int


def pack(manifest: Mapping[str, Any], parts: Mapping[str, Any]) -> bytes:
    """A zip with `parts` by file name and the manifest, which gets `files`: name -> bytes and sha256. The same parts
    give the same bytes."""
    files = {name: _json(part) for name, part in parts.items()}
    hashes = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
    everything = {MANIFEST: _json({"format": FORMAT, "kind": KIND, **manifest, "files": hashes}), **files}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in everything.items():
            assert _NAME.fullmatch(name)
            info = zipfile.ZipInfo(name, _STAMP)
            info.compress_type, info.external_attr, info.create_system = zipfile.ZIP_DEFLATED, 0o644 << 16, 3
            archive.writestr(info, data)
    return made.getvalue()


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


# ------------------------------------------------------------------------------------------------------- reading


def read(path: Path) -> Bundle:
    """Reads and verifies a bundle. BundleError says in one sentence what is wrong with it."""
    try:
        if not path.is_file():
            hint = "" if path.exists() else did_you_mean(path.name, _neighbours(path))
            what = "is not a file" if path.exists() else "does not exist"
            raise BundleError(f"{path} {what}{hint}; expected a file that `sparkwright evidence` wrote")
        size = path.stat().st_size
        if size > LARGEST_FILE:
            raise BundleError(f"{path} has {size:,} bytes; no bundle has more than {LARGEST_FILE:,}")
        raw = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
    try:
        files = _members(raw)
        manifest = _parse(MANIFEST, files.pop(MANIFEST))
        _check(manifest, files)
        parts = {name: _parse(name, data) for name, data in files.items()}
    except BundleError as error:
        raise BundleError(f"{path}: {error}") from None
    return Bundle(manifest, parts, hashlib.sha256(raw).hexdigest(), len(raw))


def _neighbours(path: Path) -> list[str]:
    return [p.name for p in path.parent.glob("*.zip")] if path.parent.is_dir() else []


def _members(raw: bytes) -> dict[str, bytes]:
    """Every member, decompressed within bounds."""
    try:
        archive = zipfile.ZipFile(io.BytesIO(raw))
        infos = archive.infolist()
        if len(infos) > MOST_FILES:
            raise BundleError(f"it holds {len(infos)} files; no bundle has more than {MOST_FILES}")
        found: dict[str, bytes] = {}
        total = 0
        for info in infos:
            name = info.filename
            if not _NAME.fullmatch(name):
                raise BundleError(f"it holds {name[:60]!r}; expected plain names that end in .json")
            if name in found:
                raise BundleError(f"it holds {name!r} twice")
            if info.flag_bits & 1:
                raise BundleError(f"{name} is encrypted; a bundle is not")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise BundleError(f"{name} is packed with method {info.compress_type}; expected deflate")
            total += info.file_size
            if info.file_size > LARGEST_MEMBER or total > LARGEST_TOTAL:
                raise BundleError(
                    f"{name} unpacks to {info.file_size:,} bytes; a file may have {LARGEST_MEMBER:,}, all together "
                    f"{LARGEST_TOTAL:,}"
                )
            with archive.open(info) as member:
                data = member.read(info.file_size + 1)
            if len(data) != info.file_size:
                raise BundleError(f"{name} does not have the size that the zip says; the file is damaged")
            found[name] = data
    except BundleError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError, KeyError,
            LookupError, OverflowError, MemoryError, ArithmeticError) as error:  # fmt: skip
        raise BundleError(
            f"not a whole zip file ({error or type(error).__name__}); send or download it again"
        ) from None
    except Exception as error:  # struct.error and whatever else a hostile archive brings out of zipfile
        raise BundleError(f"not a zip file that can be read ({type(error).__name__})") from None
    if MANIFEST not in found:
        raise BundleError(f"it has no {MANIFEST}; expected a file that `sparkwright evidence` wrote")
    return found


def _check(manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    if manifest.get("kind") != KIND:
        raise BundleError(f"its {MANIFEST} is not that of an evidence bundle")
    version = manifest.get("format")
    if version != FORMAT:
        raise BundleError(
            f"it has format {str(version)[:20]!r}; this version reads format {FORMAT}. Upgrade sparkwright"
        )
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise BundleError(f"its {MANIFEST} lists no files")
    for name in sorted({*listed, *files}):
        if name not in files:
            raise BundleError(f"{name[:60]!r} is listed in its {MANIFEST} and missing")
        if name not in listed:
            raise BundleError(f"{name} is not listed in its {MANIFEST}: it was added afterwards")
        said, data = listed[name], files[name]
        actual = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if said != actual:
            raise BundleError(f"{name} is not what its {MANIFEST} says (sha256 differs): it was changed or damaged")


def _parse(name: str, data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
        if not isinstance(value, dict):
            raise ValueError(f"a JSON {type(value).__name__}, expected an object")
        _shallow(value)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{name} is not valid: {str(error)[:120]}") from None
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _shallow(value: Any, depth: int = 0) -> None:
    """Strings that can be encoded, numbers that are finite, and no deeper than anything of ours is."""
    if depth > DEEPEST:
        raise ValueError(f"nested deeper than {DEEPEST}")
    if isinstance(value, str):
        value.encode("utf-8")  # a lone surrogate is a ValueError
    elif isinstance(value, float) and value in (float("inf"), float("-inf")):
        raise ValueError("a number that is too large")
    elif isinstance(value, dict):
        for key, item in value.items():
            _shallow(key, depth + 1)
            _shallow(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _shallow(item, depth + 1)
