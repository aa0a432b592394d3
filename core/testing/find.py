"""Providers by what a person calls them: the name of an installed plugin, or the path of a file or package."""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from pathlib import Path

from sparkwright.core.contracts import KINDS, Provider
from sparkwright.core.errors import PluginError, did_you_mean
from sparkwright.core.plugins import GROUP, Catalogue, providers_of


def find(what: str, catalogue: Catalogue) -> list[Provider]:
    """The providers of NAME, KIND:NAME, a .py file, or a package's folder. PluginError if there are none."""
    path = Path(what).expanduser()
    installed = any(item.provider.name == what for item in catalogue.installed)
    if os.sep in what or what.endswith(".py") or (path.is_dir() and not installed):
        return at(path)
    kind, colon, name = what.rpartition(":")
    if colon and kind not in KINDS:
        raise PluginError(f"'{what}': no kind is called '{kind}'{did_you_mean(kind, KINDS)}; kinds: {', '.join(KINDS)}")
    found = [i.provider for i in catalogue.installed if i.provider.name == name and kind in ("", i.provider.kind)]
    if len(found) > 1:
        several = ", ".join(f"{p.kind}:{p.name}" for p in found)
        raise PluginError(f"several plugins are named '{name}'; say which: {several}")
    if not found:
        known = sorted({i.provider.name for i in catalogue.installed})
        lines = [
            f"no plugin is named '{what}'{did_you_mean(name, known)}; installed: {', '.join(known) or 'none'}. "
            "A path is given as ./NAME or ends in .py"
        ]
        lines += [f"  {u.why}: {u}" for u in catalogue.unusable if u.why != "ignored"]
        raise PluginError("\n".join(lines))
    return found


def at(path: Path) -> list[Provider]:
    """The providers that the modules at a path register."""
    if not path.exists():
        raise PluginError(f"{path} does not exist; expected a .py file or the folder of a package")
    path = path.resolve()
    project = path / "pyproject.toml"
    if project.is_file():
        modules, root = _entry_points(project), path / "src" if (path / "src").is_dir() else path
    elif (path.is_file() and path.suffix == ".py") or (path / "__init__.py").is_file():
        parts, root = [path.stem], path.parent
        while (root / "__init__.py").is_file():
            parts, root = [root.name, *parts], root.parent
        modules = [".".join(parts).removesuffix(".__init__")]
    else:
        raise PluginError(
            f"{path} is neither a .py file nor a folder with a pyproject.toml (entry points '{GROUP}') or "
            "an __init__.py"
        )
    out: list[Provider] = []
    for module in modules:
        out += providers_of(_imported(module, root), module)
    return out


def _entry_points(project: Path) -> list[str]:
    try:
        table = tomllib.loads(project.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PluginError(f"{project} is not valid TOML: {error}") from error
    found = table.get("project", {}).get("entry-points", {}).get(GROUP, {})
    if not found:
        raise PluginError(
            f"{project} declares no entry point of the group '{GROUP}'; expected [project.entry-points.\"{GROUP}\"] "
            'with a line such as mine = "my_package.module"'
        )
    return [str(value).partition(":")[0] for value in found.values()]


def _imported(module: str, root: Path) -> object:
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        made = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # it may even call sys.exit
        raise PluginError(f"{module} in {root} cannot be imported: {type(error).__name__}: {error}") from error
    file = Path(str(getattr(made, "__file__", "") or ""))
    if root not in file.resolve().parents:
        raise PluginError(
            f"the module name '{module}' is taken by {file}, so {root / module.replace('.', os.sep)} cannot be "
            "imported beside it; rename it, or check the installed plugin by its name"
        )
    return made
