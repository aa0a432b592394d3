"""A look at a plugin's module from a fresh process: what importing it brings along, and what it changes.

The process imports the module as discovery does, asks it for its Providers, and says what it saw as JSON. It knows no
plugin kind.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core.contracts import Provider
from sparkwright.core.plugins import providers_of
from sparkwright.core.testing.check import CheckFailed

SECONDS = 120
HEAVY = ("mlx", "mlx_lm", "torch", "transformers", "tensorflow", "jax")

_LOOK = r"""
import importlib, importlib.util, json, random, sys
wanted, heavy, paths = json.load(sys.stdin)
sys.path[:] = paths
import numpy
from sparkwright.core.plugins import providers_of

def load(name, file):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if file is None or error.name not in (name, name.split(".")[0]):
            raise
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

def host(seed):
    random.seed(seed)
    numpy.random.seed(seed)

def left():
    return [hash(random.getstate()), hash(repr(numpy.random.get_state()))]

def functions():
    import mlx.core as mx
    found = {}
    for place, what in (("mlx.core", mx), ("mlx.core.random", mx.random), ("mlx.core.fast", mx.fast),
                        ("random", random), ("numpy.random", numpy.random)):
        for key in dir(what):
            if not key.startswith("_"):
                found[f"{place}.{key}"] = getattr(what, key)
    return found

def state():
    import mlx.core as mx
    return [numpy.array(s).tolist() for s in mx.random.state]

def forget(name):
    own = name if name.startswith("sparkwright.") else name.split(".")[0]
    for other in list(sys.modules):
        if other == own or other.startswith(own + "."):
            del sys.modules[other]

seen = {}
for name, file in wanted:
    out = {"error": "", "heavy": [], "host": [], "left": [], "changed": [], "seeded": False, "providers": []}
    seen[name] = out
    modules = set(sys.modules)
    host(1)
    try:
        module = load(name, file)
        if any(key.startswith("sparkwright_register_") for key in vars(module)):
            out["providers"] = [[p.kind, p.name] for p in providers_of(module, name)]
    except BaseException as error:
        out["error"] = f"{type(error).__name__}: {error}"
    out["heavy"] = [m for m in heavy if m in sys.modules and m not in modules]
    out["left"] = left()
    forget(name)

try:  # a second time, with MLX there before: does it touch MLX?
    table = functions()
except ImportError:
    table = None
if table is not None:
    for name, file in wanted:
        before = state()
        host(2)
        try:
            module = load(name, file)
            if any(key.startswith("sparkwright_register_") for key in vars(module)):
                providers_of(module, name)
        except BaseException:
            pass
        now = functions()
        seen[name]["changed"] = sorted(k for k in table if now.get(k) is not table[k])
        seen[name]["seeded"] = state() != before
        table = now
        pairs = zip(("random", "numpy.random"), seen[name]["left"], left())
        seen[name]["host"] = [n for n, a, b in pairs if a == b]  # two seeds before, one state after
        forget(name)
print("\n" + json.dumps(seen))
"""


@attrs.frozen
class Seen:
    """What a module's import did. error: what it raised; heavy: heavy packages it brought; host: host generators it
    seeded; changed: functions of MLX, NumPy and `random` that it replaced; seeded: MLX's generator moved; providers:
    (kind, name) that its hooks give."""

    error: str
    heavy: tuple[str, ...]
    host: tuple[str, ...]
    changed: tuple[str, ...]
    seeded: bool
    providers: tuple[tuple[str, str], ...]


_KNOWN: dict[str, Seen] = {}


def module_of(provider: Provider) -> str | None:
    """The module that registers the provider, or else the one its build function was written in."""
    for name, module in list(sys.modules.items()):
        hooks = [v for k, v in list(vars(module or object).items()) if k.startswith("sparkwright_register_")]
        if name == "sparkwright.core.hookspecs" or not any(getattr(hook, "__module__", name) == name for hook in hooks):
            continue  # a test that imports the hook of the plugin is not the plugin
        try:
            found = providers_of(module, name)
        except Exception:  # a module that is half made, or broken: not where this came from
            continue
        if any((p.kind, p.name, _home(p)) == (provider.kind, provider.name, _home(provider)) for p in found):
            return name
    return _home(provider)


def _home(provider: Provider) -> str | None:
    made = inspect.unwrap(provider.build)
    home = getattr(made, "__module__", None)
    return home if isinstance(home, str) else None


def look(modules: Iterable[str]) -> None:
    """Look at these modules, all in one process; `seen` then answers for each."""
    wanted = [(name, _file(name)) for name in dict.fromkeys(modules) if name not in _KNOWN]
    if not wanted:
        return
    asked = json.dumps([wanted, HEAVY, [p or "." for p in sys.path]])
    done = subprocess.run(
        [sys.executable, "-c", _LOOK], input=asked, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise CheckFailed(f"a fresh Python that imports {', '.join(n for n, _ in wanted)} ended with: {said}")
    for name, found in json.loads(done.stdout.strip().splitlines()[-1]).items():
        _KNOWN[name] = _seen(found)


def _seen(found: dict[str, Any]) -> Seen:
    return Seen(
        found["error"], tuple(found["heavy"]), tuple(found["host"]), tuple(found["changed"]), found["seeded"],
        tuple((kind, name) for kind, name in found["providers"]),
    )  # fmt: skip


def _file(name: str) -> str | None:
    file = getattr(sys.modules.get(name), "__file__", None)
    return None if file is None else str(Path(file).resolve())


def seen(module: str) -> Seen:
    look([module])
    return _KNOWN[module]
