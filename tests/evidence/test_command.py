"""`sparkwright evidence` from the command line: statuses, what is printed where, and a run of the bundled model."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.evidence import fakes

from sparkwright.core.cli import cli
from sparkwright.core.evidence import bundle, run
from sparkwright.core.evidence.steps import Step

TOOL = Path(__file__).parents[2] / "tools" / "check_report.py"
Call = Callable[..., Result]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command with fake steps in this process: `steps` are their functions."""
    monkeypatch.chdir(tmp_path)
    model = fakes.model(tmp_path / "model")
    real = run.gather

    def invoke(*arguments: str, code: int = 0, steps: tuple[Step, ...] = fakes.THREE) -> Result:
        def gather(*given: object, **named: object) -> run.Report:
            return real(*given, **named, steps=steps, launch=fakes.here)  # type: ignore[arg-type]

        monkeypatch.setattr("sparkwright.core.cli.evidence.gather", gather)
        result = CliRunner().invoke(cli, ["evidence", "--model", str(model), *arguments])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return invoke


def test_a_whole_run_leaves_with_zero_and_says_where_and_what(call: Call, tmp_path: Path) -> None:
    result = call("--out", "e.zip")
    assert result.stdout.startswith("e.zip: ") and "sparkwright evidence show e.zip" in result.stdout
    assert "one: ok (" in result.stderr and "one is as it should be" in result.stderr
    again = call("--out", "e.zip")
    assert "one: ok (finished before)" in again.stderr


def test_statuses_tell_a_failed_audit_from_a_failed_step(call: Call) -> None:
    wrong, refused = fakes.step("one", fakes.wrong), fakes.step("two", fakes.refused)
    assert call("--out", "a.zip", steps=(wrong, fakes.THREE[1]), code=8)
    failed = call("--out", "b.zip", steps=(fakes.THREE[0], refused), code=9)
    assert "could not be run: two" in failed.stdout and "b.zip.work" in failed.stdout
    assert call("--out", "c.zip", steps=(wrong, refused), code=8)


def test_json_is_one_object_on_standard_output(call: Call) -> None:
    data = json.loads(call("--out", "e.zip", "--json", "--only", "one").stdout)
    assert data["passed"] and data["complete"] and data["file"] == "e.zip" and data["work"] == "e.zip.work"
    assert [s["status"] for s in data["steps"]] == ["ok", None, None] and len(data["sha256"]) == 64


def test_what_is_asked_wrongly_is_refused(call: Call, tmp_path: Path) -> None:
    assert "--out FILE.zip is missing" in call(code=2).stderr
    assert "no such step" in str(call("--out", "e.zip", "--only", "sped", code=1).exception)
    assert call("--out", "e.zip", "--pairs", "1", code=2)
    assert "does not exist" in str(call("--out", "no/e.zip", code=1).exception)
    assert "does not exist" in str(call("--out", "e.zip", "--model", "nowhere", code=1).exception)
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_ctrl_c_says_where_it_goes_on(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fakes, "here", interrupted)
    result = call("--out", "e.zip", code=1)  # click's runner; `main` leaves with 130
    assert "what is finished is kept in e.zip.work" in result.stderr


# ------------------------------------------------------------------------------------------------- the real thing


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A --quick run of the bundled model on this machine, in processes of its own."""
    folder = tmp_path_factory.mktemp("evidence")
    command = [sys.executable, "-m", "sparkwright", "evidence", "--out", "demo.zip", "--quick", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["work"] is None and [p.name for p in folder.iterdir()] == ["demo.zip"]
    return folder / "demo.zip"


@pytest.mark.kit
def test_the_bundled_model_gives_a_whole_bundle_that_says_what_a_cpu_cannot_show(real: Path) -> None:
    found = bundle.read(real)
    parts = {part["step"]: part for part in found.parts.values()}
    status = {name: part["status"] for name, part in parts.items()}
    assert status.pop("kernels") == "not applicable" and set(status.values()) == {"ok"} and len(status) == 6
    assert "no fused kernel covers any op" in parts["kernels"]["summary"]
    assert parts["checkpoint"]["data"]["inspected"]["contract"]["fits"] is True
    assert parts["consistency"]["data"]["choices"] and parts["consistency"]["data"]["tokens"] == 40
    assert (
        len(parts["calibrate"]["data"]["curves"]["verify"]) == 8 and parts["calibrate"]["data"]["drafter"] == "dspark"
    )
    speed = parts["speed"]["data"]
    assert speed["comparisons"][0]["decode"]["n"] == 2 and speed["sampler"] == "chain"
    assert speed["arms"][1]["label"] == "speculation with dspark" and speed["arms"][1]["tau"]["value"] >= 1
    configs = [arm["config"] for arm in speed["arms"]]
    assert [c["drafter.use"] for c in configs] == ["none", "dspark"]
    assert {c["sampler.chain.temperature"] for c in configs} == {1.0}
    assert {c["engine.costs"] for c in configs} == {"<work>/costs.json"}
    for part in found.parts.values():
        assert len(part["config_sha256"]) == len(part["checkpoint_sha256"]) == 64 and part["versions"]["mlx"]


@pytest.mark.kit
def test_no_path_of_this_machine_is_in_it(real: Path) -> None:
    said = json.dumps([bundle.read(real).manifest, bundle.read(real).parts])
    assert str(real.parent) not in said and str(Path.home()) not in said and str(Path(sys.prefix)) not in said
    assert '"switches"' not in said, "environment variables"


@pytest.mark.slow
def test_the_page_has_no_fault_in_a_browser(real: Path) -> None:
    page = real.with_suffix(".html")
    assert CliRunner().invoke(cli, ["evidence", "show", str(real), "--html", str(page)]).exit_code == 0
    done = subprocess.run([sys.executable, str(TOOL), str(page)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
