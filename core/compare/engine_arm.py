"""The real engine as an arm: configurations to specs, specs to assembled engines, results to records.

Arms of one process share the read-only weights and nothing else: each has its own plugin manager, plugins and thread.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core import launches
from sparkwright.core.assembly import assemble
from sparkwright.core.blas import ensure_blas
from sparkwright.core.compare.records import Arm, ArmSpec, CompareError, Prompt, RunRecord
from sparkwright.core.config import Config, load_config
from sparkwright.core.contracts import CostCurves
from sparkwright.core.engine import Engine
from sparkwright.core.errors import RequestError
from sparkwright.core.plugins import Catalogue
from sparkwright.core.store import WeightStore

Source = str | Path | Mapping[str, Any] | None
SWITCHES = ("SPARKWRIGHT_OPENBLAS", "SPARKWRIGHT_PLUGINS", launches.SWITCH)
NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def swapped_key(assignment: str) -> str:
    """The key of a `--swap KEY=VALUE`."""
    key, equals, _ = assignment.partition("=")
    if not equals or not key.strip():
        raise CompareError(f"--swap {assignment!r} is not KEY=VALUE, for example --swap drafter.use=none")
    return key.strip()


def engine_specs(
    base: Source,
    swaps: Sequence[str],
    others: Sequence[Source],
    sets: Sequence[str],
    catalogue: Catalogue | None = None,
) -> list[ArmSpec]:
    """The base first, then an arm for each swap, then one for each other configuration. ConfigError names what is
    wrong."""
    arms: list[tuple[str, Source, list[str]]] = [("base", base, list(sets))]
    for swap in swaps:
        swapped_key(swap)
        arms.append((swap, base, [*sets, swap]))
    arms += [(_name(other), other, list(sets)) for other in others]
    if len(arms) > len(NAMES):
        raise CompareError(f"{len(arms)} arms are more than the {len(NAMES)} that one comparison takes")
    specs = []
    for name, (label, source, own) in zip(NAMES, arms, strict=False):
        config = load_config(source, sets=own, catalogue=catalogue)
        plain = source if isinstance(source, Mapping) or source is None else str(source)
        specs.append(ArmSpec(name, label, config.to_dict(), config.sha256, {"config": plain, "sets": own}))
    return specs


def _name(source: Source) -> str:
    return "given configuration" if isinstance(source, Mapping) or source is None else Path(source).name


def load(spec: ArmSpec, catalogue: Catalogue | None = None) -> Config:
    """The configuration of a spec, read again; CompareError if it is no longer what it was."""
    config = load_config(spec.source["config"], sets=spec.source["sets"], catalogue=catalogue)
    if config.sha256 != spec.sha256:
        raise CompareError(
            f"its configuration changed while the comparison ran ({spec.sha256[:12]} -> {config.sha256[:12]})"
        )
    return config


@attrs.define(eq=False)
class EngineOpener:
    """Assembles engines that share one store of weights. catalogue: plugins to choose from, else what is installed."""

    progress: Callable[[str, int, int], None] | None = None
    catalogue: Catalogue | None = None
    store: WeightStore = attrs.field(factory=WeightStore)

    def __call__(self, spec: ArmSpec, *, stages: bool = False) -> Arm:
        config = load(spec, self.catalogue)
        if stages:
            sets = [*spec.source["sets"], "engine.stage_times=true"]
            config = load_config(spec.source["config"], sets=sets, catalogue=self.catalogue)
        return EngineArm(assemble(config, store=self.store, progress=self.progress))


class EngineArm:
    """One assembled engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        differing = [
            f"{slot}: {report.requested} -> {report.effective} ({report.reason})"
            for slot, report in engine.slots.items()
            if report.requested not in (report.effective, "auto")
        ]
        self._notes = (*differing, *engine.warnings)
        self._has_chat: bool | None = None

    @property
    def effective(self) -> Mapping[str, str]:
        slots = {slot: report.effective for slot, report in self.engine.slots.items()}
        curves, kernels = self.engine.run(lambda parts: (parts.curves, dict(parts.kernels)))
        return {**slots, "costs": _hashed(curves), **{f"kernels.{op}": name for op, name in kernels.items()}}

    def complete(self, prompt: Prompt, *, max_tokens: int, seed: int, ignore_eos: bool) -> RunRecord:
        given: Any = prompt.text
        notes = self._notes
        if prompt.chat:
            if self._chat_format():
                given = [{"role": "user", "content": prompt.text}]
            else:
                notes = (*notes, "the model has no chat format: chat prompts were given as plain text")
        result = self.engine.complete(given, max_tokens=max_tokens, seed=seed, stop=(), ignore_eos=ignore_eos)
        return record(result, notes)

    def close(self) -> None:
        self.engine.close()

    def _chat_format(self) -> bool:
        if self._has_chat is None:
            try:
                self.engine.run(lambda parts: parts.target.text.encode_chat([{"role": "user", "content": "hello"}]))
                self._has_chat = True
            except RequestError:
                self._has_chat = False
        return self._has_chat


def _hashed(curves: CostCurves | None) -> str:
    if curves is None:
        return "none"
    return hashlib.sha256(json.dumps(attrs.asdict(curves), sort_keys=True).encode()).hexdigest()[:12]


def record(result: Any, notes: Sequence[str] = ()) -> RunRecord:
    """A RunRecord of the engine's Result."""
    stats = result.stats
    return RunRecord(
        tokens=tuple(result.tokens),
        finish=result.finish,
        promise=result.promise,
        prompt_tokens=stats.prompt_tokens,
        prefill_seconds=stats.prefill_seconds,
        decode_seconds=stats.decode_seconds,
        rounds=stats.rounds,
        drafting_rounds=stats.drafting_rounds,
        drafted=stats.drafted,
        submitted=stats.submitted,
        accepted=stats.accepted,
        tau_rounds=stats.uncut_drafting_rounds,
        submitted_at=stats.submitted_at,
        accepted_at=stats.accepted_at,
        draft_seconds=stats.draft_seconds,
        verify_seconds=stats.verify_seconds,
        rest_seconds=stats.rest_seconds,
        config_sha256=result.config_sha256,
        notes=tuple(dict.fromkeys((*notes, *result.warnings))),
    )


def environment(specs: Sequence[ArmSpec], catalogue: Catalogue | None = None) -> dict[str, Any]:
    """What the numbers depend on besides the configurations: versions, machine, and the plugins' distributions."""
    from sparkwright.core.assembly import device_name

    blas = ensure_blas()
    plugins: dict[str, str] = {}
    for spec in specs:
        if "config" not in spec.source:
            continue
        config = load_config(spec.source["config"], sets=spec.source["sets"], catalogue=catalogue)
        for kind, slot in config.slots.items():
            found = config.catalogue.find(kind, slot.use)
            if found is not None:
                plugins[f"{kind}:{slot.use}"] = found.origin
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "device": device_name(),
        "blas": f"{blas.name} ({blas.source})" if blas.source else blas.name,
        "versions": {name: _version(name) for name in ("sparkwright", "mlx", "mlx-lm", "numpy")},
        "switches": {name: os.environ[name] for name in SWITCHES if name in os.environ},
        "plugins": dict(sorted(plugins.items())),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
