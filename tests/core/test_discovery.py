"""Finding plugins: what is usable, and what is broken, in conflict or ignored, with who and why."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any

import attrs
import pytest

from sparkwright.core.contracts import HOOK_API, Provider, SchedulerFacts, option
from sparkwright.core.errors import ConfigError, PluginError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.plugins import Catalogue, discover


class Dist(Distribution):
    def __init__(self, name: str, version: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


Make = Callable[..., EntryPoint]


@pytest.fixture
def entry() -> Iterator[Make]:
    """entry(name, register=..., dist=...) -> an entry point for a module made up on the spot."""
    made: list[str] = []

    def make(name: str, *, dist: str = "acme", version: str = "1.0", module: str = "", **members: Any) -> EntryPoint:
        if not module:
            module = f"sparkwright_test_plugin_{len(made)}"
            made.append(module)
            sys.modules[module] = types.ModuleType(module)
            for key, value in members.items():
                setattr(sys.modules[module], key, value)
        point = EntryPoint(name, module, "sparkwright.plugins")
        vars(point)["dist"] = Dist(dist, version)
        return point

    yield make
    for module in made:
        del sys.modules[module]


def provider(name: str = "mine", **more: Any) -> Provider:
    return Provider(
        **{
            "kind": "scheduler", "name": name, "summary": "toy", "build": lambda options, site: object(),
            "describe": lambda options, site: SchedulerFacts(), **more,
        }
    )  # fmt: skip


def registering(*providers: Any) -> dict[str, Any]:
    def sparkwright_register_schedulers() -> list[Any]:
        return list(providers)

    return {"sparkwright_register_schedulers": hookimpl(sparkwright_register_schedulers)}


def one_reason(catalogue: Catalogue, why: str = "broken") -> str:
    (record,) = catalogue.unusable
    assert record.why == why and "\n" not in record.reason
    return record.reason


def test_a_plugin_is_found_with_its_distribution(entry: Make) -> None:
    found = discover(entries=[entry("mine", version="2.1", **registering(provider()))])
    assert not found.unusable
    item = found.get("scheduler", "mine", "a test")
    assert (item.entry, item.origin) == ("mine", "acme 2.1")
    assert found.names("scheduler") == ["mine"] and found.names("drafter") == []


def test_two_distributions_with_one_entry_name_are_both_left_out_and_named(entry: Make) -> None:
    entries = [
        entry("mine", dist="acme", **registering(provider())),
        entry("mine", dist="umbrella", version="3", **registering(provider("other"))),
    ]
    found = discover(entries=entries)
    assert found.installed == () and {u.why for u in found.unusable} == {"conflict"}
    assert all("acme 1.0 and umbrella 3" in u.reason for u in found.unusable)
    with pytest.raises(PluginError, match=r"conflict: mine .umbrella 3.*taken by acme 1.0 and umbrella 3"):
        found.get("scheduler", "other", "a test")


def test_one_entry_that_is_seen_twice_is_no_conflict(entry: Make) -> None:
    point = entry("mine", **registering(provider()))
    assert len(discover(entries=[point, point]).installed) == 1


def test_two_providers_of_one_kind_and_name_are_both_left_out_and_named(entry: Make) -> None:
    entries = [
        entry("first", dist="acme", **registering(provider("same"), provider("own"))),
        entry("second", dist="umbrella", **registering(provider("same"))),
    ]
    found = discover(entries=entries)
    assert found.names("scheduler") == ["own"]
    with pytest.raises(PluginError) as caught:
        found.get("scheduler", "same", "scheduler.use, run.toml")
    text = str(caught.value)
    assert "asked by scheduler.use, run.toml" in text
    assert "acme 1.0 (plugin first) and umbrella 1.0 (plugin second)" in text and "plugins.disable" in text
    assert discover(entries=entries, disable=["second"]).names("scheduler") == ["own", "same"]


def test_one_broken_plugin_does_not_take_others_with_it(entry: Make, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in {
        "raises": "raise RuntimeError('first line\\nsecond line')",
        "exits": "import sys; sys.exit(3)",
        "imports": "import nothing_of_this_name",
        "syntax": "def broken(:",
        "silent": "raise ValueError",
    }.items():
        (tmp_path / f"swt_{name}.py").write_text(text)
    entries = [entry(name, module=f"swt_{name}") for name in ("raises", "exits", "imports", "syntax", "silent")]
    entries += [entry("missing", module="swt_missing"), entry("good", **registering(provider()))]
    found = discover(entries=entries)
    assert found.names("scheduler") == ["mine"]
    reasons = {u.entry: u.reason for u in found.unusable}
    assert reasons["raises"] == "RuntimeError: first line"
    assert reasons["exits"] == "SystemExit: 3"
    assert "nothing_of_this_name" in reasons["imports"] and "swt_missing" in reasons["missing"]
    assert reasons["syntax"].startswith("SyntaxError") and reasons["silent"].startswith("ValueError")
    with pytest.raises(PluginError) as caught:
        found.get("scheduler", "mein", "a test")
    assert "did you mean 'mine'" in str(caught.value)
    assert all(f"broken: {name} (acme 1.0)" in str(caught.value) for name in reasons)  # it may be one of those
    with pytest.raises(PluginError, match="--strict-plugins") as strict:
        discover(entries=entries, strict=True)
    assert all(name in str(strict.value) for name in reasons)


def bad_hooks() -> dict[str, tuple[dict[str, Any], str]]:
    def misspelt() -> list[Any]:
        return []

    misspelt.__name__ = "sparkwright_register_drafter"

    def arguments(wanted: int) -> list[Any]:
        return []

    def raising() -> list[Any]:
        raise KeyError("on purpose")

    @attrs.frozen
    class Required:
        n: int = attrs.field(metadata={"help": "a number"})

    @attrs.frozen
    class Helpless:
        n: int = 3

    @attrs.frozen
    class Refusing:
        n: int = option(0, "a number", attrs.validators.ge(1))

    @attrs.frozen
    class Unreadable:
        n: Nowhere = option(0, "a number")  # type: ignore[name-defined]  # noqa: F821, RUF009

    register = "sparkwright_register_schedulers"
    return {
        "misspelt": (
            {**registering(provider()), "sparkwright_register_drafter": hookimpl(misspelt)}, "hooks that do not fit",
        ),
        "arguments": ({register: hookimpl(arguments)}, "wanted"),
        "raises": ({register: hookimpl(raising)}, "KeyError: 'on purpose'"),
        "not iterable": ({register: hookimpl(lambda: 3)}, "returned int, expected an iterable of Provider"),
        "no provider": (registering("mine"), "gave str, expected sparkwright's Provider"),
        "nothing": ({}, "registers nothing"),
        "empty": (registering(), "registers nothing"),
        "newer": (registering(provider(hook_api=HOOK_API + 1)), f"hook API {HOOK_API + 1}, this sparkwright has"),
        "newer, with a new hook": (
            {**registering(provider(hook_api=HOOK_API + 1)), "sparkwright_register_poets": hookimpl(lambda: [])},
            f"hook API {HOOK_API + 1}, this sparkwright has",
        ),
        "wrong kind": (
            registering(provider(kind="drafter")), "came through sparkwright_register_schedulers, expected",
        ),
        "no such kind": (registering(provider(kind="poet")), "a known kind"),
        "capitals": (registering(provider("Mine")), "lower-case"),
        "reserved": (registering(provider("use")), "none of use, model"),
        "newline": (registering(provider("mine\n")), "'mine\\n': the name must be lower-case"),
        "dict options": (registering(provider(options=dict)), "expected an attrs class"),
        "required": (registering(provider(options=Required)), "option 'n' has no default"),
        "no help": (registering(provider(options=Helpless)), "option 'n' has no help"),
        "refusing": (registering(provider(options=Refusing)), "defaults of its options are refused"),
        "unreadable": (registering(provider(options=Unreadable)), "annotations of Unreadable cannot be read"),
        "no facts": (registering(provider(describe=None)), "has no describe"),
    }  # fmt: skip


@pytest.mark.parametrize("case", bad_hooks())
def test_a_plugin_that_does_not_fit_is_broken_and_says_why(entry: Make, case: str) -> None:
    members, says = bad_hooks()[case]
    found = discover(entries=[entry("bad", **members), entry("good", **registering(provider("fine")))])
    assert says in one_reason(found)
    assert found.names("scheduler") == ["fine"]


def test_a_hook_with_a_wrong_name_or_argument_is_named(entry: Make) -> None:
    members, _ = bad_hooks()["misspelt"]
    assert "sparkwright_register_drafter" in one_reason(discover(entries=[entry("bad", **members)]))


def test_the_allow_list_ignores_the_rest(entry: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [entry("one", **registering(provider("one"))), entry("two", **registering(provider("two")))]
    assert discover(entries=entries, allow="one").names("scheduler") == ["one"]
    assert one_reason(discover(entries=entries, allow=" one , "), "ignored") == "not in SPARKWRIGHT_PLUGINS"
    assert discover(entries=entries, allow="").installed == ()
    assert discover(entries=entries, allow="", strict=True).installed == ()  # ignored is not broken
    monkeypatch.setenv("SPARKWRIGHT_PLUGINS", "two")
    assert discover(entries=entries).names("scheduler") == ["two"]
    monkeypatch.setenv("SPARKWRIGHT_PLUGINS", "")
    assert discover(entries=entries).installed == ()
    monkeypatch.delenv("SPARKWRIGHT_PLUGINS")
    assert len(discover(entries=entries).installed) == 2


def test_an_ignored_plugin_is_not_even_imported(entry: Make) -> None:
    entries = [entry("good", **registering(provider())), entry("bad", module="no_such_module")]
    assert discover(entries=entries, allow="good", strict=True).names("scheduler") == ["mine"]
    assert one_reason(discover(entries=entries, disable=["bad"], strict=True), "ignored") == "in plugins.disable"


def test_names_that_match_no_plugin_are_errors_with_a_hint(entry: Make) -> None:
    entries = [entry("lookup", **registering(provider()))]
    with pytest.raises(ConfigError, match=r"SPARKWRIGHT_PLUGINS names the plugin 'lokup'.*did you mean 'lookup'"):
        discover(entries=entries, allow="lokup,lookup")
    with pytest.raises(ConfigError, match=r"plugins\.disable names the plugin 'nonsense'"):
        discover(entries=entries, disable=["nonsense"])


def test_a_missing_plugin_is_answered_with_who_asked_a_hint_and_what_there_is(entry: Make) -> None:
    found = discover(entries=[entry("mine", **registering(provider("fixed"), provider("cost_aware")))])
    with pytest.raises(PluginError) as caught:
        found.get("scheduler", "fixd", "scheduler.use, --set scheduler.use=fixd")
    assert str(caught.value) == (
        "no scheduler plugin is named 'fixd' (asked by scheduler.use, --set scheduler.use=fixd); did you mean 'fixed'?"
        "; installed: cost_aware, fixed"
    )
    with pytest.raises(PluginError, match="installed: none"):
        found.get("drafter", "x", "a test")


def test_providers_by_hand_replace_and_the_last_of_one_name_wins() -> None:
    first, second = provider(summary="first"), provider(summary="second")
    catalogue = Catalogue().with_providers(first)
    assert catalogue.with_providers(second).of_kind("scheduler")[0].provider is second
    assert [i.provider for i in catalogue.with_providers(first, second).installed] == [second]
    with pytest.raises(PluginError, match="no describe"):
        catalogue.with_providers(provider(describe=None))
