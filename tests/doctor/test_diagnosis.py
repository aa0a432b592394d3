"""Each thing that can be wrong with an installation is found, and comes with what to do about it."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from sparkwright.core.doctor import Diagnosis, Finding, diagnose, probe

CPU_ANSWER: dict[str, Any] = {
    "blas": {"name": "openblas", "threads": 1, "reason": "the system's OpenBLAS"},
    "device": {"kind": "cpu", "default": "Device(cpu, 0)"},
    "gflops": 50.0,
}
GOOD = {"mlx": "0.32.4", "mlx-cpu": "0.32.4", "mlx-lm": "0.32.2"}


@attrs.frozen
class Plugin:
    entry: str
    distribution: str
    why: str
    reason: str


def check(installed: dict[str, str], answer: dict[str, Any] | None = None, *plugins: Plugin) -> Diagnosis:
    given = CPU_ANSWER if answer is None else answer
    return diagnose(plugins, ask=lambda: given, installed=installed, system="Linux")


def findings(diagnosis: Diagnosis, area: str) -> list[Finding]:
    return [f for f in diagnosis.findings if f.area == area]


def test_a_good_installation_is_healthy_and_json() -> None:
    diagnosis = check(GOOD)
    assert diagnosis.healthy
    assert json.loads(json.dumps(diagnosis.as_dict()))["healthy"] is True
    assert diagnosis.backends == ("mlx-cpu",)
    assert {f.level for f in diagnosis.findings if f.area != "compiler"} == {"ok"}


@pytest.mark.parametrize(
    ("installed", "found", "advice"),
    [
        ({}, "mlx is not installed", "sparkwright[cpu]"),
        ({"mlx": "0.32.4"}, "without a backend", "sparkwright[cuda13]"),
        (
            {**GOOD, "mlx-cuda-13": "0.32.4"},
            "mlx-cpu and mlx-cuda-13 are both",
            "pip uninstall -y mlx mlx-cpu mlx-cuda-13",
        ),
        ({**GOOD, "mlx-cpu": "0.32.1"}, "mlx is 0.32.4 and mlx-cpu is 0.32.1", "mlx-cpu==0.32.4"),
        ({"mlx": "0.31.9", "mlx-cpu": "0.31.9"}, "older than 0.32.0", "-U mlx"),
    ],
)
def test_backends_of_mlx_that_do_not_fit(installed: dict[str, str], found: str, advice: str) -> None:
    diagnosis = check(installed)
    (finding,) = findings(diagnosis, "mlx")
    assert not diagnosis.healthy
    assert finding.level == "problem"
    assert found in finding.found
    assert advice in finding.advice


def test_an_mlx_that_does_not_run_is_a_problem_in_its_own_words() -> None:
    diagnosis = check(GOOD, {"error": "ImportError: libmlx.so: cannot open shared object file"})
    (finding,) = findings(diagnosis, "mlx")
    assert "libmlx.so" in finding.found
    assert finding.advice
    assert diagnosis.gflops is None


def test_the_bundled_blas_is_a_note_with_speed_and_cost() -> None:
    blas = {"name": "bundled", "reason": "no system OpenBLAS", "advice": "half as fast; install it"}
    (finding,) = findings(check(GOOD, {**CPU_ANSWER, "blas": blas, "gflops": 2.5}), "blas")
    assert finding.level == "note"
    assert "2.5 GFLOP/s" in finding.found
    assert finding.advice == "half as fast; install it"


def test_on_a_gpu_the_cpus_blas_is_not_mentioned() -> None:
    device = {"kind": "cuda", "device_name": "H200", "memory_size": 5}
    diagnosis = check(GOOD, {"device": device, "blas": {"name": "native"}, "gflops": 1.0})
    assert findings(diagnosis, "blas") == []
    assert diagnosis.memory["device_memory_size"] == 5


def test_a_missing_mlx_lm_is_a_note() -> None:
    diagnosis = check({"mlx": "0.32.4", "mlx-cpu": "0.32.4"})
    (finding,) = findings(diagnosis, "mlx-lm")
    assert (finding.level, diagnosis.healthy) == ("note", True)
    assert "sparkwright[mlx-lm]" in finding.advice


@pytest.mark.parametrize(
    ("why", "level", "advice"),
    [
        ("broken", "problem", "pip install -U acme-spark"),
        ("conflict", "problem", "plugins.disable"),
        ("ignored", "note", ""),
    ],
)
def test_plugins_that_cannot_be_used_are_listed_with_what_to_do(why: str, level: str, advice: str) -> None:
    diagnosis = check(GOOD, None, Plugin("acme", "acme-spark", why, "ImportError: no module named 'x'"))
    (finding,) = findings(diagnosis, "plugins")
    assert finding.level == level
    assert "acme" in finding.found
    assert "no module named 'x'" in finding.found
    assert advice in finding.advice
    assert diagnosis.healthy == (level == "note")


def test_switches_in_the_environment_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKWRIGHT_PLUGINS", "lookup")
    assert check(GOOD).switches["SPARKWRIGHT_PLUGINS"] == "lookup"


def test_this_machine_answers_the_probe() -> None:
    answer = probe()
    assert answer["blas"]["name"] in ("openblas", "bundled", "native")
    assert answer["device"]["kind"] in ("cpu", "cuda", "metal")
    assert answer["gflops"] > 0


def test_a_process_that_dies_on_importing_mlx_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkwright.core.doctor.PROBE", "import os; os.abort()")
    assert "status -6" in probe()["error"]
    monkeypatch.setattr("sparkwright.core.doctor.PROBE", "raise ImportError('libmlx.so: cannot open')")
    assert probe()["error"] == "ImportError: libmlx.so: cannot open"
    monkeypatch.setattr("sparkwright.core.doctor.PROBE", "print('?')")
    assert "no answer" in probe()["error"]
