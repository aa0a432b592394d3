"""What may import what, what importing costs, and how large the engine core is."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import attrs
import pluggy
import pytest
from tests.core.engines import installed

from sparkwright.core import hookspecs
from sparkwright.core.plugins import GROUP

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core"
WORKSHOP = ("compare", "audit", "testing", "cli", "doctor", "calibrate", "bench")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT / "docs")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_metadata_of_every_bundled_plugin_is_read_without_mlx() -> None:
    code = f"""
import sys
from importlib.metadata import entry_points
import sparkwright
assert "sparkwright.core" not in sys.modules
from sparkwright.core.plugins import discover
ours = [e for e in entry_points(group={GROUP!r}) if e.dist.name == "sparkwright"]
found = discover(entries=ours, allow=",".join(e.name for e in ours), strict=True)
from sparkwright.core.config import load_config
for item in found.installed:
    item.provider.options()
load_config(None, environ={{}}, catalogue=found)
heavy = [m for m in ("mlx", "mlx_lm", "transformers", "torch", "scipy") if m in sys.modules]
print(len(ours), len(found.installed), heavy)
"""
    entries, providers, heavy = python(code).split(" ", 2)
    assert int(entries) > 5 and int(providers) >= int(entries) and heavy == "[]"


def test_importing_the_package_is_lazy_and_offers_its_names() -> None:
    code = """
import sys, sparkwright
before = {m for m in sys.modules if m.startswith(("sparkwright.", "mlx"))}
assert not before, before
assert all(getattr(sparkwright, name) is not None for name in dir(sparkwright))
assert "mlx.core" not in sys.modules
try:
    sparkwright.nonsense
except AttributeError as error:
    print(error)
"""
    assert "no attribute 'nonsense'" in python(code)


def test_nothing_is_loaded_under_a_bare_name() -> None:
    assert not {"core", "plugins"} & set(sys.modules)


def test_the_namespace_is_two_links_in_git() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-s", "src/sparkwright"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    modes = {line.split()[3]: line.split()[0] for line in listed.stdout.splitlines()}
    assert modes["src/sparkwright/core"] == modes["src/sparkwright/plugins"] == "120000"
    assert (ROOT / "src/sparkwright/core").resolve() == CORE


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, only for type checking) of every import in a file, those inside functions included."""
    found: list[tuple[str, bool]] = []

    def walk(node: ast.AST, checking: bool) -> None:
        for child in ast.iter_child_nodes(node):
            typed = checking or (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING")
            if isinstance(child, ast.Import):
                found.extend((alias.name, typed) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                found.extend((f"{child.module}.{alias.name}", typed) for alias in child.names)
            walk(child, typed)

    walk(ast.parse(path.read_text(encoding="utf-8")), False)
    return found


def engine_core() -> dict[str, Path]:
    """Every file of core that assembling and running an engine imports, wherever in the file it does."""
    found: dict[str, Path] = {}
    todo = ["assembly"]
    while todo:
        name = todo.pop()
        path = CORE / f"{name}.py" if (CORE / f"{name}.py").is_file() else CORE / name / "__init__.py"
        if name in found or not path.is_file():
            continue
        found[name] = path
        todo += [module.split(".")[2] for module, _ in imports(path) if module.startswith("sparkwright.core.")]
    return found


def test_the_engine_core_imports_neither_plugins_nor_the_workshop() -> None:
    core = engine_core()
    assert {"engine", "generation", "hookspecs", "roles", "kernels", "layers", "draw"} <= set(core)
    assert not set(core) & set(WORKSHOP)
    bad = [(name, module) for name, path in core.items() for module, _ in imports(path) if "plugins." in module]
    assert [(name, module) for name, module in bad if module.startswith("sparkwright.plugins")] == []


@pytest.mark.parametrize("name", ["contracts.py", "hookspecs.py"])
def test_contracts_and_hooks_import_mlx_for_types_only(name: str) -> None:
    mlx = [(module, typed) for module, typed in imports(CORE / name) if module.startswith("mlx")]
    assert mlx and all(typed for _, typed in mlx)


def test_the_engine_core_stays_small() -> None:
    """A growing file points at a missing concept; raise these numbers only after looking for it."""
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in engine_core().items()}
    loop = ["hookspecs", "plugins", "contracts", "config", "layers", "convert", "randomness", "engine", "generation"]
    assert sum(lines[name] for name in loop) <= 2600
    assert {name: n for name, n in lines.items() if n > 450} == {}


def test_every_hook_says_what_it_is() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    names = [name for name in dir(hookspecs) if name.startswith("sparkwright_")]
    assert len(names) > 30
    for name in names:
        assert len(inspect.getdoc(getattr(hookspecs, name)) or "") > 20, name
    manager.add_hookspecs(hookspecs)
    for name in names:
        assert getattr(manager.hook, name).spec is not None, name


def test_every_bundled_provider_explains_itself() -> None:
    bundled = [item.provider for item in installed().installed if item.distribution == "sparkwright"]
    assert {p.kind for p in bundled} >= {"drafter", "scheduler", "verifier", "sampler", "observer"}
    for provider in bundled:
        assert 10 < len(provider.summary) < 100 and "\n" not in provider.summary, provider.name
        for field in attrs.fields(provider.options):
            assert len(field.metadata["help"]) > 8, (provider.name, field.name)
