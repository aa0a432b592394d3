"""What is shown of a bundle: the numbers that are in it, whatever else a stranger may have put there."""

from __future__ import annotations

import copy
import json
import random
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.evidence import fakes

from sparkwright.core.cli import cli
from sparkwright.core.evidence import bundle, view
from sparkwright.core.evidence.page import page

JUNK: list[Any] = [
    None, True, -1, 0, 1e308, -1e-300, 10**400, "", "x" * 5000, "<script>alert(1)</script>", "\x1b[2J\x9b31m",
    "\u202egnp",    "' onload='x", [], {}, [[]], [None], {"a": {"b": 1}}, [{"prompt": 3}], "not passed", 0.5, 3,
]  # fmt: skip


class Checked(HTMLParser):
    """Tags are closed, ids are used once, nothing is loaded and nothing runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open
        assert len(self.ids) == len(set(self.ids))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "img", "link", "iframe", "object", "embed", "form", "base", "a" * 2), tag
        names = dict(attrs)
        assert not [n for n in names if n.startswith("on") or n in ("src", "srcset", "action")], names
        assert names.get("href", "#")[:1] == "#" and "url(" not in (names.get("style") or "")  # type: ignore[index]
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, ["evidence", "show", *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.stdout


def test_the_terminal_shows_the_steps_and_their_numbers(tmp_path: Path) -> None:
    text = " ".join(invoke(str(fakes.packed(tmp_path))).split())
    data = fakes.sample()["parts"]
    plain = data["06-calibrate.json"]["data"]["curves"]["plain"]
    ratio = data["07-speed.json"]["data"]["comparisons"][0]["decode"]["ratio"]
    assert f"{1000 * plain:.3f}" in text and f"{ratio:.4f}" in text
    assert "not applicable" in text and "Not checked: on this device (cpu)" in text
    assert "7 files have the hashes of the manifest" in text


def test_json_has_everything_and_is_plain_ascii(tmp_path: Path) -> None:
    path = fakes.packed(tmp_path, lambda d: d["manifest"].update(machine="\x9b31m é"))
    text = invoke(str(path), "--json")
    data = json.loads(text)
    assert text.isascii() and data["verified"] and data["manifest"]["machine"] == "\x9b31m é"
    assert data["parts"]["06-calibrate.json"] == fakes.sample()["parts"]["06-calibrate.json"]


def test_the_page_is_one_file_with_plots_and_tables(tmp_path: Path) -> None:
    out = tmp_path / "e.html"
    assert invoke(str(fakes.packed(tmp_path)), "--html", str(out)).strip() == str(out)
    text = out.read_text()
    checked = Checked(text)
    assert re.findall(r"https?://", text) == []
    assert text.count('role="img"') == 4, "consistency, costs, ratios and tau are plotted"
    assert text.count("<svg") == text.count("<desc") == 4, "each is described"
    assert "prefers-color-scheme:dark" in text and 'lang="en"' in text and "Content-Security-Policy" in text
    said = " ".join(checked.text)
    for part in fakes.sample()["parts"].values():
        assert part["summary"] in said
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))


def test_the_headline_says_what_was_not_checked_and_what_failed(tmp_path: Path) -> None:
    def head(**status: str) -> str:
        def change(data: dict[str, Any]) -> None:
            for name, part in data["parts"].items():
                step = name[3:-5]
                part["status"] = status.get(step, "ok")

        text = page(bundle.read(fakes.packed(tmp_path, change)))
        Checked(text)
        found = re.search(r'<div class="verdict [^"]*"><strong>([^<]*)', text)
        assert found
        return found[1]

    assert head() == "Every step ran"
    assert "not everything can be checked" in head(kernels="not applicable")
    assert head(kernels="not passed", speed="failed") == "An audit did not pass"
    assert head(speed="failed") == "Not every step could be run"
    assert head(speed="splendid") == "Not every step could be run", "a status nobody knows is no success"


def test_a_step_that_was_not_run_is_shown_as_such(tmp_path: Path) -> None:
    path = fakes.packed(tmp_path, lambda d: d["parts"].pop("07-speed.json"))
    assert [s.status for s in view.sections(bundle.read(path)) if s.name == "speed"] == ["not run"]
    assert "Not every step was run" in page(bundle.read(path))


def test_kernels_that_were_compared_are_listed_with_the_one_that_is_wrong(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        part = data["parts"]["04-kernels.json"]
        op = {"op": "attend_rows", "backend": "fused", "calls": 70, "rows": [1, 6], "worst": 0.25, "ties": 1}
        wrong = op | {"op": "markov_chain", "worst": 7.5, "excess": {"fault": "differs"}}
        part["data"]["ops"], part["status"] = [op | {"excess": None}, wrong], "not passed"

    path = fakes.packed(tmp_path, change)
    text = " ".join(invoke(str(path)).split())
    assert (
        "attend_rows fused 70 1,6 0.250 1 within bounds" in text and "markov_chain fused 70 1,6 7.500 1 differs" in text
    )


def test_widths_beyond_rounding_are_told_apart(tmp_path: Path) -> None:
    def change(data: dict[str, Any]) -> None:
        widths = data["parts"]["05-consistency.json"]["data"]["widths"]
        next(w for w in widths if w["mode"] == "block" and w["rows"] == 5).update(structural=2, largest=3.5)
        next(w for w in widths if w["mode"] == "block" and w["rows"] == 6).update(numeric=1, largest=None)

    path = fakes.packed(tmp_path, change)
    text = page(bundle.read(path))
    assert "Beyond rounding: block of 5 rows, block of 6 rows." in text and "not finite" in invoke(str(path))
    Checked(text)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += places(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value[:4]):
            found += places(item, (*path, i))
    return found


def planted(data: dict[str, Any], path: tuple[Any, ...], junk: Any) -> None:
    at: Any = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = copy.deepcopy(junk)


def everywhere_else(value: Any, junk: str) -> Any:
    """The same with every text replaced, but for what tells the steps apart."""
    if isinstance(value, dict):
        return {k: v if k in ("step", "status") else everywhere_else(v, junk) for k, v in value.items()}
    if isinstance(value, list):
        return [everywhere_else(v, junk) for v in value]
    return junk if isinstance(value, str) else value


@pytest.mark.parametrize("junk", [j for j in JUNK if isinstance(j, str)])
def test_a_bundle_in_which_every_text_is_hostile_is_shown_harmlessly(junk: str) -> None:
    harmless(everywhere_else(fakes.sample(), junk), junk)


def every(step: int, seed: int) -> None:
    """Every step-th place of a real bundle in turn gets something else."""
    chance, real = random.Random(seed), fakes.sample()
    everywhere = places(real)
    assert len(everywhere) > 500
    for path in everywhere[seed::step]:
        data, junk = copy.deepcopy(real), chance.choice(JUNK)
        planted(data, path, junk)
        harmless(data, (path, junk))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_a_stranger_writes_is_shown_harmlessly(seed: int) -> None:
    every(16, seed)


@pytest.mark.kit
@pytest.mark.parametrize("seed", range(2))
def test_whatever_a_stranger_writes_in_many_places_is_shown_harmlessly(seed: int) -> None:
    every(3, seed)


@pytest.mark.parametrize("seed", range(6))
def test_many_strange_things_at_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(100 + seed)
    data = fakes.sample()
    for path in chance.sample(places(data), 60):
        try:
            planted(data, path, chance.choice(JUNK))
        except (KeyError, IndexError, TypeError):
            continue  # something above it is no longer what it was
    harmless(data, seed)


def harmless(data: dict[str, Any], what: Any) -> None:
    manifest = data["manifest"] if isinstance(data["manifest"], dict) else {}
    parts = (
        {k: v if isinstance(v, dict) else {} for k, v in data["parts"].items()}
        if isinstance(data["parts"], dict)
        else {}
    )
    found = bundle.Bundle({**manifest, "files": {}}, parts, "0" * 64, 1)
    text = page(found)
    Checked(text)
    assert not set("\x1b\x9b\u202e") & set(text), what
    assert len(text) < 400_000, what
    shown = [*(cell for row in view.overview(found) for cell in row)]
    shown += [cell for s in view.sections(found) for t in s.tables for row in t.rows for cell in row]
    assert not [cell for cell in shown if set("\x1b\x9b\u202e\n") & set(cell)], what


def test_what_is_wrong_with_a_bundle_is_an_error_with_a_status(tmp_path: Path) -> None:
    from sparkwright.core.evidence.bundle import BundleError

    path = fakes.packed(tmp_path)
    path.write_bytes(path.read_bytes()[:-30])
    for more in ((), ("--json",), ("--html", str(tmp_path / "x.html"))):
        result = CliRunner().invoke(cli, ["evidence", "show", str(path), *more])
        assert isinstance(result.exception, BundleError) and result.stdout == ""
    assert BundleError.exit_code == 9 and not (tmp_path / "x.html").exists()
    good = str(fakes.packed(tmp_path))
    assert CliRunner().invoke(cli, ["evidence", "show", good, "--json", "--html", "x"]).exit_code == 2
    for where, says in ((str(tmp_path / "no" / "x.html"), "does not exist"), (str(tmp_path), "is a folder")):
        result = CliRunner().invoke(cli, ["evidence", "show", good, "--html", where])
        assert says in str(result.exception)
