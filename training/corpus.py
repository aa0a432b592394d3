"""The training text: Python sources from wheels and documentation sources from Debian packages, with their licences.

    python corpus.py WHEELS_FOLDER DEBS_FOLDER OUT_FOLDER [--any]

`fetch.sh` fills the two folders. Writes train.txt.xz, heldout.txt.xz (documents separated by NUL) and provenance.json,
and says whether the texts are those of the shipped model (made.sha256). Sources must be those of sources.sha256, all of
them and as they were; with --any they may be others, or fewer, and so is the text.

What is kept: text files of 400 to 120,000 characters, almost all ASCII, no two alike. A file is held out if the hash of
its package and path says so (1 in 64); a training file that shares 20 % or more of its long lines with any held-out
file is dropped, so that copies of held-out code (vendored modules) are not trained on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import shutil
import subprocess
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import inputs

HELD_OUT_ONE_IN = 64
SUFFIXES = (".py", ".rst", ".rst.txt", ".md", ".txt")
SKIP = (
    "/tests/data",
    "/locale/",
    "/migrations/",
    "requirements",
    "SOURCES.txt",
    "top_level.txt",
    "entry_points",
    "/_vendor/",
)
# Licences that put conditions on derived works (LGPL, MPL, GPL, CC-BY-SA): read, so that held-out files stay apart from
# copies of themselves, but never written.
EXCLUDED = ("paramiko", "tqdm", "docutils", "python-celery-doc")
TESTS_KEPT_ONE_IN = 4  # test modules repeat themselves; a quarter of them is enough


def from_wheels(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """(package and version, licence, path, text) of each file."""
    for wheel in sorted(folder.glob("*.whl")):
        if not zipfile.is_zipfile(wheel):
            inputs.stop(f"{wheel} is no wheel (a zip file); delete it and run fetch.sh again")
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            meta = next((n for n in names if n.endswith(".dist-info/METADATA")), None)
            if meta is None:
                inputs.stop(f"{wheel} is no wheel (it has no .dist-info/METADATA); delete it and run fetch.sh again")
            headers = Parser().parsestr(archive.read(meta).decode("utf-8", "replace"))
            classifiers = [c for c in headers.get_all("Classifier", []) if c.startswith("License ::")]
            licence = headers.get("License-Expression") or "; ".join(c.split(" :: ")[-1] for c in classifiers)
            licence = licence or (headers.get("License") or "see package").splitlines()[0]
            package = f"{headers['Name']} {headers['Version']}"
            for name in names:
                if name.endswith(SUFFIXES) and ".dist-info/" not in name:
                    yield package, licence, name, archive.read(name).decode("utf-8", "replace")


def from_debs(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    debs = sorted(folder.glob("*.deb"))
    if debs and shutil.which("dpkg-deb") is None:
        inputs.stop(f"there is no dpkg-deb here to unpack {debs[0]} with; run it on Debian, or install dpkg")
    for deb in debs:
        with tempfile.TemporaryDirectory() as root:
            if subprocess.run(["dpkg-deb", "-x", str(deb), root], stderr=subprocess.DEVNULL).returncode:
                inputs.stop(f"dpkg-deb cannot unpack {deb}; delete it and run fetch.sh again")
            package = deb.name.split("_")[0] + " " + deb.name.split("_")[1]
            licences = [p for p in Path(root).glob("usr/share/doc/*/copyright")]
            licence = f"see {licences[0].relative_to(root)}" if licences else "see package"
            for path in sorted(Path(root).rglob("*")):
                if path.is_file() and not path.is_symlink() and path.name.endswith(SUFFIXES):
                    name = str(path.relative_to(root))
                    yield package, licence, name, path.read_bytes().decode("utf-8", "replace")


def usable(name: str, text: str) -> bool:
    if not 400 <= len(text) <= 120_000 or any(part in name for part in SKIP) or "\0" in text:
        return False
    if ("/tests/" in name or "/test_" in name) and number(name) % TESTS_KEPT_ONE_IN:
        return False
    lines, counts = text.splitlines(), Counter(text)
    plain = sum(n for c, n in counts.items() if c.isascii()) / len(text)
    letters = sum(n for c, n in counts.items() if c.isalpha() or c.isspace()) / len(text)
    return plain > 0.98 and letters > 0.6 and max(map(len, lines), default=0) < 400


def number(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")


def long_lines(text: str) -> set[int]:
    return {hash(line.strip()) for line in text.splitlines() if len(line.strip()) >= 30}


def checked(wheels: Path, debs: Path) -> int:
    """Refuses sources that are not those of sources.sha256, before an hour is spent on them; -> how many there are."""
    listed = inputs.listed(inputs.SOURCES)
    found = {f"wheels/{p.name}": p for p in wheels.glob("*.whl")} | {f"debs/{p.name}": p for p in debs.glob("*.deb")}
    other = "--any takes sources as they are, for another text than the shipped model's"
    for name, path in sorted(found.items()):
        if name not in listed:
            inputs.stop(f"{path} is not one of {inputs.SOURCES.name}; take it away, or: {other}")
        with path.open("rb") as opened:
            if hashlib.file_digest(opened, "sha256").hexdigest() != listed[name]:
                inputs.stop(f"{path} has another hash than in {inputs.SOURCES.name}; fetch it again, or: {other}")
    missing = sorted(listed.keys() - found.keys())
    if missing:
        said = f"{len(missing)} of {len(listed)} sources are not there ({missing[0]} first)"
        inputs.stop(f"{said}; run fetch.sh, or: {other}")
    return len(found)


def main(wheels: Path, debs: Path, out: Path, any_: bool) -> None:
    for folder in (wheels, debs):
        inputs.folder(folder, "fetch.sh")
    if not any_:
        print(f"{checked(wheels, debs)} sources, those of {inputs.SOURCES.name}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    kept: list[tuple[bool, bool, str]] = []  # held out, excluded, text
    sources: dict[str, dict[str, object]] = {}
    for package, licence, name, text in (*from_wheels(wheels), *from_debs(debs)):
        digest = hashlib.sha256("".join(text.split()).encode()).hexdigest()
        if digest in seen or not usable(name, text):
            continue
        seen.add(digest)
        excluded = package.split()[0] in EXCLUDED
        kept.append((number(f"{package} {name}") % HELD_OUT_ONE_IN == 0, excluded, text))
        if excluded:
            continue
        entry = sources.setdefault(package, {"licence": licence, "files": 0, "characters": 0})
        entry["files"] = int(str(entry["files"])) + 1
        entry["characters"] = int(str(entry["characters"])) + len(text)
    held = set().union(*(long_lines(text) for out_, _, text in kept if out_))
    train, dropped = [], 0
    for out_, excluded, text in kept:
        if out_ or excluded:
            continue
        lines = long_lines(text)
        if lines and len(lines & held) / len(lines) >= 0.2:
            dropped += 1
        else:
            train.append(text)
    heldout = [text for out_, excluded, text in kept if out_ and not excluded]
    if not train or not heldout:
        said = f"{len(train)} texts to train on and {len(heldout)} held out"
        inputs.stop(f"{wheels} and {debs} give {said}; give more sources")
    made = {}
    for name, texts in (("train", train), ("heldout", heldout)):
        data = "\0".join(texts).encode()
        made[f"{name}.txt"] = inputs.same(f"{name}.txt", data)
        (out / f"{name}.txt.xz").write_bytes(lzma.compress(data, preset=6))
    summary = {
        "train_documents": len(train), "train_characters": sum(map(len, train)),
        "heldout_documents": len(heldout), "heldout_characters": sum(map(len, heldout)),
        "dropped_for_overlap_with_heldout": dropped, "made": made, "sources": sources,
    }  # fmt: skip
    (out / "provenance.json").write_text(json.dumps(summary, indent=1, sort_keys=True))
    print({key: value for key, value in summary.items() if key != "sources"})


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("wheels", type=Path)
    ap.add_argument("debs", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--any", action="store_true", help="of any sources, not just all those of sources.sha256")
    args = ap.parse_args()
    main(args.wheels, args.debs, args.out, args.any)
