"""`plugin new`: a plugin package from templates. Complete from the first moment: it installs, and its tests pass.

A template is a working plugin named `my_plugin`, valid Python that is linted and type-checked where it lies; making a
package is replacing that name. Knows nothing of what plugins do.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

import attrs

from sparkwright.core.contracts import Kind
from sparkwright.core.errors import ConfigError, OutputError
from sparkwright.core.plugins import NAME, RESERVED, Catalogue

KINDS: dict[str, Kind] = {
    "drafter": "drafter",
    "kernel": "kernels",
    "observer": "observer",
    "sampler": "sampler",
    "scheduler": "scheduler",
    "target": "target",
    "verifier": "verifier",
}
"""What `plugin new --kind` takes, and the slot it means."""

LONGEST = 40
"""Longer names would break the line lengths of the templates."""


@attrs.frozen
class Package:
    """What was made: its folder, its files (relative to it), the distribution's name and the command that uses it."""

    folder: Path
    files: tuple[str, ...]
    distribution: str
    command: str


def check_name(name: str) -> None:
    """ConfigError if no plugin can be called that."""
    if not NAME.match(name) or name in RESERVED:
        raise ConfigError(
            f"plugin new: {name!r} cannot name a plugin; expected lower-case letters, digits and _, a letter first, "
            f"and none of {', '.join(RESERVED)}"
        )
    if len(name) > LONGEST:
        raise ConfigError(f"plugin new: the name has {len(name)} characters, expected at most {LONGEST}; shorten it")


def _a(kind: str) -> str:
    return f"{'an' if kind == 'observer' else 'a'} {kind}"


def taken_by(name: str, kind: str, catalogue: Catalogue) -> str | None:
    """Whose plugin the new one would be in conflict with, in words; None for nobody's."""
    for item in catalogue.installed:
        if (item.provider.kind, item.provider.name) == (KINDS[kind], name):
            return f"{_a(kind)} '{name}' comes from {item.origin}"
        if item.entry == name:
            return f"the plugin name '{name}' is taken by {item.origin}"
    left_out = next((u for u in catalogue.unusable if u.entry == name), None)
    return None if left_out is None else f"the plugin name '{name}' is taken by {left_out.distribution}"


def new_package(name: str, kind: str, folder: Path | None = None) -> Package:
    """Make a package for a plugin `name` of `kind` (a key of KINDS) in `folder`, by default ./sparkwright-<name>.

    Everything is checked before anything is written. ConfigError for a bad name, OutputError for a folder that is
    there already or cannot be written.
    """
    check_name(name)
    distribution = "sparkwright-" + re.sub("_+", "-", name).strip("-")
    folder = Path(distribution) if folder is None else folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise OutputError(f"plugin new: {folder} {what}; name another folder with --out, or remove it")
    texts, command = _texts(name, kind, distribution)
    try:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"plugin new: {error.filename} cannot be written ({error.strerror})") from None
    return Package(folder, tuple(texts), distribution, command)


def _texts(name: str, kind: str, distribution: str) -> tuple[dict[str, str], str]:
    """The files' texts by path, and the command that uses the plugin."""
    templates = files("sparkwright.core.scaffold").joinpath("templates")
    general, own = templates.joinpath("package"), templates.joinpath(kind)
    words = tomllib.loads(own.joinpath("readme.toml").read_text(encoding="utf-8"))
    module = f"sparkwright_{name}"
    texts = {
        "pyproject.toml": general.joinpath("pyproject.toml").read_text(encoding="utf-8"),
        "README.md": general.joinpath("README.md").read_text(encoding="utf-8"),
        f"src/{module}/__init__.py": own.joinpath("module.py").read_text(encoding="utf-8"),
        f"src/{module}/py.typed": "",
        f"tests/test_{name}.py": own.joinpath("test.py").read_text(encoding="utf-8"),
    }
    replaced = {
        "MY_WHAT": words["what"],
        "MY_COMMAND": words["command"],
        "MY_STEPS": words["steps"].strip(),
        "a my_kind": _a(kind),
        "my_kind": kind,
        "sparkwright-my-plugin": distribution,
        "my_plugin": name,
        "sparkwright>=0.1": f"sparkwright>={_version()}",
    }

    def filled(text: str) -> str:
        for old, new in replaced.items():
            text = text.replace(old, new)
        return text

    return {path: filled(text) for path, text in texts.items()}, filled(words["command"])


def _version() -> str:
    try:
        return version("sparkwright")
    except PackageNotFoundError:
        return "0.1"
