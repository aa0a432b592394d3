"""Configuration: layers of values -> checked attrs values, with the origin of each and a hash of them all.

Precedence (DESIGN section 9): defaults < `extends` < file < environment < `--set` < flags < request. Every problem is
collected and reported together, each with its key, its origin, what was expected and the nearest known name. Which
plugins exist comes from a catalogue; nothing is built or opened here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import attrs
from attrs.validators import ge

from sparkwright.core.contracts import Kind, option
from sparkwright.core.convert import convert
from sparkwright.core.errors import ConfigError, PluginError, did_you_mean
from sparkwright.core.layers import (
    Layer,
    Value,
    from_assignments,
    from_environment,
    from_file,
    from_mapping,
    merge,
)
from sparkwright.core.plugins import Catalogue, Installed, discover

SLOTS: dict[Kind, str] = {
    "target": "auto",
    "drafter": "auto",
    "scheduler": "cost_aware",
    "verifier": "stochastic",
    "sampler": "chain",
}
"""The slots of a round and what fills each by default."""


@attrs.frozen
class EngineOptions:
    """Table [engine]."""

    prefill_chunk: int = option(512, "prompt tokens forwarded at once; changes nothing in the result", ge(1))
    row_exact: bool = option(False, "bit-equal decode and verify, at a cost, where the target offers it")
    stage_times: bool = option(False, "wait between draft and verify, so that their times are known apart")
    costs: str = option("auto", "measured cost curves: 'auto' (the cache), 'none', or a file of `calibrate`")
    force: bool = option(False, "load a model even if its estimated memory does not fit")


@attrs.frozen
class GenerationOptions:
    """Table [generation]; each can be overridden by a request."""

    max_tokens: int = option(256, "most tokens to generate", ge(1))
    seed: int = option(0, "of all randomness; with the same configuration and costs, the same seed gives the same text")
    stop: tuple[str, ...] = option((), "strings that end the text (they are not part of it)")
    ignore_eos: bool = option(False, "go on after an end-of-sequence token")


@attrs.frozen
class KernelOptions:
    """Table [kernels]; table [kernels.ops] maps an op to the one backend that must answer for it."""

    use: tuple[str, ...] = option(("auto",), "backends in the order they are asked; 'auto' is fused, then unfused")
    check: bool = option(False, "run each kernel beside its op's reference, and stop where it is wrong; slow")


@attrs.frozen
class PluginOptions:
    """Table [plugins]."""

    disable: tuple[str, ...] = option((), "installed plugins to leave out, by plugin name")


@attrs.frozen
class ObserverOptions:
    """Table [observers]; options of each under its own name."""

    use: tuple[str, ...] = option((), "observer plugins to run")


TABLES: dict[str, type] = {
    "engine": EngineOptions,
    "generation": GenerationOptions,
    "kernels": KernelOptions,
    "plugins": PluginOptions,
    "observers": ObserverOptions,
}


@attrs.frozen(eq=False)
class Slot:
    """One slot as configured: which plugin, asked by whom, the model path, and every installed plugin's options."""

    use: str
    asked_by: str
    model: Path | None
    options: Mapping[str, Any]


@attrs.frozen(eq=False)
class Config:
    """A checked configuration. `values` holds every resolved value with its origin, by dotted key."""

    slots: Mapping[Kind, Slot]
    kernels: KernelOptions
    kernel_ops: Mapping[str, str]
    kernel_options: Mapping[str, Any]
    engine: EngineOptions
    generation: GenerationOptions
    observers: tuple[str, ...]
    observer_options: Mapping[str, Any]
    values: Mapping[str, Value]
    warnings: tuple[str, ...]
    catalogue: Catalogue

    def to_dict(self) -> dict[str, Any]:
        """Plain values by dotted key, options of plugins that no slot uses left out."""
        return {key: _plain(value.value) for key, value in self.values.items() if self._in_use(key)}

    @property
    def origins(self) -> dict[str, str]:
        return {key: value.origin for key, value in self.values.items() if self._in_use(key)}

    @property
    def sha256(self) -> str:
        """Hash of what the configuration *says* (`to_dict`), whatever the layers were."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def _in_use(self, key: str) -> bool:
        table, _, rest = key.partition(".")
        name, dot, _ = rest.partition(".")
        if not dot or (table, name) == ("kernels", "ops"):
            return True
        if table == "observers":
            return name in self.observers
        if table == "kernels":
            return name in self.kernels.use or "auto" in self.kernels.use or name in self.kernel_ops.values()
        use = self.slots[table].use  # type: ignore[index]
        return use == name or (use == "auto" and self.values[key].origin != "default")


def load_config(
    source: Path | str | Mapping[str, Any] | None = None,
    *,
    sets: Iterable[str] = (),
    flags: Mapping[str, tuple[Any, str]] | None = None,
    environ: Mapping[str, str] | None = None,
    catalogue: Catalogue | None = None,
    strict_plugins: bool = False,
    only: Iterable[Kind] | None = None,
) -> Config:
    """Read and check a configuration.

    source: a TOML file, a nested dict, or None for defaults only. sets: `a.b=value` assignments. flags: dotted key ->
    (value, the flag's name). environ: for tests, the process's environment otherwise. catalogue: the plugins to
    choose from, otherwise what is installed. only: slots that will be used; the default plugins of the others need not
    be installed. Raises ConfigError with every problem found.
    """
    stack: list[Layer] = []
    if isinstance(source, Mapping):
        stack.append(from_mapping(source, "the given dict", Path.cwd()))
    elif source is not None:
        stack += from_file(Path(source))
    stack.append(from_environment(environ))
    stack.append(from_assignments(sets))
    stack.append({key: Value(value, origin, Path.cwd()) for key, (value, origin) in (flags or {}).items()})
    given = merge(stack)
    if catalogue is None:
        disable = given.get("plugins.disable")
        names = disable.value if disable is not None and isinstance(disable.value, (list, tuple)) else ()
        catalogue = discover(disable=[str(name) for name in names], strict=strict_plugins)
    return _Reader(given, catalogue, None if only is None else frozenset(only)).read()


class _Reader:
    """One pass over the merged values; `problems` and `warnings` fill up on the way."""

    def __init__(self, given: Layer, catalogue: Catalogue, only: frozenset[Kind] | None) -> None:
        self.given, self.catalogue, self.only = given, catalogue, only
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.values: Layer = {}

    def read(self) -> Config:
        self._unknown_tables()
        tables = {name: self._options(name, cls) for name, cls in TABLES.items()}
        slots = {kind: self._slot(kind, default) for kind, default in SLOTS.items()}
        kernels: KernelOptions = tables["kernels"]
        ops = self._ops(kernels)
        kernel_options = self._plugins("kernels", "kernels", kernels.use)
        observers: ObserverOptions = tables["observers"]
        observer_options = self._plugins("observers", "observer", observers.use)
        self._names("kernels", "kernels.use", [name for name in kernels.use if name != "auto"])
        self._names("observer", "observers.use", observers.use)
        if self.problems:
            raise ConfigError(self.problems)
        return Config(
            slots, kernels, ops, kernel_options, tables["engine"], tables["generation"], observers.use,
            observer_options, dict(sorted(self.values.items())), tuple(self.warnings), self.catalogue,
        )  # fmt: skip

    def _unknown_tables(self) -> None:
        known = [*SLOTS, *TABLES]
        for key, value in self.given.items():
            table = key.partition(".")[0]
            if table not in known or table == key:
                found = "unknown key" if table == key and table not in known else "unknown table"
                what = f"{found} '{table}'" if table not in known else f"'{key}' is a table, not a value"
                hint = did_you_mean(table, known)
                if table in (*SLOTS, "kernels", "observers") and isinstance(value.value, str):
                    hint = f"; did you mean {table}.use={value.value}?"
                self.problems.append(f"{what}{hint} ({value.origin})")

    def _slot(self, kind: Kind, default: str) -> Slot:
        use = self._scalar(f"{kind}.use", str, default)
        model = self._scalar(f"{kind}.model", str, None)
        asked_by = self.values[f"{kind}.use"].origin
        unused = self.only is not None and kind not in self.only and asked_by == "default"
        if not unused and (use != "auto" or kind not in ("target", "drafter")):
            self._names(kind, f"{kind}.use", [use])
        options = self._plugins(kind, kind, (use,))
        self._leftovers(kind, {"use", "model"}, kind)
        path = None
        if isinstance(model, str):
            given = self.values[f"{kind}.model"]
            path = Path(model).expanduser()
            if given.base is not None and not path.is_absolute():
                path = given.base / path
        return Slot(use, asked_by, path, options)

    def _names(self, kind: Kind, key: str, names: Iterable[str]) -> None:
        for name in names:
            if self.catalogue.find(kind, name) is None:
                try:
                    self.catalogue.get(kind, name, f"{key}, {self.values[key].origin}")
                except PluginError as error:
                    self.problems.append(str(error))

    def _plugins(self, table: str, kind: Kind, used: Iterable[str]) -> dict[str, Any]:
        """Options of every installed plugin of a kind, under its own name in the table."""
        options = {}
        for item in self.catalogue.of_kind(kind):
            options[item.provider.name] = self._options(f"{table}.{item.provider.name}", item.provider.options, item)
        return options

    def _leftovers(self, table: str, own: set[str], kind: Kind) -> None:
        """Keys of a slot's table that are neither its own nor an installed plugin's."""
        installed = self.catalogue.names(kind)
        used = self.values[f"{table}.use"].value
        for key, value in self.given.items():
            first, _, rest = key.partition(".")
            name, is_table, _ = rest.partition(".")
            if first != table or not rest:
                continue
            takes_table = name in installed or name == "ops"
            if name in own | set(installed):
                if bool(is_table) != takes_table:
                    what = "a table" if takes_table else "a value"
                    self.problems.append(f"'{key}': '{table}.{name}' is {what} ({value.origin})")
            elif not is_table:
                hint = did_you_mean(name, [*own, *installed])
                if not hint and used in installed:
                    hint = f"; options of the plugin go under {table}.{used}.{name}"
                self.problems.append(f"unknown key '{key}'{hint} ({value.origin})")
            elif used != name:  # when it is used, its absence is already reported
                self.warnings.append(
                    f"'{key}' is for the {kind} plugin '{name}', which is not installed, and changes nothing"
                    f"{did_you_mean(name, installed)} ({value.origin})"
                )

    def _ops(self, kernels: KernelOptions) -> dict[str, str]:
        """[kernels.ops]: op -> backend. Op names are checked at assembly, where the ops are known."""
        ops: dict[str, str] = {}
        for key, value in self.given.items():
            if key.startswith("kernels.ops."):
                self.values[key] = value
                op = key.removeprefix("kernels.ops.")
                if not isinstance(value.value, str) or self.catalogue.find("kernels", value.value) is None:
                    known = self.catalogue.names("kernels")
                    hint = did_you_mean(str(value.value), known)
                    self.problems.append(f"{key} is {value.value!r}, expected one of {known}{hint} ({value.origin})")
                else:
                    ops[op] = value.value
        own = {"use", "ops", *self.catalogue.names("kernels"), *(f.name for f in attrs.fields(KernelOptions))}
        self._leftovers("kernels", own, "kernels")
        own = {"use", *self.catalogue.names("observer")}
        self._leftovers("observers", own, "observer")
        return ops

    def _options(self, table: str, cls: type, item: Installed | None = None) -> Any:
        """One attrs class from the keys below `table`; problems are collected, defaults stand in for what is wrong."""
        hints = get_type_hints(cls)
        options = cls()
        fields = {field.name: field for field in attrs.fields(cls)}
        good: dict[str, Any] = {}
        for name, field in fields.items():
            key = f"{table}.{name}"
            self.values[key] = Value(getattr(options, name), "default")
            given = self._table(key, hints[name]) if get_origin(hints[name]) is dict else self.given.get(key)
            if given is None:
                continue
            try:
                as_typed = hints[name] is str and given.text is not None and not isinstance(given.value, str)
                good[name] = convert(given.text if as_typed else given.value, hints[name])
                if field.validator is not None:
                    field.validator(options, field, good[name])
                self.values[key] = Value(good[name], given.origin, given.base)
            except Exception as error:  # validators are the plugin's
                good.pop(name, None)
                expected = _first_line(error)
                self.problems.append(
                    f"{key} is {given.value!r}: {expected} [{field.metadata.get('help', '')}] ({given.origin})"
                )
        try:  # all at once: a class may check its options against each other
            options = attrs.evolve(options, **good)
        except Exception as error:
            origins = ", ".join(dict.fromkeys(self.values[f"{table}.{name}"].origin for name in good))
            self.problems.append(f"[{table}] does not fit together: {_first_line(error)} ({origins})")
        nested = item is None and table in ("kernels", "observers")
        for key, given in self.given.items():
            if key.startswith(f"{table}.") and not nested:
                name = key.removeprefix(f"{table}.")
                if name not in fields and get_origin(hints.get(name.partition(".")[0])) is not dict:
                    self.problems.append(f"unknown key '{key}'{did_you_mean(name, fields)} ({given.origin})")
        return options

    def _table(self, key: str, hint: Any) -> Value | None:
        """The values below a key as one dict, for options that are tables (a logit bias)."""
        below = {k.removeprefix(f"{key}."): v for k, v in self.given.items() if k.startswith(f"{key}.")}
        if not below:
            return self.given.get(key)
        first = next(iter(below.values()))
        whole = get_args(hint)[:1] == (int,)  # TOML's keys are text, also where they are numbers
        named = {int(k) if whole and k.removeprefix("-").isdecimal() else k: v.value for k, v in below.items()}
        return Value(named, first.origin, first.base)

    def _scalar(self, key: str, kind: type, default: Any) -> Any:
        given = self.given.get(key)
        if given is not None and given.text is not None and kind is str and not isinstance(given.value, str):
            given = attrs.evolve(given, value=given.text)
        self.values[key] = Value(default, "default") if given is None else given
        if given is not None and not isinstance(given.value, kind):
            self.problems.append(f"{key} is {given.value!r}, expected text ({given.origin})")
            return default
        return default if given is None else given.value


def _first_line(error: Exception) -> str:
    """An exception's message. A validator of attrs puts what it was given behind it, which is nobody's to read."""
    plain = type(error).__str__ is BaseException.__str__  # else its class words its own arguments
    several = plain and len(error.args) > 1 and isinstance(error.args[0], str)
    return (str(error.args[0] if several else error).splitlines() or [type(error).__name__])[0]


def _plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value) if isinstance(value, Path) else value
