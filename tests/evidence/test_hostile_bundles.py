"""A bundle is what a stranger sent: whatever is wrong with it is one sentence, before memory or disk are used."""

from __future__ import annotations

import hashlib
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.evidence import fakes

from sparkwright.core.evidence import bundle
from sparkwright.core.evidence.bundle import BundleError

GOOD = {"01-one.json": {"step": "one"}, "02-two.json": {"step": "two"}}


def refused(path: Path, says: str) -> None:
    with pytest.raises(BundleError) as error:
        bundle.read(path)
    said = str(error.value)
    assert says in said and "\n" not in said and len(said) < 600, said


def zipped(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def with_manifest(files: dict[str, bytes], **more: Any) -> dict[str, bytes]:
    """The files with a manifest that is right about them."""
    hashes = {n: {"bytes": len(d), "sha256": hashlib.sha256(d).hexdigest()} for n, d in files.items()}
    manifest = {"format": 1, "kind": bundle.KIND, "files": hashes} | more
    return {"manifest.json": json.dumps(manifest).encode(), **files}


def test_what_is_packed_is_read_and_the_same_parts_give_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(bundle.pack({"machine": "m"}, GOOD))
    found = bundle.read(path)
    assert found.parts == GOOD and found.manifest["machine"] == "m" and found.bytes == path.stat().st_size
    assert bundle.pack({"machine": "m"}, GOOD) == path.read_bytes()


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    raw, path = bundle.pack({}, GOOD), tmp_path / "a.zip"
    for length in range(0, len(raw), 7):
        path.write_bytes(raw[:length])
        refused(path, "a.zip: not a whole zip file")


def test_flipped_bits_are_refused_or_change_nothing(tmp_path: Path) -> None:
    raw, path, chance = bundle.pack({"machine": "m"}, GOOD), tmp_path / "a.zip", random.Random(1)
    unharmed = 0
    for _ in range(300):
        harmed = bytearray(raw)
        harmed[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(harmed)
        try:
            found = bundle.read(path)
        except BundleError:
            continue
        assert found.parts == GOOD and found.manifest["machine"] == "m"
        unharmed += 1  # a date, an attribute: nothing that is read
    assert unharmed < 150


@pytest.mark.parametrize(
    ("name", "says"),
    [("../up.json", "plain names"), ("/etc/x.json", "plain names"), ("a/b.json", "plain names"),
     ("C:x.json", "plain names"), ("run.py", "plain names"), (".json", "plain names"), ("a\\b.json", "plain names"),
     ("x" * 70 + ".json", "plain names"), ("a\x1b[2J.json", "plain names")],
)  # fmt: skip
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, says: str) -> None:
    refused(zipped(tmp_path / "a.zip", with_manifest({name: b"{}"})), says)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"], "nothing is unpacked"


def test_sizes_are_checked_before_anything_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zipped(tmp_path / "a.zip", with_manifest({"bomb.json": b" " * (17 << 20)}))
    assert bomb.stat().st_size < 100_000
    real = zipfile.ZipExtFile.read

    def read(self: zipfile.ZipExtFile, n: int | None = -1) -> bytes:
        assert self.name != "bomb.json", "it was unpacked"
        return real(self, n)

    monkeypatch.setattr(zipfile.ZipExtFile, "read", read)
    refused(bomb, "bomb.json unpacks to 17,825,792 bytes")
    many = zipped(tmp_path / "b.zip", {f"f{i}.json": b"" for i in range(65)})
    refused(many, "holds 65 files")
    monkeypatch.setattr(bundle, "LARGEST_FILE", 100)
    refused(bomb, "no bundle has more than 100")


def test_all_together_must_not_be_too_large(tmp_path: Path) -> None:
    files = {f"f{i}.json": b" " * (15 << 20) for i in range(5)}
    refused(zipped(tmp_path / "a.zip", files), "all together 67,108,864")


def test_a_size_that_lies_is_noticed(tmp_path: Path) -> None:
    """The table says 10 bytes where a megabyte is packed: no more than the 10 are read, and their CRC is wrong."""
    raw = bytearray(zipped(tmp_path / "a.zip", with_manifest({"x.json": b" " * (1 << 20)})).read_bytes())
    for at in range(len(raw) - 4):
        if raw[at : at + 4] == (1 << 20).to_bytes(4, "little"):
            raw[at : at + 4] = (10).to_bytes(4, "little")
    (tmp_path / "a.zip").write_bytes(raw)
    refused(tmp_path / "a.zip", "not a whole zip file")


def test_odd_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    refused(zipped(path, with_manifest({"x.json": b"{}"}), zipfile.ZIP_BZIP2), "packed with method 12")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.json", "{}")
        archive.writestr("x.json", "{}")
    refused(path, "'x.json' twice")
    raw = bytearray(bundle.pack({}, GOOD))
    at = raw.rindex(b"PK\x01\x02")  # the table's last entry: its flags say it is encrypted
    raw[at + 8] |= 1
    path.write_bytes(raw)
    refused(path, "is encrypted")
    for junk in (b"", b"PK", b"\x00" * 1000, b"%PDF-1.7", b"PK\x05\x06" + b"\xff" * 18):
        path.write_bytes(junk)
        refused(path, "not a")
    refused(tmp_path, "is not a file")
    refused(tmp_path / "a.zpi", "did you mean 'a.zip'")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: f.pop("manifest.json"), "it has no manifest.json"),
        (lambda f: f.update({"manifest.json": b"[]"}), "expected an object"),
        (lambda f: f.update({"manifest.json": b'{"kind": "else"}'}), "not that of an evidence bundle"),
        (lambda f: f.update(with_manifest({}, format=2)), "this version reads format 1. Upgrade"),
        (lambda f: f.update({"manifest.json": f["manifest.json"].replace(b'"files"', b'"some"')}), "lists no files"),
        (lambda f: f.update({"y.json": b"{}"}), "y.json is not listed"),
        (lambda f: f.pop("x.json"), "'x.json' is listed in its manifest.json and missing"),
        (lambda f: f.update({"x.json": b"{ }"}), "x.json is not what its manifest.json says"),
    ],
)  # fmt: skip
def test_a_manifest_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, bytes]], Any], says: str
) -> None:
    files = with_manifest({"x.json": b"{}"})
    change(files)
    refused(zipped(tmp_path / "a.zip", files), says)


@pytest.mark.parametrize(
    ("text", "says"),
    [(b"{", "not valid"), (b"[1]", "expected an object"), (b'{"a": NaN}', "NaN is not JSON"), (b"\xff\xfe", "not"),
     (b'{"a": 1, "a": 2}', "a key appears twice"), (b'{"a": 1e999}', "too large"), (b'{"a": "\\ud800"}', "not valid"),
     (b'{"a": ' + b"[" * 100_000, "not valid"), (b'{"a": ' + b"[" * 50 + b"]" * 50 + b"}", "nested deeper than 40"),
     (b'{"a": ' + b"9" * 5000 + b"}", "not valid")],
)  # fmt: skip
def test_json_that_is_none_is_refused(tmp_path: Path, text: bytes, says: str) -> None:
    refused(zipped(tmp_path / "a.zip", with_manifest({"x.json": text})), says)


def test_the_sample_is_whole(tmp_path: Path) -> None:
    found = bundle.read(fakes.packed(tmp_path))
    assert len(found.parts) == 7
