"""Checks of every kind of plugin: what it says of itself, and what importing it costs."""

from __future__ import annotations

import json
from typing import Any

import attrs
import numpy as np

from sparkwright.core.config import load_config
from sparkwright.core.contracts import KINDS, Site
from sparkwright.core.errors import ConfigError, PluginError, SparkwrightError
from sparkwright.core.plugins import check_provider
from sparkwright.core.testing import isolated
from sparkwright.core.testing.check import CheckFailed, Skipped
from sparkwright.core.testing.common import suits
from sparkwright.core.testing.ground import Entry, Ground, installed, usable

# ------------------------------------------------------------------------------------------ what it says of itself


def _provider(ground: Ground) -> None:
    provider = ground.provider
    try:
        check_provider(provider, provider.kind)
    except SparkwrightError as error:
        raise CheckFailed(str(error)) from None
    if provider.kind not in KINDS:
        raise CheckFailed(f"its kind is {provider.kind!r}, expected one of {', '.join(KINDS)}")
    if not provider.summary.strip() or "\n" in provider.summary or len(provider.summary) > 120:
        raise CheckFailed(
            f"its summary is {provider.summary[:60]!r}, expected one line of up to 120 characters for `plugins list`"
        )
    module = isolated.module_of(provider)
    given = isolated.seen(module).providers if module is not None else ()
    if given and (provider.kind, provider.name) not in given:
        raise CheckFailed(
            f"its module {module} registers {', '.join(f'{k} {n}' for k, n in given)}, and not this; return it from "
            f"the module's sparkwright_register_ hook"
        )


def _options(ground: Ground) -> None:
    """Defaults and given options survive TOML; what is wrong is refused by its key."""
    usable(ground.provider)
    provider, key = ground.provider, ground.table
    base = _configured(ground, {})
    try:
        given = ground.given
    except Exception as error:
        raise CheckFailed(f"its options refuse {dict(ground.options)!r}: {type(error).__name__}: {error}") from None
    for field in attrs.fields(provider.options):
        value = getattr(given, field.name)
        if value is None:
            continue
        written = f"{key}.{field.name}={_toml(value)}"
        read = _configured(ground, {}, written)
        got = getattr(read, field.name)
        if got != value or type(got) is not type(value):
            raise CheckFailed(
                f"option '{field.name}' is {value!r} and comes back from `--set {written}` as {got!r}; expected the "
                "same value: annotate options with types that TOML knows (docs/reference/contracts.md, `option`), and "
                "use no converter that changes them"
            )
    again = _configured(ground, {f.name: _plain(getattr(given, f.name)) for f in attrs.fields(provider.options)})
    if _values(again) != _values(given):
        raise CheckFailed(f"options {_values(given)} come back from a configuration as {_values(again)}")
    if _values(base) != _values(given):
        raise CheckFailed(f"options {_values(given)} come out of the configuration as {_values(base)}")
    _refuses(ground, f"{key}.no_such_option=1", "no_such_option")
    for field in attrs.fields(provider.options):
        if isinstance(getattr(given, field.name), (bool, int, float)):
            _refuses(ground, f"{key}.{field.name}=[[]]", field.name)


def _configured(ground: Ground, options: dict[str, Any], *sets: str) -> Any:
    provider = ground.provider
    catalogue = installed().with_providers(*ground.toys()).with_providers(provider)
    settings = ground.settings(ground.slot({**ground.options, **{k: v for k, v in options.items() if v is not None}}))
    config = load_config(settings, sets=sets, environ={}, catalogue=catalogue)
    if provider.kind == "kernels":
        return config.kernel_options[provider.name]
    if provider.kind == "observer":
        return config.observer_options[provider.name]
    return config.slots[provider.kind].options[provider.name]


def _refuses(ground: Ground, written: str, name: str) -> None:
    try:
        _configured(ground, {}, written)
    except ConfigError as error:
        if name not in str(error):
            raise CheckFailed(f"`--set {written}` is refused without naming '{name}': {error}") from None
        return
    raise CheckFailed(f"`--set {written}` is taken; expected a ConfigError. Annotate options with TOML's types")


def _values(options: Any) -> dict[str, Any]:
    return {f.name: _plain(getattr(options, f.name)) for f in attrs.fields(type(options))}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value) if not isinstance(value, float) or np.isfinite(value) else str(value)


def _described(ground: Ground) -> None:
    """Facts come before anything is built, and are the same twice."""
    provider = ground.provider
    usable(provider)
    if provider.describe is None:
        raise Skipped(f"{provider.kind} plugins have no facts")
    from sparkwright.core.assembly import promise_of

    def never(options: Any, site: Site) -> object:
        raise CheckFailed("describe builds the plugin; expected facts from options, configs and headers only")

    promise_of(ground.load(suits(ground), providers=[attrs.evolve(provider, build=never)]))
    describe = provider.describe

    def twice(options: Any, site: Site) -> Any:
        first, second = describe(options, site), describe(options, site)
        if first != second:
            raise CheckFailed(f"describe says {first} and then {second} for the same options; expected the same facts")
        return first

    try:
        with ground.engine(suits(ground), providers=[attrs.evolve(provider, describe=twice)]):
            pass
    except PluginError as error:
        if isinstance(error.__cause__, CheckFailed):
            raise error.__cause__ from None
        raise


# ----------------------------------------------------------------------------------------------- importing it


def _import(ground: Ground) -> None:
    module = _module(ground)
    seen = isolated.seen(module)
    if seen.error:
        raise CheckFailed(f"importing {module} in a fresh Python ends with {seen.error}")
    if seen.heavy:
        raise CheckFailed(
            f"importing {module} imports {', '.join(seen.heavy)}; expected neither MLX nor another heavy package "
            "before `build`: move the import into build or into a module that build imports"
        )


def _import_changes_nothing(ground: Ground) -> None:
    module = _module(ground)
    seen = isolated.seen(module)
    if seen.changed:
        raise CheckFailed(
            f"importing {module} replaces {', '.join(seen.changed[:3])}; expected no function of MLX, NumPy or random "
            "to be touched: noise comes from the keys that a hook is given (sparkwright.core.randomness)"
        )
    moved = [*seen.host, *(["mlx.core.random"] if seen.seeded else [])]
    if moved:
        raise CheckFailed(f"importing {module} seeds {', '.join(moved)}; expected global random state to be left alone")


def _module(ground: Ground) -> str:
    module = isolated.module_of(ground.provider)
    if module is None or module == "__main__":
        raise Skipped("its build function belongs to no module that can be imported again")
    return module


PROVIDER = Entry("provider", "name, kind, hook API version, summary and options class are well formed", _provider)
FIRST = (
    PROVIDER,
    Entry("metadata without mlx", "importing the plugin brings neither MLX nor another heavy package", _import),
    Entry(
        "import changes nothing",
        "importing the plugin replaces no function of MLX, NumPy or random, and seeds none of them",
        _import_changes_nothing,
    ),
    Entry("options round trip", "options survive TOML and --set; unknown keys and wrong types are refused by name",
          _options),
    Entry("described before built", "facts come without building anything, and are the same twice", _described),
)  # fmt: skip
