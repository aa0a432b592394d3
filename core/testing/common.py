"""Checks of every kind of plugin: what it leaves behind, in its engine and beside others."""

from __future__ import annotations

import random
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from sparkwright.core.contracts import Site
from sparkwright.core.engine import Engine
from sparkwright.core.errors import PluginError
from sparkwright.core.testing.check import CheckFailed
from sparkwright.core.testing.ground import Entry, Ground, one_sentence, prompt_for, same_text, text, usable

# ----------------------------------------------------------------------------------------- what it leaves behind


def suits(ground: Ground) -> dict[str, Any]:
    """Changes under which the provider may be assembled with toys: a sampler that draws needs another verifier."""
    from sparkwright.core.testing.ground import SAMPLED

    kind = ground.provider.kind
    if kind == "sampler":
        return _verifier_for_sampler(ground)
    if kind == "verifier":
        return _sampler_for_verifier(ground)
    return SAMPLED if kind in ("drafter", "scheduler") and not _anticipates(ground) else {}


def facts_of(ground: Ground) -> Any:
    """Facts of a verifier, sampler or scheduler beside toys."""
    from sparkwright.core.contracts import DrafterFacts
    from sparkwright.core.testing.ground import V, toy_facts

    provider = ground.provider
    assert provider.describe is not None
    site = Site(target=toy_facts(V, 1), drafter=DrafterFacts(7, "dense", V, confidence=True, target_noise=True))
    return provider.describe(ground.given, site)


def _verifier_for_sampler(ground: Ground) -> dict[str, Any]:
    return {"verifier": {"use": "greedy" if facts_of(ground).deterministic else "coupled"}}


def _sampler_for_verifier(ground: Ground) -> dict[str, Any]:
    from sparkwright.core.testing.ground import SAMPLER

    return {} if facts_of(ground).deterministic_only else {"sampler": {"use": SAMPLER}}


def _anticipates(ground: Ground) -> bool:
    return ground.provider.kind == "scheduler" and bool(facts_of(ground).anticipates)


def _repeats(ground: Ground) -> None:
    """A request's tokens are a function of the request: not of what was served before, nor of a new engine."""
    with ground.engine(suits(ground)) as engine:
        first = text(engine, 1)
        text(engine, 2, max_tokens=7)
        again = text(engine, 1)
        same_text(again, first, "the same request after another; keep what belongs to a request in its state")
        # Blocks near the end are shorter, which changes who draws a token: only an identity outlives that.
        lawful = ground.provider.kind == "verifier" and not facts_of(ground).promise.startswith("identity")
        if not lawful and engine.complete(prompt_for(engine, 1), seed=1, max_tokens=12).tokens != first[:12]:
            raise CheckFailed(
                "a request of 12 tokens is no beginning of the same longer request; expected the same tokens"
            )
    with ground.engine(suits(ground)) as engine:
        same_text(text(engine, 1), first, "the same request in a new engine; use nothing but its seed's keys")


def _global_random(ground: Ground) -> None:
    """Building it and serving requests leaves every global generator, and MLX's functions, as they were."""
    provider = ground.provider
    usable(provider)
    made: list[dict[str, Any]] = []

    def build(options: Any, site: Site) -> object:
        before = _snapshot()
        built = provider.build(options, site)
        made.append(_changed(before))
        return built

    names = ("start", "draft", "observe", "plan", "verify", "distribution", "forward")
    with ground.engine(suits(ground), providers=[attrs.evolve(provider, build=build)]) as engine:
        for changed in made:
            _blame(changed, "build")
        before = engine.run(lambda parts: _snapshot())
        for seed in range(2):
            text(engine, seed)
        _blame(engine.run(lambda parts: _changed(before)), f"a request (one of its hooks: {', '.join(names)}, ...)")
        seeds = []
        for value in (1, 2):  # the same request, whatever the global generators say
            engine.run(partial(_reseed, value))
            seeds.append(text(engine, 3))
    same_text(seeds[1], seeds[0], "the same request with other global seeds; draw from the keys of the hook alone")


def _snapshot() -> dict[str, Any]:
    import mlx.core as mx

    functions = {
        f"{place}.{name}": getattr(module, name)
        for place, module in (("mlx.core", mx), ("mlx.core.random", mx.random), ("random", random))
        for name in dir(module)
        if not name.startswith("_") and callable(getattr(module, name, None))
    }
    return functions | {
        "the state of mlx.core.random": [np.array(s).tolist() for s in mx.random.state],  # type: ignore[attr-defined]
        "the state of random": random.getstate(),
        "the state of numpy.random": repr(np.random.get_state()),
    }


def _changed(before: dict[str, Any]) -> dict[str, Any]:
    now = _snapshot()
    return {k: v for k, v in before.items() if (now.get(k) is not v if callable(v) else now.get(k) != v)}


def _blame(changed: dict[str, Any], where: str) -> None:
    if changed:
        verb = "moves" if next(iter(changed)).startswith("the state") else "replaces"
        raise CheckFailed(
            f"{where} {verb} {', '.join(list(changed)[:3])}; expected no global random state to be used and nothing of "
            "MLX to be patched: noise comes from the keys that a hook is given (sparkwright.core.randomness)"
        )


def _reseed(value: int, parts: Any) -> None:
    import mlx.core as mx

    mx.random.seed(value)
    random.seed(value)
    np.random.seed(value)


def _two_engines(ground: Ground) -> None:
    """Two engines in step, forward by forward, say what each says alone."""
    with ground.engine(suits(ground)) as engine:
        alone = [text(engine, seed) for seed in (1, 2)]
    with ground.engine(suits(ground)) as first, ground.engine(suits(ground)) as second:
        both, step = (first, second), _InStep()
        for me, engine in enumerate(both):
            engine.run(partial(step.plant, me))
        with ThreadPoolExecutor(2) as pool:
            texts = [pool.submit(step.run, me, partial(text, engine, me + 1)) for me, engine in enumerate(both)]
            together = [one.result() for one in texts]
    for got, wanted in zip(together, alone, strict=True):
        same_text(got, wanted, "two engines at once in one process; keep no state in modules or classes")


class _InStep:
    """Lets neither of two engines be more than one forward ahead of the other, until one is done."""

    def __init__(self) -> None:
        self._turn = threading.Condition()
        self._forwards: list[float] = [0, 0]

    def plant(self, me: int, parts: Any) -> None:
        right = parts.target.forward

        def forward(*arguments: Any, **named: Any) -> Any:
            with self._turn:
                self._forwards[me] += 1
                self._turn.notify_all()
                self._turn.wait_for(lambda: self._forwards[1 - me] >= self._forwards[me] - 1)
            return right(*arguments, **named)

        parts.target.forward = forward

    def run(self, me: int, work: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
        try:
            return work()
        finally:
            with self._turn:
                self._forwards[me] = float("inf")
                self._turn.notify_all()


BREAKS = (("target", "forward", 1), ("target", "forward", 4), ("verifier", "verify", 2), ("sampler", "distribution", 3))


def _broken_request(ground: Ground) -> None:
    """After a request that broke off in mid-round, and after a cancelled one, the engine serves as before."""
    with ground.engine(suits(ground)) as engine:
        wanted = text(engine, 1)
        for role, method, after in BREAKS:
            _break(engine, role, method, after)
            what = f"a request after one that broke off in {role}.{method}; keep what is its own in its state"
            same_text(text(engine, 1), wanted, what)
        with engine.stream(prompt_for(engine, 2), seed=2) as stream:
            next(iter(stream), None)
        same_text(text(engine, 1), wanted, "a request after a cancelled one")


def _break(engine: Engine, role: str, method: str, after: int) -> None:
    """Serve a request in which the method of a role raises at its call number `after`, and put it back."""
    calls, planted = 0, f"planted in {role}.{method}"

    def plant(parts: Any) -> None:
        part = getattr(parts, role)
        right: Callable[..., Any] = getattr(part, method)

        def wrong(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                raise PluginError(planted)
            return right(*arguments, **named)

        setattr(part, method, wrong)

    engine.run(plant)
    try:
        text(engine, 1)
    except Exception as error:
        if str(error) == planted:
            return
        one_sentence(error, f"a request in which {role}.{method} raised")
        raise CheckFailed(f"a request in which {role}.{method} raised ended with another error: {error}") from None
    finally:
        engine.run(lambda parts: delattr(getattr(parts, role), method))


def _missing_model(ground: Ground) -> None:
    """A model that is not there, or is none, is refused in one line of the plugin's own."""
    kind = ground.provider.kind
    usable(ground.provider)
    with tempfile.TemporaryDirectory() as folder:
        empty, broken = Path(folder) / "empty", Path(folder) / "broken"
        for made in (empty, broken):
            made.mkdir()
        (broken / "config.json").write_text('{"model_type": 3, "hidden_size": "wide"')
        for path in (Path(folder) / "nothing", empty, broken):
            try:
                with ground.engine(suits(ground), {kind: {"model": str(path)}}):
                    continue  # it needs no model, or brings its own
            except Exception as error:
                one_sentence(error, f"building it with {kind}.model = a folder that is {path.name}")
                if " raised in " in str(error):
                    raise CheckFailed(
                        f"building it with {kind}.model = a folder that is {path.name} lets a foreign exception "
                        f"through: {error}; expected a ModelError that names the file and says what to do"
                    ) from None


LAST = (
    Entry("same request, same text", "a seed gives one text, whatever was served before", _repeats),
    Entry("no global random state", "global generators and MLX's functions are neither used nor changed",
          _global_random),
    Entry("two engines at once", "engines of one process do not reach each other", _two_engines),
    Entry("broken request", "a request that breaks off in mid-round, or is cancelled, leaves nothing behind",
          _broken_request),
)  # fmt: skip
MODEL = Entry(
    "missing model",
    "a model folder that is missing, empty or damaged is refused in one line of its own",
    _missing_model,
)
