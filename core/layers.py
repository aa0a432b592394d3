"""Configuration sources -> one flat mapping of dotted keys to values that know where they came from.

Knows TOML, `extends`, environment names and `a.b=value` assignments; knows nothing about what any key means.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from sparkwright.core.errors import ConfigError

PREFIX = "SPARKWRIGHT_"


@attrs.frozen
class Value:
    """A value, the origin to name in messages, and the folder that relative paths in it start from.

    text: what was typed, where the value was guessed from text (environment, `--set`): an option that takes text takes
    that, so that a folder may be called 2024.
    """

    value: Any
    origin: str
    base: Path | None = None
    text: str | None = None


Layer: TypeAlias = dict[str, Value]


def from_mapping(tree: Mapping[str, Any], origin: str, base: Path | None = None) -> Layer:
    """Flatten nested tables; an empty table leaves no trace."""
    flat: Layer = {}

    def walk(table: Mapping[str, Any], path: str) -> None:
        for name, value in table.items():
            if not isinstance(name, str):
                raise ConfigError(f"{origin}: a key is {name!r}, expected text")
            if isinstance(value, Mapping):
                walk(value, f"{path}{name}.")
            else:
                flat[f"{path}{name}"] = Value(value, origin, base)

    walk(tree, "")
    return flat


def from_file(path: Path, _chain: tuple[Path, ...] = ()) -> list[Layer]:
    """A TOML file's layers, those it `extends` first. Paths in `extends` start from the file's own folder."""
    real = path.expanduser().resolve()
    if real in _chain:
        loop = " -> ".join(str(p) for p in (*_chain, real))
        raise ConfigError(f"{path}: `extends` goes in a circle: {loop}")
    try:
        with real.open("rb") as file:
            tree = tomllib.load(file)
    except OSError as error:
        reader = f" (extended by {_chain[-1]})" if _chain else ""
        raise ConfigError(f"{path}{reader}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    extends = tree.pop("extends", [])
    parents = [extends] if isinstance(extends, str) else extends
    if not isinstance(parents, list) or not all(isinstance(parent, str) for parent in parents):
        raise ConfigError(f"{path}: extends is {extends!r}, expected a path or a list of paths")
    paths = [real.parent / Path(parent).expanduser() for parent in parents]
    layers = [layer for parent in paths for layer in from_file(parent, (*_chain, real))]
    return [*layers, from_mapping(tree, str(path), real.parent)]


def from_environment(environ: Mapping[str, str] | None = None) -> Layer:
    """SPARKWRIGHT_A__B=value sets a.b; names with single underscores only are switches, not configuration."""
    layer: Layer = {}
    for name, text in (os.environ if environ is None else environ).items():
        if name.startswith(PREFIX) and "__" in name:
            key = name.removeprefix(PREFIX).replace("__", ".").lower()
            layer |= _typed(key, text, f"environment {name}")
    return layer


def from_assignments(assignments: Iterable[str], option: str = "--set") -> Layer:
    """`a.b=value` each; the value is TOML where it parses as such, text where it does not."""
    layer: Layer = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{option} {assignment!r}: expected KEY=VALUE, for example sampler.chain.temperature=0.7")
        layer |= _typed(key.strip(), text, f"{option} {assignment}")
    return layer


def _typed(key: str, text: str, origin: str) -> Layer:
    layer = from_mapping({key: parse(text)}, origin, Path.cwd())
    if key in layer:
        layer[key] = attrs.evolve(layer[key], text=text)
    return layer


def parse(text: str) -> Any:
    """A TOML value, or the text itself when it is none (so that plugin names need no quotes)."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a second line could name more keys


def merge(layers: Iterable[Layer]) -> Layer:
    """Later layers win. A key cannot be a value in one layer and a table in another."""
    merged: Layer = {}
    for layer in layers:
        merged.update(layer)
    problems = [
        f"'{parent}' is a value ({merged[parent].origin}) and a table ({merged[key].origin}: '{key}'); keep one"
        for key in merged
        for parent in _parents(key)
        if parent in merged
    ]
    if problems:
        raise ConfigError(problems)
    return merged


def _parents(key: str) -> list[str]:
    parts = key.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]
