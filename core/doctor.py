"""What `sparkwright doctor` knows: versions, backends of MLX, device, BLAS, memory, plugins, and what to do about each.

Gathers and judges; prints nothing. What needs MLX is asked of a child process, because an MLX whose parts do not fit
together can fail in ways that no `except` sees. Knows no plugin: unusable ones are handed in by the caller.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import attrs

from sparkwright.core import launches

TIMEOUT_S = 120
OLDEST_MLX = (0, 32, 0)
SHOWN = ("sparkwright", "mlx", "mlx-lm", "tokenizers", "transformers", "numpy", "safetensors", "pluggy", "jinja2")
CPU_BACKEND = "mlx-cpu"
ONE_BACKEND = "`pip install 'sparkwright[cpu]'` or, on an NVIDIA GPU, `pip install 'sparkwright[cuda13]'`"

Level = Literal["ok", "note", "problem"]


@attrs.frozen
class Finding:
    """One checked thing. note: works, could be better. problem: something asked of sparkwright will fail."""

    area: str
    level: Level
    found: str
    advice: str = ""


@attrs.frozen
class Diagnosis:
    """Everything, as plain values; `as_dict` is what `doctor --json` prints.

    device: MLX's description of the device, {} if MLX does not run. blas: fields of BlasInfo, {} likewise. memory:
    bytes. gflops: a float32 product of 512 x 512 on the CPU, None if MLX does not run.
    """

    versions: Mapping[str, str | None]
    platform: str
    backends: tuple[str, ...]
    device: Mapping[str, Any]
    blas: Mapping[str, Any]
    gflops: float | None
    memory: Mapping[str, int]
    switches: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        return not any(f.level == "problem" for f in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {**attrs.asdict(self), "healthy": self.healthy}


class Unusable(Protocol):
    """A plugin that cannot be used, as core.plugins records it; `why`: broken, conflict or ignored."""

    @property
    def entry(self) -> str: ...
    @property
    def distribution(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def reason(self) -> str: ...


def installed_versions() -> dict[str, str]:
    """Name (lower case) -> version of every installed distribution."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(str(name).lower().replace("_", "-"), distribution.version)
    return found


# --------------------------------------------------------------------------------------------------------------
# The child: MLX, its device, its BLAS
# --------------------------------------------------------------------------------------------------------------

PROBE = """
import json, sys, time
import attrs
from sparkwright.core.blas import ensure_blas
blas = attrs.asdict(ensure_blas())
import mlx.core as mx
kind = "metal" if mx.metal.is_available() else "cuda" if mx.cuda.is_available() else "cpu"
info = {k: v for k, v in mx.device_info().items() if isinstance(v, (str, int, float))}
with mx.stream(mx.cpu):
    a = mx.ones((512, 512))
    mx.eval(a @ a)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        mx.eval(a @ a)
        times.append(time.perf_counter() - start)
device = {"kind": kind, "default": str(mx.default_device()), **info}
print(json.dumps({"blas": blas, "device": device, "gflops": round(2 * 512**3 / min(times) / 1e9, 1)}))
"""


def probe() -> dict[str, Any]:
    """{"blas", "device", "gflops"} of a fresh process, or {"error": why MLX does not run}."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=env, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"error": f"a process that imports mlx did not answer ({error})"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"ended with status {done.returncode}"]
        return {"error": last[0][:300]}
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": "a process that imports mlx gave no answer"}
    return dict(answer)


# --------------------------------------------------------------------------------------------------------------
# Judgements
# --------------------------------------------------------------------------------------------------------------


def diagnose(
    unusable: Iterable[Unusable] = (),
    *,
    ask: Callable[[], Mapping[str, Any]] = probe,
    installed: Mapping[str, str] | None = None,
    system: str | None = None,
) -> Diagnosis:
    """unusable: the catalogue's. The keyword arguments replace this machine's answers in tests."""
    versions = installed_versions() if installed is None else installed
    system = system or platform.system()
    backends = tuple(sorted(n for n in versions if n in (CPU_BACKEND, "mlx-metal") or n.startswith("mlx-cuda")))
    answer = dict(ask())
    device, blas = dict(answer.get("device", {})), dict(answer.get("blas", {}))
    gflops = answer.get("gflops")
    memory = _memory(device)
    findings = [
        *_mlx(versions, backends, system, answer.get("error")),
        *_cpu(device, blas, gflops),
        *_extras(versions, device),
        *_plugins(list(unusable)),
    ]
    return Diagnosis(
        versions={
            "python": platform.python_version(),
            **{name: versions.get(name) for name in SHOWN},
            **{name: versions[name] for name in backends},
        },
        platform=platform.platform(),
        backends=backends,
        device=device,
        blas=blas,
        gflops=gflops,
        memory=memory,
        switches={k: v for k, v in sorted(os.environ.items()) if k.startswith("SPARKWRIGHT_") or k == launches.SWITCH},
        findings=tuple(findings),
    )


def _mlx(versions: Mapping[str, str], backends: Sequence[str], system: str, error: str | None) -> list[Finding]:
    found: list[Finding] = []
    mlx = versions.get("mlx")
    if mlx is None:
        return [Finding("mlx", "problem", "mlx is not installed", f"{ONE_BACKEND}, on a Mac `pip install sparkwright`")]
    if _numbers(mlx) < OLDEST_MLX:
        oldest = ".".join(map(str, OLDEST_MLX))
        found.append(Finding("mlx", "problem", f"mlx {mlx} is older than {oldest}", "`pip install -U mlx`"))
    if system == "Linux" and not backends:
        found.append(
            Finding("mlx", "problem", "mlx is installed without a backend, so it cannot be imported", ONE_BACKEND)
        )
    if system == "Linux" and len(backends) > 1:
        both = " and ".join(backends)
        advice = f"they own the same file: `pip uninstall -y mlx {' '.join(backends)}`, then {ONE_BACKEND}"
        found.append(Finding("mlx", "problem", f"{both} are both installed", advice))
    for name in backends:
        if versions[name] != mlx:
            advice = f"`pip install '{name}=={mlx}'`"
            found.append(Finding("mlx", "problem", f"mlx is {mlx} and {name} is {versions[name]}", advice))
    if error is not None:
        advice = "" if found else "reinstall it: " + ONE_BACKEND
        found.append(Finding("mlx", "problem", f"mlx does not run: {error}", advice))
    return found or [Finding("mlx", "ok", f"mlx {mlx} with {', '.join(backends) or 'its own backend'}")]


def _cpu(device: Mapping[str, Any], blas: Mapping[str, Any], gflops: float | None) -> list[Finding]:
    if not device:
        return []
    if device.get("kind") != "cpu":
        return [Finding("device", "ok", f"{device.get('kind')}: {device.get('device_name', device.get('default'))}")]
    speed = "" if gflops is None else f", {gflops:g} GFLOP/s in float32"
    found = [Finding("device", "ok", "cpu: no GPU that MLX can use")]
    if blas.get("name") == "openblas":
        what = f"OpenBLAS on {blas.get('threads')} thread(s){speed}: {blas.get('reason')}"
        found.append(Finding("blas", "ok", what))
    elif blas.get("name") == "bundled":
        what = f"the reference BLAS of MLX's wheel{speed}: {blas.get('reason')}"
        found.append(Finding("blas", "note", what, str(blas.get("advice", ""))))
    else:
        found.append(Finding("blas", "ok", f"{blas.get('reason', 'unknown')}{speed}"))
    return found


def _extras(versions: Mapping[str, str], device: Mapping[str, Any]) -> list[Finding]:
    found = []
    if "mlx-lm" not in versions:
        advice = "`pip install 'sparkwright[mlx-lm]'` if you want models other than the bundled families"
        found.append(Finding("mlx-lm", "note", "mlx-lm is not installed, so the target mlx_lm cannot be used", advice))
    if device.get("kind") == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        advice = "install a C++ compiler (Debian, Ubuntu: g++)"
        found.append(Finding("compiler", "note", "no C++ compiler: on the CPU, mx.compile fuses nothing", advice))
    return found


def _plugins(unusable: Sequence[Unusable]) -> list[Finding]:
    found = []
    for plugin in unusable:
        what = f"{plugin.entry} of {plugin.distribution} is {plugin.why}: {plugin.reason}"
        if plugin.why == "ignored":
            found.append(Finding("plugins", "note", what, "nothing, if that was meant"))
        elif plugin.why == "conflict":
            advice = f"uninstall one of the distributions, or add '{plugin.entry}' to plugins.disable"
            found.append(Finding("plugins", "problem", what, advice))
        else:
            advice = (
                f"`pip install -U {plugin.distribution}`, or uninstall it, or add '{plugin.entry}' to plugins.disable"
            )
            found.append(Finding("plugins", "problem", what, advice))
    return found or [Finding("plugins", "ok", "every installed plugin is usable")]


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:3]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def _memory(device: Mapping[str, Any]) -> dict[str, int]:
    """Bytes: total and (Linux) available memory, and the device's own where MLX names it."""
    memory: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        memory["total"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                memory["available"] = int(line.split()[1]) * 1024
    for name in ("max_recommended_working_set_size", "memory_size", "total_memory"):
        if isinstance(device.get(name), int):
            memory[f"device_{name}"] = device[name]
    return memory
