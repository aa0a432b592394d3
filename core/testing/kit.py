"""`checks_for`: the conformance checks of a plugin, by its kind. What each proves is said in docs/plugin-checks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import attrs

from sparkwright.core.contracts import KINDS, Kind, Provider
from sparkwright.core.errors import HookError, did_you_mean
from sparkwright.core.testing.check import Check, CheckFailed, Skipped
from sparkwright.core.testing.ground import Entry, Ground

F = TypeVar("F", bound=Callable[..., Any])
_HOME: dict[Kind, str] = {
    "target": "targets",
    "drafter": "drafters",
    "scheduler": "schedulers",
    "verifier": "verifiers",
    "sampler": "samplers",
    "kernels": "kernels",
    "observer": "observers",
}


def checks_for(
    provider: Provider,
    *,
    options: Any = None,
    config: Mapping[str, Any] | None = None,
    cases: Iterable[Any] = (),
    expected_failures: Mapping[str, str] | None = None,
) -> Iterator[Check]:
    """The checks of a provider's kind, in the order in which they are best read.

    options: some of its options as a mapping, or an instance of its options class. config: the rest of the engine it is
    tried in, as a configuration ({"target": {"use": ..., "model": ...}}); toys where it says nothing. Needed only by
    plugins that cannot work with a toy target. cases: for kernels, example calls (`OpCase`). expected_failures: check
    name -> why it is known to fail.
    """
    if attrs.has(type(options)):
        options = {f.name: getattr(options, f.name) for f in attrs.fields(type(options))}
        options = {name: value for name, value in options.items() if value is not None}
    config = dict(config or {})
    slot = {"observer": "observers"}.get(provider.kind, provider.kind)
    own = config.get(slot, {}).get(provider.name, {})  # its options may come with the configuration
    ground = Ground(provider, {**own, **(options or {})}, config, tuple(cases))
    expected, entries = dict(expected_failures or {}), entries_for(provider.kind)
    names = [entry.name for entry in entries]
    for name in expected:
        if name not in names:
            raise ValueError(
                f"expected_failures names the check '{name}', which {provider.kind} '{provider.name}' does not have"
                f"{did_you_mean(name, names)}; its checks: {', '.join(names)}"
            )
    told: list[str] = []
    for entry in entries:
        yield Check(
            entry.name, provider.kind, provider.name, entry.proves, partial(_tried, entry, ground, told), entry.slow,
            expected.get(entry.name, ""),
        )  # fmt: skip


def _tried(entry: Entry, ground: Ground, told: list[str]) -> None:
    """The check itself; of hooks that do not fit the first check that meets them speaks, for all the others.

    told: the name of that check, once there is one.
    """
    try:
        entry.body(ground)
    except HookError as error:
        if not told:
            told.append(entry.name)
        if told[0] != entry.name:
            raise Skipped(f"its hooks do not fit, so it cannot be tried: see the check '{told[0]}'") from None
        raise CheckFailed(str(error)) from None


def entries_for(kind: Kind) -> tuple[Entry, ...]:
    """The checks of a kind, without a provider: what docs/plugin-checks.md lists."""
    from sparkwright.core.testing import common, form

    if kind not in KINDS:
        return (form.PROVIDER,)
    own: tuple[Entry, ...] = import_module(f"sparkwright.core.testing.{_HOME[kind]}").CHECKS
    model = (common.MODEL,) if kind in ("target", "drafter") else ()
    return (*form.FIRST, *own, *common.LAST, *model)


def parametrize_with_checks(
    providers: Iterable[Provider | tuple[Provider, Mapping[str, Any]]],
    *,
    config: Mapping[str, Any] | None = None,
    expected_failures: Mapping[str, str] | None = None,
    slow: bool | None = None,
) -> Callable[[F], F]:
    """For pytest: gives a test function one argument, `check`, for every check of every provider.

        @parametrize_with_checks([provider])
        def test_conformance(check):
            check.run()

    A provider may come with options: (provider, {"n": 3}). Test ids are `provider-name-of-the-check`. An expected
    failure is a strict xfail: it fails when the check passes. slow: only the slow checks, or only the others.
    """
    import pytest

    params = []
    for item in providers:
        provider, options = item if isinstance(item, tuple) else (item, None)
        for check in checks_for(provider, options=options, config=config, expected_failures=expected_failures):
            if slow is not None and check.slow != slow:
                continue
            marks = [pytest.mark.xfail(reason=check.expected, strict=True)] if check.expected else []
            plain = attrs.evolve(check, expected="", skip=pytest.skip)
            params.append(pytest.param(plain, id=check.id, marks=marks))
    parametrize: Callable[[F], F] = pytest.mark.parametrize("check", params)
    return parametrize
