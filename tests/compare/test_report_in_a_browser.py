"""The report page in a real headless Chromium (which must be installed): tools/check_report.py finds no fault in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.core.compare.records import CompareError, Prompt
from sparkwright.core.compare.result import CompareResult
from sparkwright.core.compare.runner import Settings
from sparkwright.core.compare.simulated import Machine, SimulatedOpener, simulated_spec

TOOL = Path(__file__).parents[2] / "tools" / "check_report.py"
pytestmark = pytest.mark.slow


def check(*reports: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *map(str, reports)], capture_output=True, text=True, timeout=300)


def test_every_kind_of_report_passes(simulated: Callable[..., CompareResult], tmp_path: Path) -> None:
    base = simulated_spec("A")
    many = [
        base,
        *(simulated_spec(n, f"drafter.use={n * 9}", effect=0.02 * i, block=i) for i, n in enumerate("BCDEF", 1)),
    ]
    long = [Prompt(f"a kind with a long name/prompt number {i}", "k", f"text {i}") for i in range(30)]
    simulated(*many, out=tmp_path / "many", pairs=40, prompts=long, opener=SimulatedOpener(Machine(drift=0.001)))
    simulated(out=tmp_path / "two", command="sparkwright compare x.toml --swap " + "y" * 200)
    simulated(out=tmp_path / "one", pairs=1)
    simulated(base, out=tmp_path / "self", pairs=4, self_test=10, settings=Settings(tokens=8, profile=0))
    with pytest.raises(CompareError):
        bad = simulated_spec("B", "refused", refuse="sides that do not fit")
        simulated(base, bad, out=tmp_path / "none")
    done = check(*(tmp_path / name / "report.html" for name in ("many", "two", "one", "self", "none")))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 report(s): no faults" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("<footer>", '<footer><img src="file:///nowhere.png" alt="">', "nowhere.png"),
        ("--soft:#56554f", "--soft:#c9c9c4", "light: contrast"),
        ("--soft:#b3b1a8", "--soft:#55554f", "dark: contrast"),
        ("<footer><p>", '<footer><p style="width:2000px">', "wider than the window"),
        ('aria-label="Verdict"', "", "no name on <section"),
        ("</main>", '<p id="arms">again</p></main>', "id arms is used twice"),
        (":focus-visible{outline:3px", ":focus-visible{outline:0px", "cannot be seen"),
        ("<h2", "<h4", "heading levels skip"),
    ],
)
def test_the_check_finds_planted_faults(
    simulated: Callable[..., CompareResult], tmp_path: Path, old: str, new: str, fault: str
) -> None:
    simulated()
    page = tmp_path / "out" / "report.html"
    text = page.read_text()
    assert old in text
    page.write_text(text.replace(old, new).replace("</h2>", "</h4>") if new == "<h4" else text.replace(old, new))
    done = check(page)
    assert done.returncode == 1 and fault in done.stdout, done.stdout + done.stderr
