"""`checks_for`: the conformance checks of a plugin, by its kind. What each proves is said in docs/plugin-checks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import attrs

from sparkwright.core.contracts import Provider
from sparkwright.core.errors import did_you_mean
from sparkwright.core.testing.check import Check

F = TypeVar("F", bound=Callable[..., Any])


def checks_for(
    provider: Provider,
    *,
    options: Any = None,
    config: Mapping[str, Any] | None = None,
    expected_failures: Mapping[str, str] | None = None,
) -> Iterator[Check]:
    """The checks of a provider's kind, in the order in which they are best read.

    options: an instance of the provider's options class, or a mapping of some of them. config: the rest of the engine it
    is tried in, as a configuration ({"target": {"use": ..., "model": ...}}); toys where it says nothing. Needed only by
    plugins that cannot work with a toy target. expected_failures: check name -> why it is known to fail.
    """
    expected = dict(expected_failures or {})
    found: list[Check] = []
    names = [check.name for check in found]
    for name in expected:
        if name not in names:
            raise ValueError(
                f"expected_failures names the check '{name}', which {provider.kind} '{provider.name}' does not have"
                f"{did_you_mean(name, names)}; its checks: {', '.join(names)}"
            )
    for check in found:
        yield attrs.evolve(check, expected=expected.get(check.name, ""))


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
