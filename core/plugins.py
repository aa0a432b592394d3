"""Finding plugins: entry points -> a catalogue of Providers, and beside it what is broken, ignored or in conflict.

Every plugin, ours included, comes through one entry-point group. Entry points are loaded one at a time by our own loop,
because pluggy's drops the second of two equal names without a word and lets one failing import end all the others.
Nothing here builds a plugin or imports MLX.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

import attrs
import pluggy

from sparkwright.core import guard, hookspecs
from sparkwright.core.contracts import HOOK_API, KINDS, Kind, Provider
from sparkwright.core.errors import ConfigError, PluginError, did_you_mean

GROUP = "sparkwright.plugins"
ALLOW_LIST = "SPARKWRIGHT_PLUGINS"
NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
RESERVED = ("use", "model", "auto", "ops", "check")
"""Names of plugins: what they look like, and those that are keys of the configuration themselves."""
_TAMPERING: dict[str, str] = {}
"""What modules did while they were imported, by entry point: they are imported once a process and discovered often."""
_REGISTER: dict[Kind, str] = {
    kind: f"sparkwright_register_{kind}" + ("" if kind == "kernels" else "s") for kind in KINDS
}


@attrs.frozen(eq=False)
class Installed:
    """A usable Provider and where it came from."""

    provider: Provider
    entry: str
    distribution: str
    version: str

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}".strip()


@attrs.frozen
class Unusable:
    """An entry point that cannot be used: `reason` is one line; `why` is broken, conflict or ignored."""

    entry: str
    distribution: str
    version: str
    why: str
    reason: str
    names: frozenset[tuple[str, str]] = frozenset()  # the (kind, name) pairs it would have provided

    def __str__(self) -> str:
        return f"{self.entry} ({self.distribution} {self.version}): {self.reason}"


@attrs.frozen(eq=False)
class Catalogue:
    """What is installed. Values, made by `discover` or by hand; engines only read it."""

    installed: tuple[Installed, ...] = ()
    unusable: tuple[Unusable, ...] = ()

    def names(self, kind: Kind) -> list[str]:
        return sorted(i.provider.name for i in self.installed if i.provider.kind == kind)

    def of_kind(self, kind: Kind) -> list[Installed]:
        return [i for i in self.installed if i.provider.kind == kind]

    def find(self, kind: Kind, name: str) -> Installed | None:
        return next((i for i in self.installed if (i.provider.kind, i.provider.name) == (kind, name)), None)

    def get(self, kind: Kind, name: str, asked_by: str) -> Installed:
        """The provider `name` of `kind`; `asked_by` is the origin of the name (a file, a flag, a default)."""
        found = self.find(kind, name)
        if found is not None:
            return found
        known = self.names(kind)
        lines = [
            f"no {kind} plugin is named '{name}' (asked by {asked_by}){did_you_mean(name, known)}; "
            f"installed: {', '.join(known) or 'none'}"
        ]
        clash = [u for u in self.unusable if (kind, name) in u.names]
        others = [u for u in self.unusable if u.why == "broken" and u not in clash]
        lines += [f"  {u.why}: {u}" for u in clash + others]
        raise PluginError("\n".join(lines))

    def with_providers(self, *providers: Provider, distribution: str = "(in this process)") -> Catalogue:
        """This catalogue and more providers, which replace those of the same kind and name (tests, notebooks)."""
        added = {(p.kind, p.name): Installed(p, p.name, distribution, "") for p in providers}
        for provider in providers:
            check_provider(provider, provider.kind)
        kept = tuple(i for i in self.installed if (i.provider.kind, i.provider.name) not in added)
        return Catalogue(kept + tuple(added.values()), self.unusable)


def discover(
    *,
    disable: Iterable[str] = (),
    strict: bool = False,
    allow: str | None = None,
    entries: Sequence[EntryPoint] | None = None,
) -> Catalogue:
    """Load every entry point of the group, one by one.

    disable: plugin (entry point) names to leave out. strict: raise at the first unusable plugin. allow: comma-separated
    names, None for the environment's SPARKWRIGHT_PLUGINS ("" loads none). entries: for tests. A name in `disable` or
    `allow` that matches no entry point is a ConfigError.
    """
    found = list(entry_points(group=GROUP) if entries is None else entries)
    allow = os.environ.get(ALLOW_LIST) if allow is None else allow
    allowed = None if allow is None else {name.strip() for name in allow.split(",") if name.strip()}
    disabled = set(disable)
    known = {entry.name for entry in found}
    wrong = [
        f"{where} names the plugin '{name}', which is not installed{did_you_mean(name, known)}"
        for where, names in ((ALLOW_LIST, allowed or set()), ("plugins.disable", disabled))
        for name in sorted(names - known)
    ]
    if wrong:
        raise ConfigError(wrong)

    installed: list[Installed] = []
    unusable: list[Unusable] = []
    by_name: dict[str, list[EntryPoint]] = defaultdict(list)
    for entry in found:
        by_name[entry.name].append(entry)
    for name in sorted(by_name):
        distinct = {(*_distribution(entry), entry.value): entry for entry in by_name[name]}
        if allowed is not None and name not in allowed:
            reason = f"not in {ALLOW_LIST}"
            unusable += [Unusable(name, *_distribution(e), "ignored", reason) for e in distinct.values()]
        elif name in disabled:
            reason = "in plugins.disable"
            unusable += [Unusable(name, *_distribution(e), "ignored", reason) for e in distinct.values()]
        else:
            clash = [" ".join(_distribution(e)) for e in distinct.values()] if len(distinct) > 1 else []
            for entry in distinct.values():
                _load(entry, clash, installed, unusable)
    installed, clashes = _without_conflicts(installed)
    unusable += clashes
    serious = [u for u in unusable if u.why != "ignored"]
    if strict and serious:
        raise PluginError("\n".join(["--strict-plugins: not every plugin is usable", *(f"  {u}" for u in serious)]))
    return Catalogue(tuple(installed), tuple(unusable))


def _distribution(entry: EntryPoint) -> tuple[str, str]:
    dist = entry.dist
    return (dist.name, dist.version) if dist is not None else ("unknown distribution", "")


def _load(entry: EntryPoint, clash: list[str], installed: list[Installed], unusable: list[Unusable]) -> None:
    """Load one entry point into one of the two lists; whatever it raises stays with it."""
    name, version = _distribution(entry)
    try:
        with guard.Watch() as watch:
            loaded = entry.load()
        if watch.replaced:
            _TAMPERING[entry.value] = watch.sentence
        if entry.value in _TAMPERING:
            raise PluginError(f"importing it {_TAMPERING[entry.value]}")
        providers = providers_of(loaded, entry.name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may even call sys.exit while it is imported
        reason = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
        first_line = (reason.splitlines() or [""])[0]
        unusable.append(Unusable(entry.name, name, version, "broken", first_line))
        return
    if clash:
        reason = f"the plugin name '{entry.name}' is taken by {' and '.join(clash)}; disable or uninstall one"
        names = frozenset((p.kind, p.name) for p in providers)
        unusable.append(Unusable(entry.name, name, version, "conflict", reason, names))
    else:
        installed += [Installed(provider, entry.name, name, version) for provider in providers]


def providers_of(plugin: object, name: str) -> list[Provider]:
    """Ask one loaded plugin for its Providers. PluginError (one line) for misspelt hooks and malformed Providers."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)

    def fits(check: Callable[[], object]) -> None:
        try:
            check()
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(f"hooks that do not fit: {unfit_hooks(manager, error)}") from error

    fits(lambda: manager.register(plugin, name=name))
    providers: list[Provider] = []
    for kind, hook in _REGISTER.items():
        for answer in getattr(manager.hook, hook)():
            try:
                listed = list(answer)
            except TypeError:
                raise PluginError(
                    f"{hook} returned {type(answer).__name__}, expected an iterable of Provider"
                ) from None
            for provider in listed:
                check_provider(provider, kind)
                providers.append(provider)
    fits(manager.check_pending)  # last: of a plugin for a newer API, its version is the thing to say, not its new hooks
    if not providers:
        raise PluginError("registers nothing: it implements no sparkwright_register_* hook, or they return nothing")
    return providers


def unfit_hooks(manager: pluggy.PluginManager, error: Exception) -> str:
    """Why hooks were refused, in one line; of misspelt ones their names and the nearest right ones, and no object."""
    hooks = {name: hook for name, hook in vars(manager.hook).items() if isinstance(hook, pluggy.HookCaller)}
    known = [name for name, hook in hooks.items() if hook.has_spec()]
    unknown = [name for name in hooks if name not in known]
    if unknown:
        return "; ".join(f"there is no hook {name}{_nearest(name, known)}" for name in sorted(unknown))
    return " ".join(line.strip() for line in str(error).splitlines())


def _nearest(name: str, known: list[str]) -> str:
    """`did_you_mean` among the hooks of the same kind, which share so much of their names that any is near."""
    return did_you_mean(name, [hook for hook in known if hook.split("_")[:2] == name.split("_")[:2]] or known)


def check_provider(provider: Any, kind: Kind) -> None:
    """PluginError naming what is wrong with a Provider, if anything is."""
    if not isinstance(provider, Provider):
        raise PluginError(f"{_REGISTER[kind]} gave {type(provider).__name__}, expected sparkwright's Provider")
    who = f"{provider.kind} {provider.name!r}"
    if provider.hook_api > HOOK_API:
        raise PluginError(
            f"{who} is for hook API {provider.hook_api}, this sparkwright has {HOOK_API}; upgrade sparkwright"
        )
    if provider.kind != kind:
        raise PluginError(
            f"{who} came through {_REGISTER[kind]}, expected {_REGISTER.get(provider.kind, 'a known kind')}"
        )
    if not NAME.match(provider.name) or provider.name in RESERVED:
        raise PluginError(
            f"{who}: the name must be lower-case letters, digits and _, and none of use, model, auto, ops, check"
        )
    if not attrs.has(provider.options):
        raise PluginError(f"{who}: options is {provider.options!r}, expected an attrs class")
    try:  # a class that only fails later would take every configuration down with it
        get_type_hints(provider.options)
    except Exception as error:
        raise PluginError(f"{who}: the annotations of {provider.options.__name__} cannot be read: {error}") from error
    for field in attrs.fields(provider.options):
        if field.default is attrs.NOTHING:
            raise PluginError(f"{who}: option '{field.name}' has no default; every option needs one")
        if not field.metadata.get("help"):
            raise PluginError(f"{who}: option '{field.name}' has no help text; give metadata={{'help': ...}}")
    try:
        provider.options()
    except Exception as error:
        raise PluginError(f"{who}: the defaults of its options are refused by themselves: {error}") from error
    if provider.describe is None and provider.kind not in ("kernels", "observer"):
        raise PluginError(f"{who} has no describe; its facts are needed before anything is built")


def _without_conflicts(installed: list[Installed]) -> tuple[list[Installed], list[Unusable]]:
    """Two entry points that provide the same kind and name: neither is used, both are named."""
    owners: dict[tuple[str, str], list[Installed]] = defaultdict(list)
    for item in installed:
        owners[item.provider.kind, item.provider.name].append(item)
    kept, clashes = [], []
    for (kind, name), items in owners.items():
        if len(items) == 1:
            kept.append(items[0])
            continue
        both = " and ".join(f"{i.origin} (plugin {i.entry})" for i in items)
        reason = f"the {kind} '{name}' is provided by {both}; disable one in plugins.disable"
        pair = frozenset({(kind, name)})
        clashes += [Unusable(i.entry, i.distribution, i.version, "conflict", reason, pair) for i in items]
    return kept, clashes
