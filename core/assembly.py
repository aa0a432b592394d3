"""Assembly: a Config becomes an Engine. Everything that can be refused is refused before weights are loaded.

Order: resolve names, describe every plugin (from configs and headers only), negotiate, then build target, drafter,
sampler, scheduler, verifier and observers, and bind them. Knows contracts; knows no plugin.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core import blas, costs, guard, launches
from sparkwright.core.check import LiveCheck
from sparkwright.core.config import Config, Slot, load_config
from sparkwright.core.contracts import (
    CostCurves,
    DrafterFacts,
    Kind,
    Op,
    OpSpec,
    Promise,
    Provider,
    SamplerFacts,
    SchedulerFacts,
    Site,
    TargetFacts,
    VerifierFacts,
)
from sparkwright.core.engine import Engine, Parts
from sparkwright.core.errors import AssemblyError, ModelError, PluginError, SparkwrightError
from sparkwright.core.generation import SlotReport
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.kernels import Kernels
from sparkwright.core.notices import FirstRounds, uncalibrated
from sparkwright.core.plugins import Installed
from sparkwright.core.roles import (
    Drafter,
    Observers,
    Sampler,
    Scheduler,
    Target,
    Verifier,
    guarded,
    new_manager,
    register,
)
from sparkwright.core.store import WeightStore
from sparkwright.core.worker import Worker, result_of

WrapOp = Callable[[OpSpec, str, Op], Op]
"""(op, backend, callable) -> callable: how an audit watches ops; see `assemble`."""

OTHERS: tuple[Kind, ...] = ("scheduler", "sampler", "verifier")

_FACTS: dict[Kind, type] = {
    "target": TargetFacts,
    "drafter": DrafterFacts,
    "scheduler": SchedulerFacts,
    "verifier": VerifierFacts,
    "sampler": SamplerFacts,
}


def assemble(
    config: Config | str | Path | dict[str, Any],
    *,
    store: WeightStore | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    wrap_op: WrapOp | None = None,
) -> Engine:
    """Build the engine that a configuration describes.

    config: a Config, or what `load_config` takes. store: weights shared with other engines of this process. progress:
    told (what, done, total) while weights load and prompts are processed.
    wrap_op: called once for each selected kernel op. Raises AssemblyError
    when plugins do not fit together, PluginError, ModelError.
    """
    if not isinstance(config, Config):
        config = load_config(config)
    blas.ensure_blas()
    launches.launch_singly()
    job = _Assembly(config, store if store is not None else WeightStore(), progress, wrap_op)
    worker = Worker()
    try:
        parts: Parts = result_of(worker.submit(job.run))
    except BaseException:
        job.abandoned = True  # after Ctrl-C: the next report of progress ends the loading
        worker.close()
        job.observers.tell("engine_closed")
        raise
    return Engine(parts, worker)


def load_target(model: str | Path, use: str | None = None, *, sets: tuple[str, ...] = (), **site: Any) -> Target:
    """Load a target alone, in the calling thread: `new_state()`, `forward(tokens, state, logits)`, `text`, `facts`.

    use: the target plugin's name, None to choose by the model's own config.json. sets: `--set`-style assignments. site:
    fields of `Site` to fill in (taps, row_exact, progress, ...).
    """
    blas.ensure_blas()
    launches.launch_singly()
    slot: dict[str, Any] = {"model": str(model)} | ({"use": use} if use else {})
    config = load_config({"target": slot}, sets=sets, only=("target",))
    return _Assembly(config, WeightStore(), None, None).target_alone(site)


def promise_of(config: Config) -> Promise:
    """The promise that results of this configuration's engine would carry; reads configs and headers only."""
    _, facts, _ = _Assembly(config, WeightStore(), None, None).describe()
    return promise_in_force(facts, config)


def device_name() -> str:
    """ "cpu", "metal" or "cuda": what MLX computes on by default."""
    import mlx.core as mx

    if mx.default_device().type == mx.DeviceType.cpu:
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"


@attrs.define(eq=False)
class _Progress:
    """The `progress` callback of `assemble`, as the observer that it is."""

    told: Callable[[str, int, int], None]

    @hookimpl
    def sparkwright_progress(self, what: str, done: int, total: int) -> None:
        self.told(what, done, total)


class _Assembly:
    """One assembly; the methods run in order, each needing what the earlier ones left."""

    def __init__(
        self, config: Config, store: WeightStore, progress: Callable[[str, int, int], None] | None, wrap: WrapOp | None
    ) -> None:
        self.config, self.catalogue = config, config.catalogue
        self.reports: dict[str, SlotReport] = {}
        self.warnings: list[str] = list(config.warnings)
        self.bundled = self._bundled()
        self.observers = self._observers(progress)
        self.check = LiveCheck() if config.kernels.check else None
        self.wrap = wrap
        self.abandoned = False
        site: dict[str, Any] = {"store": store, "force": config.engine.force, "row_exact": config.engine.row_exact}
        self.site = Site(device=device_name(), progress=self._progress, **site)

    def _progress(self, what: str, done: int, total: int) -> None:
        if self.abandoned:
            raise KeyboardInterrupt
        self.observers.tell("progress", what=what, done=done, total=total)

    def _wrap(self, op: OpSpec, backend: str, call: Op) -> Op:
        checked = call if self.check is None else self.check.wrap(op, backend, call)
        return checked if self.wrap is None else self.wrap(op, backend, checked)

    def describe(self) -> tuple[dict[Kind, Installed], dict[str, Any], Site]:
        """Who fills the slots and what they say of themselves, negotiated; nothing is loaded yet."""
        chosen: dict[Kind, Installed] = {"target": self._target()}
        target = self._describe(chosen["target"], attrs.evolve(self.site, model=self._model("target")))
        site = attrs.evolve(self.site, target=target)
        chosen["drafter"] = self._drafter(target)
        facts: dict[str, Any] = {"target": target}
        own = self._model("drafter") or self._model("target")  # many drafters come inside their target's checkpoint
        facts["drafter"] = self._describe(chosen["drafter"], attrs.evolve(site, model=own))
        site = attrs.evolve(site, drafter=facts["drafter"], taps=facts["drafter"].taps)
        for kind in OTHERS:
            slot = self.config.slots[kind]
            chosen[kind] = self.catalogue.get(kind, slot.use, slot.asked_by)
            self._report(kind, slot.use, slot.use, "")
            facts[kind] = self._describe(chosen[kind], site)
        negotiate({kind: item.provider for kind, item in chosen.items()}, facts, self.config)
        return chosen, facts, site

    def run(self) -> Parts:
        chosen, facts, site = self.describe()
        target: TargetFacts = facts["target"]
        curves = self._costs(target, chosen["drafter"].provider.name)
        if facts["scheduler"].costs and facts["drafter"].block and curves is None:
            name = chosen["scheduler"].provider.name
            setting, model = (self.config.values[key].value for key in ("engine.costs", "target.model"))
            self._report("scheduler", name, name, uncalibrated(setting, model))

        kernels = Kernels(self.config, self.site, [i.provider for i in chosen.values()], self._wrap)
        site = attrs.evolve(site, select=kernels.select, costs=curves)
        manager = new_manager()
        model = self._model("target")
        register(
            manager,
            self._build(chosen["target"], attrs.evolve(site, model=model)),
            "target",
            chosen["target"].provider.name,
        )
        bound = Target(manager, chosen["target"].provider.name, target)
        if self.check is not None:
            self.check.watch(bound)
        site = attrs.evolve(site, resources=bound.resources, text=bound)
        for kind in ("drafter", *OTHERS):
            item = chosen[kind]
            where = attrs.evolve(site, model=self._model(kind) or (model if kind == "drafter" else None))
            register(manager, self._build(item, where), kind, item.provider.name)
        kernels.check_overrides()
        names = {kind: item.provider.name for kind, item in chosen.items()}
        return Parts(
            target=bound,
            drafter=Drafter(manager, names["drafter"], facts["drafter"]),
            scheduler=Scheduler(manager, names["scheduler"], facts["scheduler"]),
            sampler=Sampler(manager, names["sampler"], facts["sampler"]),
            verifier=Verifier(manager, names["verifier"], facts["verifier"]),
            observers=self.observers,
            promise=promise_in_force(facts, self.config),
            slots=self.reports,
            kernels=kernels.taken,
            kernel_choices=tuple(kernels.choices),
            config=self.config,
            config_sha256=self._hash(names, curves),
            curves=curves,
            warnings=tuple(self.warnings),
            first_rounds=FirstRounds(names["drafter"], facts["drafter"]),
        )

    def target_alone(self, site: dict[str, Any]) -> Target:
        item = self._target()
        here = attrs.evolve(self.site, model=self._model("target"), **site)
        facts = self._describe(item, here)
        kernels = Kernels(self.config, here, [item.provider], self._wrap)
        manager = new_manager()
        built = self._build(item, attrs.evolve(here, select=kernels.select))
        register(manager, built, "target", item.provider.name)
        return Target(manager, item.provider.name, facts)

    # ------------------------------------------------------------------------------------------------ choosing

    def _bundled(self) -> tuple[str, Path] | None:
        """Target plugin and folder of a model that ships with it, if no model is named and the slot leaves it open."""
        slot = self.config.slots["target"]
        if slot.model is not None:
            return None
        for item in self.catalogue.of_kind("target"):
            provider = item.provider
            if provider.bundled is not None and slot.use in ("auto", provider.name):
                folder = guarded(provider.bundled, "target", provider.name, "bundled")()
                if folder is not None:
                    return provider.name, folder
        return None

    def _target(self) -> Installed:
        slot = self.config.slots["target"]
        if self.bundled is not None:
            name = self.bundled[0]
            self._report("target", name, name, "no model was named, so this is the small one that comes with it")
            return self.catalogue.get("target", name, "the model that ships with it")
        if slot.use != "auto":
            self._report("target", slot.use, slot.use, "")
            return self.catalogue.get("target", slot.use, slot.asked_by)
        path = self._existing_model(slot)
        claims = []
        for item in self.catalogue.of_kind("target"):
            recognises = item.provider.recognises
            if recognises is not None:
                sure = guarded(recognises, "target", item.provider.name, "recognises")(path)
                claims.append((sure, item.provider.name, item))
        claims = sorted((c for c in claims if c[0] > 0), key=lambda c: (-c[0], c[1]))
        if not claims:
            names = ", ".join(self.catalogue.names("target")) or "none"
            raise AssemblyError(
                f"no target plugin recognises the model in {path}; installed: {names}. Name one with target.use"
            )
        self._report(
            "target", "auto", claims[0][1], "made for this model" if claims[0][0] > 1 else "can load this model"
        )
        return claims[0][2]

    def _existing_model(self, slot: Slot) -> Path:
        if slot.model is None:
            raise ModelError("no model: give --model PATH, or target.model in the configuration")
        if not slot.model.is_dir():
            found = "is a file" if slot.model.exists() else "does not exist"
            raise ModelError(
                f"target.model: {slot.model} {found}, expected a model folder with config.json and weights"
            )
        return slot.model

    def _drafter(self, target: TargetFacts) -> Installed:
        slot = self.config.slots["drafter"]
        if slot.use != "auto":
            self._report("drafter", slot.use, slot.use, "")
            return self.catalogue.get("drafter", slot.use, slot.asked_by)
        if target.rollback is None:
            name, reason = "none", "the target cannot take rows back"
        elif target.drafter:
            name, reason = target.drafter, "the checkpoint holds this drafter"
        else:
            name, reason = "lookup", "the checkpoint holds no drafter of its own"
        self._report("drafter", "auto", name, reason)
        return self.catalogue.get("drafter", name, f"drafter.use = auto ({reason})")

    def _report(self, kind: str, requested: str, effective: str, reason: str) -> None:
        self.reports[kind] = SlotReport(requested, effective, reason)

    # ------------------------------------------------------------------------------------- describing and building

    def _model(self, kind: Kind) -> Path | None:
        named = self.config.slots[kind].model
        return self.bundled[1] if named is None and kind == "target" and self.bundled is not None else named

    def _options(self, item: Installed) -> Any:
        return self.config.slots[item.provider.kind].options[item.provider.name]

    def _describe(self, item: Installed, site: Site) -> Any:
        provider = item.provider
        assert provider.describe is not None
        call = guarded(provider.describe, provider.kind, provider.name, "describe")
        facts = call(self._options(item), site)
        if not isinstance(facts, _FACTS[provider.kind]):
            raise PluginError(
                f"{provider.kind} plugin '{provider.name}': describe gave {type(facts).__name__}, "
                f"expected {_FACTS[provider.kind].__name__}"
            )
        return facts

    def _build(self, item: Installed, site: Site) -> object:
        provider = item.provider
        with guard.Watch() as watch:
            built: object = guarded(provider.build, provider.kind, provider.name, "build")(self._options(item), site)
        if watch.replaced:
            raise PluginError(f"{provider.kind} plugin '{provider.name}': its build {watch.sentence}")
        return built

    def _observers(self, told: Callable[[str, int, int], None] | None) -> Observers:
        watching = Observers([] if told is None else [("progress", _Progress(told))])
        try:
            for name in self.config.observers:
                provider = self.catalogue.get("observer", name, "observers.use").provider
                build = guarded(provider.build, "observer", name, "build")
                watching.add(name, build(self.config.observer_options[name], Site()))
        except SparkwrightError:
            watching.tell("engine_closed")  # those before the failing one may hold files
            raise
        return watching

    def _costs(self, target: TargetFacts, drafter: str) -> CostCurves | None:
        said = self.config.values["engine.costs"]
        setting = str(said.value)
        if setting not in ("auto", "none") and said.base is not None:
            setting = str(said.base / Path(setting).expanduser())  # as everywhere: from the folder of the file
        curves = costs.curves_for(setting, target.fingerprint, drafter, self.site.device)
        if curves is None and setting == "auto" and (model := self._model("target")) is not None:
            curves = costs.shipped(model, target.fingerprint, drafter, self.site.device)
        return curves

    def _hash(self, names: dict[Kind, str], curves: CostCurves | None) -> str:
        """What decides the text: the configuration without who watches, who fills its slots, and the cost curves."""
        config = {key: value for key, value in self.config.to_dict().items() if not key.startswith("observers.")}
        said = {"config": config, "plugins": names, "costs": attrs.asdict(curves) if curves else None}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


# -------------------------------------------------------------------------------------------------- negotiation


def negotiate(providers: dict[str, Provider], facts: dict[str, Any], config: Config) -> None:
    """AssemblyError with every pair of plugins that do not fit, both sides named."""
    target: TargetFacts = facts["target"]
    drafter: DrafterFacts = facts["drafter"]
    scheduler: SchedulerFacts = facts["scheduler"]
    sampler: SamplerFacts = facts["sampler"]
    verifier: VerifierFacts = facts["verifier"]
    who = {kind: f"{kind} '{provider.name}'" for kind, provider in providers.items()}
    problems: list[str] = []

    def refuse_if(wrong: bool, sentence: str) -> None:
        if wrong:
            problems.append(sentence)

    refuse_if(
        drafter.vocab_size is not None and drafter.vocab_size != target.vocab_size,
        f"{who['drafter']} has a vocabulary of {drafter.vocab_size} tokens, {who['target']} of {target.vocab_size}; "
        "a drafter must be made for its target",
    )
    outside = [tap for tap in drafter.taps if not -1 <= tap < target.layers]
    refuse_if(
        bool(outside),
        f"{who['drafter']} reads the outputs of layers {outside}, {who['target']} has layers 0..{target.layers - 1}",
    )
    refuse_if(
        bool(drafter.taps) and not target.tappable,
        f"{who['drafter']} reads layers {list(drafter.taps)}, {who['target']} gives out no layer outputs",
    )
    refuse_if(
        drafter.block > 0 and target.rollback is None,
        f"{who['drafter']} needs a target that takes rejected rows back, {who['target']} ({target.model_type}) "
        "cannot; use drafter.use = 'none'",
    )
    refuse_if(
        drafter.block > 0 and drafter.proposal not in verifier.proposals,
        f"{who['drafter']} proposes {drafter.proposal} drafts, "
        f"{who['verifier']} takes {', '.join(sorted(verifier.proposals))}",
    )
    refuse_if(
        scheduler.anticipates and verifier.causal and not sampler.deterministic,
        f"{who['scheduler']} looks at later confidences before it decides on a draft, which changes the law "
        f"of the text under {who['verifier']}; use a causal scheduler, or the verifier 'coupled'",
    )
    refuse_if(
        verifier.deterministic_only and not sampler.deterministic,
        f"{who['verifier']} is exact only without randomness, {who['sampler']} samples; "
        "set the temperature to 0, or use the verifier 'stochastic'",
    )
    refuse_if(
        config.engine.row_exact and not target.row_exact,
        f"engine.row_exact is set, {who['target']} ({target.model_type}) does not offer it",
    )
    provided = frozenset().union(*(p.provides for p in providers.values()))
    for kind, provider in providers.items():
        missing = sorted(provider.requires - provided)
        refuse_if(
            bool(missing), f"{who[kind]} requires {', '.join(missing)}, which no other plugin of this engine provides"
        )
    if problems:
        raise AssemblyError(problems[0] if len(problems) == 1 else "\n".join(problems))


def promise_in_force(facts: dict[str, Any], config: Config) -> Promise:
    """The weakest promise that holds for results of this engine (DESIGN section 7)."""
    verifier: VerifierFacts = facts["verifier"]
    if facts["drafter"].block == 0:
        return "identity"  # it is plain decoding
    promise = verifier.deterministic_promise if facts["sampler"].deterministic else verifier.promise
    return "identity" if promise == "identity-up-to-ties" and config.engine.row_exact else promise
