"""What could name a person is taken out of text; what could not is left alone."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from sparkwright.core.evidence.scrub import Scrubber, scrubber_for

NAMES = (("<user>", "zaphod"), ("<user>", "Zaphod Beeblebrox"), ("<host>", "heart-of-gold"), ("<user>", "zoë"))
HOME = "/Users/zaphod"
MODEL = f"{HOME}/models/My Model"


@pytest.fixture(scope="module")
def scrub() -> Scrubber:
    return scrubber_for(
        model=[Path(MODEL)], work=[Path(f"{HOME}/out.zip.work")], others=[HOME, "/Volumes/Zed SSD/adapters"],
        keep=["code", "code/ring-buffer"], names=NAMES,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        (f"{MODEL}/config.json is missing", "<model>/config.json is missing"),
        (f"'{MODEL}': damaged", "'<model>': damaged"),
        (f"kept in {HOME}/out.zip.work/speed", "kept in <work>/speed"),
        (f"{HOME}/My Documents/tax.pdf", "<path>"),
        (f"cannot read '{HOME}/a b/c d.txt'", "cannot read '<path>'"),
        ("/Volumes/Zed SSD/adapters/x.json: no such file", "<path>: no such file"),
        ("/Volumes/Other Disk/some folder/x.json is gone", "<path> is gone"),
        ("open ~/notes, then ~anna/notes", "open <path>, then <path>"),
        (r"C:\Users\anna\model", "<path>"),
        ("file:///Users/anna/model", "<path>"),
        ("smb://nas.local/models", "<path>"),
        ("/users/ZAPHOD/models/my model/x", "<model>/x"),
        ("/Users/zaphod/models/My%20Model/x", "<model>/x"),
        ("by zaphod, ZAPHOD_2 and zaphods-mac", "by <user>, <user>_2 and <user>s-mac"),
        ("Zaphod Beeblebrox's machine", "<user>'s machine"),
        ("heart-of-gold.local answered", "<host>.local answered"),
        ("write to ford.prefect+x@guide.example or ford@guide", "write to <e-mail> or <e-mail>"),
        ("from 192.168.0.17 and a4:83:e7:01:02:03", "from <address> and <address>"),
        ("id 9F2C1B3A-0000-4000-8000-0123456789AB", "id <address>"),
        (unicodedata.normalize("NFD", "for zoë and zoë's"), "for <user> and <user>'s"),
    ],
)  # fmt: skip
def test_what_names_somebody_goes(scrub: Scrubber, text: str, clean: str) -> None:
    assert scrub.text(text) == clean
    assert scrub.text(clean) == clean, "scrubbing twice is scrubbing once"


@pytest.mark.parametrize(
    "text",
    [
        "a verify of 8 rows takes 1.67 of a plain decode, 40.2 tokens/s, worst/bound 0.5 and/or 1/2",
        "mlx 0.32.4 with mlx-cpu; OpenBLAS 0.3.34.481.3 DYNAMIC_ARCH",
        "numpy 2.4.6 (https://numpy.org/doc)",
        "sha256 " + "ab12" * 16,
        "Linux-6.18.44-x86_64-with-glibc2.36",
        "code/ring-buffer",
        "deepseek_v4: model.safetensors.index.json",
        "<model>/config.json and <path>",
    ],
)
def test_what_names_nobody_stays(scrub: Scrubber, text: str) -> None:
    assert scrub.text(text) == text


def test_a_name_inside_a_hash_is_no_name() -> None:
    scrub = scrubber_for(names=(("<user>", "abe"), ("<user>", "deadbeef")))
    digest = "0abe1deadbeef" + "4" * 51
    assert scrub.text(digest) == digest and scrub.text("abe: deadbeef") == "<user>: <user>"


def test_names_that_name_nobody_are_left_in_sentences() -> None:
    scrub = scrubber_for(names=(("<user>", "root"), ("<host>", "localhost"), ("<user>", "ai"), ("<user>", "model")))
    assert scrub.names == ()


def test_keys_and_depths_are_scrubbed_and_kept_strings_kept(scrub: Scrubber) -> None:
    found = scrub.value({"zaphod": [{"x": ("a@b.example", 1, None, True)}], "kind": "code", "id": "code/ring-buffer"})
    assert found == {"<user>": [{"x": ["<e-mail>", 1, None, True]}], "kind": "code", "id": "code/ring-buffer"}
    user = scrubber_for(keep=["codes"], names=(("<user>", "codes"),))
    assert user.value(["codes", "the codes"]) == ["codes", "the <user>"]


def test_this_machines_own_names_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import getpass
    import platform
    import socket

    home = tmp_path / "slartibartfast"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "trillian")
    monkeypatch.setenv("HOSTNAME", "magrathea.example.org")
    monkeypatch.setattr(socket, "gethostname", lambda: "vogsphere.local")
    monkeypatch.setattr(platform, "node", lambda: "krikkit")
    monkeypatch.setattr(getpass, "getuser", lambda: "marvin")
    scrub = scrubber_for()
    text = f"{home}/x slartibartfast trillian marvin magrathea vogsphere.local vogsphere krikkit {Path.cwd()}/secret"
    clean = scrub.text(text)
    assert clean == "<path> <user> <user> <user> <host> <host> <host> <host> <path>"
