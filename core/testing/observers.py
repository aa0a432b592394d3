"""Checks of observers: they see everything, change nothing, and end without an error."""

from __future__ import annotations

import copy
from typing import Any

import attrs

from sparkwright.core.contracts import Provider, Site
from sparkwright.core.engine import Engine
from sparkwright.core.errors import NumericError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.roles import Observers
from sparkwright.core.testing.check import CheckFailed, Skipped
from sparkwright.core.testing.ground import SCHEDULER, Entry, Ground, prompt_for, same_text, text

QUIET: dict[str, Any] = {"observers": {"use": []}}
DRAFTING: dict[str, Any] = {"scheduler": {"use": SCHEDULER}}


@attrs.define(eq=False)
class Witness:
    """Writes down every event, as it was before anybody else saw it."""

    events: list[tuple[str, Any, Any]] = attrs.field(factory=list)

    def note(self, hook: str, value: Any) -> None:
        self.events.append((hook, value, copy.deepcopy(value)))

    @hookimpl
    def sparkwright_request_started(self, request: Any) -> None:
        self.note("request_started", request)

    @hookimpl
    def sparkwright_round_finished(self, trace: Any) -> None:
        self.note("round_finished", trace)

    @hookimpl
    def sparkwright_request_finished(self, result: Any) -> None:
        self.note("request_finished", result)

    @hookimpl
    def sparkwright_plugin_broken(self, name: str, error: str) -> None:
        self.note("plugin_broken", f"{name}: {error}")


def witnessed(witness: Witness) -> Provider:
    return Provider(
        kind="observer", name="kit_witness", summary="toy: keeps events", build=lambda options, site: witness
    )


def _use(ground: Ground, *names: str) -> dict[str, Any]:
    return {"observers": {"use": list(names)}}


def _no_errors(ground: Ground) -> None:
    """Every kind of request there is: greedy, cancelled, stopped, broken, one token long."""
    witness, name = Witness(), ground.provider.name
    with ground.engine(_use(ground, name, "kit_witness"), DRAFTING, providers=[witnessed(witness)]) as engine:
        results = [engine.complete(prompt_for(engine), seed=1, max_tokens=most) for most in (1, 2, 30)]
        with engine.stream(prompt_for(engine, 2), seed=2) as stream:
            next(iter(stream), None)
            stream.cancel()
            results.append(stream.result)
        _nan(engine)
        results.append(engine.complete(prompt_for(engine, 3), seed=3, max_tokens=9))
    broken = [value for hook, value, _ in witness.events if hook == "plugin_broken"]
    said = [w for result in results for w in result.warnings if name in w]
    if broken or said:
        raise CheckFailed(
            f"it raised and was switched off ({(broken or said)[0]}); expected an observer to take every event: "
            "requests of one token, cancelled ones, and requests that break off in an error"
        )


def _nan(engine: Engine) -> None:
    """A request that breaks off because the target gives NaN."""

    def plant(parts: Any) -> None:
        right = parts.target.forward

        def wrong(*arguments: Any, **named: Any) -> Any:
            made = right(*arguments, **named)
            return made if made.logits is None else attrs.evolve(made, logits=made.logits * float("nan"))

        parts.target.forward = wrong

    engine.run(plant)
    try:
        engine.complete(prompt_for(engine, 3), seed=3, max_tokens=9)
    except NumericError:
        pass
    finally:
        engine.run(lambda parts: delattr(parts.target, "forward"))


def _isolated(ground: Ground) -> None:
    """Whatever hook of it raises, the request goes on and a warning names it."""
    provider = ground.provider
    hooks = ("request_started", "round_finished", "request_finished")
    with ground.engine(QUIET, DRAFTING) as plain:
        wanted = text(plain, 1)
    made: list[Any] = []
    for hook in hooks:

        def build(options: Any, site: Site, hook: str = hook) -> object:
            made.append(_raising(provider.build(options, site), f"sparkwright_{hook}"))
            return made[-1]

        name = provider.name
        with ground.engine(_use(ground, name), DRAFTING, providers=[attrs.evolve(provider, build=build)]) as engine:
            result = engine.complete(prompt_for(engine, 1), seed=1)
            same_text(result.tokens, wanted, f"text with an observer whose {hook} raises")
            again = engine.complete(prompt_for(engine, 1), seed=1)
            same_text(again.tokens, wanted, f"a later text with an observer whose {hook} raised")
        if not any(name in w and "planted" in w for w in (*result.warnings, *again.warnings)):
            raise CheckFailed(f"its {hook} raised and no warning names it; expected it to be switched off and reported")
    for plugin in made:  # one that was switched off is told nothing more, and may hold a file
        Observers([(provider.name, plugin)]).tell("engine_closed")


def _raising(plugin: Any, hook: str) -> Any:
    """The plugin's class again, with one hook that raises."""

    def planted(self: Any) -> None:
        raise RuntimeError("planted")

    planted.__name__ = hook
    kind: Any = type(plugin)
    space: dict[str, Any] = {hook: hookimpl(planted), "__slots__": ()}
    raising = type(kind)(f"Raising{kind.__name__}", (kind,), space)
    try:
        made = copy.copy(plugin)
        object.__setattr__(made, "__class__", raising)
    except TypeError as error:
        raise Skipped(f"no fault can be planted in what it builds: {error}") from None
    return made


def _changes_nothing(ground: Ground) -> None:
    witness, name = Witness(), ground.provider.name
    with ground.engine(QUIET, DRAFTING) as plain:
        wanted = plain.complete(prompt_for(plain, 1), seed=1)
    order = _use(ground, "kit_witness", name)  # the witness sees each event before it does
    with ground.engine(order, DRAFTING, providers=[witnessed(witness)]) as engine:
        got = engine.complete(prompt_for(engine, 1), seed=1)
        same_text(got.tokens, wanted.tokens, "text with this observer, against none")
    if got.text != wanted.text or got.finish != wanted.finish or got.promise != wanted.promise:
        raise CheckFailed("a result with this observer says another text, finish or promise than one without")
    for hook, value, before in witness.events:
        if _plain(value) != _plain(before):
            raise CheckFailed(f"it edits what {hook} hands it ({_edited(value, before)}); expected it to read alone")
    if got.config_sha256 != wanted.config_sha256:
        raise CheckFailed("it changes the hash of the configuration")


def _plain(value: Any) -> Any:
    return attrs.asdict(value) if attrs.has(type(value)) else value


def _edited(value: Any, before: Any) -> str:
    a, b = _plain(value), _plain(before)
    return next((key for key in a if a[key] != b.get(key)), "?") if isinstance(a, dict) else "its value"


CHECKS = (
    Entry("takes every event", "requests that are short, cancelled, stopped or broken raise nothing in it", _no_errors),
    Entry(
        "its failure stays its own", "whatever hook of it raises, the request goes on and a warning names it", _isolated
    ),
    Entry("changes nothing", "text, result and the events themselves are as without it", _changes_nothing),
)
