"""The ground a plugin is tried on: an engine around it, of toys where nothing else is said.

Knows slots and toys; knows no check. MLX is imported when an engine is assembled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, get_type_hints

import attrs
import numpy as np

from sparkwright.core.config import Config, load_config
from sparkwright.core.contracts import DrafterFacts, Provider, SchedulerFacts, Site, TargetFacts
from sparkwright.core.convert import convert
from sparkwright.core.engine import Engine
from sparkwright.core.errors import SparkwrightError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.plugins import Catalogue, check_provider, discover
from sparkwright.core.testing import toys
from sparkwright.core.testing.check import CheckFailed, Skipped

V = 11
BOS = 0
"""The toy's first token: its tokenizer puts it before a prompt, as most models' do, and no random prompt holds it."""
MOST_VOCAB = 2048
"""A toy target is a table [V, V]; a plugin for a larger vocabulary brings its target by `config`."""
CONFIDENCES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
TARGET, DRAFTER, SAMPLER, SCHEDULER = "kit_target", "kit_drafter", "kit_sampler", "kit_scheduler"

BASE: dict[str, Any] = {
    "target": {"use": TARGET},
    "drafter": {"use": DRAFTER},
    "scheduler": {"use": "fixed"},
    "verifier": {"use": "greedy"},
    "sampler": {"use": "greedy"},
    "engine": {"costs": "none"},
    "generation": {"max_tokens": 40, "ignore_eos": True},
}
PLAIN: dict[str, Any] = {"drafter": {"use": "none", "model": None}}
"""Plain decoding, what speculation is compared with."""
SAMPLED: dict[str, Any] = {"sampler": {"use": SAMPLER}, "verifier": {"use": "coupled"}}


@cache
def installed() -> Catalogue:
    return discover()


def table(size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Logits [size, size] of a Markov chain without ties; greedily it walks through all tokens, one after another."""
    rng = np.random.default_rng(seed)
    logits: np.ndarray[Any, Any] = rng.normal(size=(size, size)).astype(np.float32)
    order = rng.permutation(size)
    logits[order, np.roll(order, -1)] = 3.0 + rng.random(size)
    return logits


def near(of: np.ndarray[Any, Any], seed: int = 9, noise: float = 1.5) -> np.ndarray[Any, Any]:
    """A table that often agrees with another and often does not."""
    logits: np.ndarray[Any, Any] = of + np.random.default_rng(seed).normal(size=of.shape).astype(np.float32) * noise
    return logits


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`more` over `base`, table by table; None takes a key away."""
    out = copy.deepcopy(dict(base))
    for key, value in more.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            nested = out.get(key)
            out[key] = merged(nested if isinstance(nested, Mapping) else {}, value)
        else:
            out[key] = value
    return out


@attrs.define(eq=False)
class Turns:
    """A scheduler that plans these depths in turn, zeros among them."""

    depths: tuple[int, ...] = (3, 0, 1, 0, 0, 7, 2)

    @hookimpl
    def sparkwright_scheduler_start(self) -> list[int]:
        return [0]

    @hookimpl
    def sparkwright_scheduler_plan(self, state: list[int], limit: int) -> int:
        state[0] += 1
        return min(limit, self.depths[(state[0] - 1) % len(self.depths)])

    @hookimpl
    def sparkwright_scheduler_learn(self) -> None:
        return None


def tapping_drafter(taps: tuple[int, ...]) -> Provider:
    """Random drafts, by a drafter that asks for these layers."""
    plain = toys.random_drafter()
    facts = DrafterFacts(block=2, taps=taps)
    return attrs.evolve(plain, name="kit_taps", describe=lambda options, site: facts)


def turns_scheduler() -> Provider:
    return Provider(
        kind="scheduler",
        name=SCHEDULER,
        summary="toy: depths in turn",
        build=lambda options, site: Turns(),
        describe=lambda options, site: SchedulerFacts(),
    )


@attrs.frozen(eq=False)
class Ground:
    """provider: what is tried; options: some of its options, plain; config: the rest of the engine, plain."""

    provider: Provider
    options: Mapping[str, Any] = attrs.field(factory=dict)
    config: Mapping[str, Any] = attrs.field(factory=dict)
    cases: Sequence[Any] = ()

    @property
    def given(self) -> Any:
        """The options' class with the given options, converted as a configuration converts them."""
        hints = get_type_hints(self.provider.options)
        return self.provider.options(**{k: convert(v, hints[k]) if k in hints else v for k, v in self.options.items()})

    @property
    def who(self) -> str:
        return f"{self.provider.kind} '{self.provider.name}'"

    @property
    def own_target(self) -> bool:
        """Whether the target is not the toy."""
        return self.provider.kind == "target" or "target" in self.config

    def slot(self, options: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The configuration that puts the provider in its slot."""
        kind, name = self.provider.kind, self.provider.name
        own = {name: dict(self.options if options is None else options)}
        if kind == "kernels":
            return {"kernels": {"use": [name] if name == "unfused" else [name, "unfused"], **own}}
        if kind == "observer":
            return {"observers": {"use": [name], **own}}
        return {kind: {"use": name, **own}}

    @property
    def table(self) -> str:
        """The configuration table of its options."""
        return {"observer": "observers"}.get(self.provider.kind, self.provider.kind) + f".{self.provider.name}"

    def settings(self, *changes: Mapping[str, Any]) -> dict[str, Any]:
        """Toys, the given configuration, the provider in its slot, and the changes, later ones over earlier."""
        own = {"drafter": {"use": "kit_random"}, "generation": {"max_tokens": 16}}  # a model takes its time
        base = merged(BASE, own) if self.own_target else BASE
        out = merged(merged(base, self.config), self.slot())
        for change in changes:
            out = merged(out, change)
        return out

    def load(self, *changes: Mapping[str, Any], providers: Sequence[Provider] = ()) -> Config:
        usable(self.provider)
        toy = self.toys()
        catalogue = installed().with_providers(*toy).with_providers(self.provider).with_providers(*providers)
        return load_config(self.settings(*changes), environ={}, catalogue=catalogue)

    def engine(self, *changes: Mapping[str, Any], providers: Sequence[Provider] = (), **how: Any) -> Engine:
        from sparkwright.core.assembly import assemble

        return assemble(self.load(*changes, providers=providers), **how)

    def toys(self) -> tuple[Provider, ...]:
        size, layers = self._sizes()
        logits = table(size)
        return (
            toys.markov_target(logits, name=TARGET, layers=layers, bos=BOS),
            toys.table_drafter(near(logits), name=DRAFTER, block=7, confidences=CONFIDENCES),
            toys.random_drafter(name="kit_random"),
            toys.plain_sampler(name=SAMPLER),
            turns_scheduler(),
        )

    def _sizes(self) -> tuple[int, int]:
        """Vocabulary and layers of the toy target: as the drafter that is tried asks for, if it does."""
        if self.provider.kind != "drafter" or self.own_target or self.provider.describe is None:
            return V, 1
        model = self.config.get("drafter", {}).get("model")
        facts: Any = None
        try:
            facts = self.provider.describe(self.given, Site(target=toy_facts(V, 1), model=model))
        except Exception:  # the engine will say it better
            return V, 1
        if not isinstance(facts, DrafterFacts):
            return V, 1
        size = facts.vocab_size or V
        if size > MOST_VOCAB:
            raise Skipped(
                f"the toy target has at most {MOST_VOCAB} tokens and this drafter needs {size:,}: give its target by "
                "config={'target': {'use': ..., 'model': ...}}"
            )
        return size, max([0, *facts.taps]) + 1


def toy_facts(size: int, layers: int) -> TargetFacts:
    return TargetFacts(size, 1 << 20, size, layers, (), "toy", "exact", fingerprint=f"toy{size}")


def usable(provider: Provider) -> None:
    """Skipped for a Provider that is refused as such: one check says why, the others have nothing to try."""
    try:
        check_provider(provider, provider.kind)
    except SparkwrightError as error:
        raise Skipped(f"the Provider itself is refused, see the check 'provider': {error}") from None


def prompt_for(engine: Engine, seed: int = 0, length: int = 9) -> list[int]:
    """Random tokens, told twice, so that drafters which look back have something to find."""
    size = engine.target.facts.vocab_size
    low = 2 if size > 8 else 0
    words = np.random.default_rng(1000 + seed).integers(low, size, length).tolist()
    return [*words, *words[: length - 2]]


def text(engine: Engine, seed: int = 0, **request: Any) -> tuple[int, ...]:
    return engine.complete(prompt_for(engine, seed), seed=seed, **request).tokens


def first_difference(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    if list(a) == list(b):
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def same_text(got: Sequence[int], wanted: Sequence[int], what: str) -> None:
    """CheckFailed naming the first token that differs. what: whose texts, and what to do."""
    at = first_difference(got, wanted)
    if at is not None:
        raise CheckFailed(
            f"token {at} is {_at(got, at)}, expected {_at(wanted, at)} (of {len(got)} and {len(wanted)} tokens): {what}"
        )


def _at(tokens: Sequence[int], i: int) -> str:
    return str(tokens[i]) if i < len(tokens) else "missing"


def one_sentence(error: BaseException, where: str) -> None:
    """CheckFailed unless the error is one of ours, in one line."""
    if not isinstance(error, SparkwrightError):
        raise CheckFailed(
            f"{where} ended with {type(error).__name__}: {error}; expected a SparkwrightError (PluginError, "
            "ModelError, ConfigError) that says in one line what was found and what to do"
        )
    if not str(error) or "\n" in str(error).strip():
        raise CheckFailed(
            f"{where} ended with a message of {len(str(error).splitlines())} lines; expected one line that says what "
            f"was found and what to do. It begins: {str(error).splitlines()[:1]}"
        )


Body = Callable[[Ground], None]


@attrs.frozen
class Entry:
    """A check of a kind's list, before it meets a provider."""

    name: str
    proves: str
    body: Body
    slow: bool = False
