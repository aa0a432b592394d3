"""The steps of an evidence run: what each measures, as a function from a job to an outcome of plain data.

A job is plain data, too, because every step runs in a process of its own: a GPU that runs out of memory ends a process,
not an exception, and must not take the other steps along. Nothing personal is reported on purpose; `scrub` sees to what
slips into a message.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from sparkwright.core.errors import ModelError, SparkwrightError

Tell: TypeAlias = Callable[[str, int, int], None]
Status: TypeAlias = Literal["ok", "not passed", "not applicable", "failed"]
STATUSES: dict[str, str] = {
    "ok": "ran; an audit passed",
    "not passed": "ran, and found something wrong",
    "not applicable": "there was nothing to check here",
    "failed": "could not be run to its end",
}


@attrs.frozen
class Settings:
    """How much is measured. rows: tokens of the consistency audit; 4,160 of them are 1,040 compressed rows of
    DeepSeek-V4, past what its indexer keeps (512 for Flash, 1,024 for Pro). context, repeats, fit: of calibrate.
    pairs, tokens, gate, profile: of the comparison. audit_tokens: of each text of the kernel audit."""

    rows: int = 4160
    context: int = 512
    repeats: int = 9
    fit: bool = True
    pairs: int = 12
    tokens: int = 128
    gate: int = 3
    profile: int = 3
    audit_tokens: int = 32

    @classmethod
    def quick(cls) -> Settings:
        """Whether everything works, in a minute; the numbers are not worth much."""
        return cls(
            rows=40, context=48, repeats=2, fit=False, pairs=2, tokens=16, gate=1, profile=1, audit_tokens=6
        )  # fmt: skip


@attrs.frozen
class Job:
    """What a step is given. model, config, work: paths. sets: `--set` assignments, the model's among them."""

    step: str
    function: str
    model: str
    work: str
    config: str | None = None
    sets: tuple[str, ...] = ()
    settings: Settings = attrs.field(factory=Settings)

    def to_dict(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Job:
        return cls(**{**data, "sets": tuple(data["sets"]), "settings": Settings(**data["settings"])})


@attrs.frozen
class Outcome:
    """summary: one sentence. config_sha256: of the engine that ran, "" for a step without one."""

    status: Status
    summary: str
    data: Mapping[str, Any] = attrs.field(factory=dict)
    config_sha256: str = ""

    def to_dict(self) -> dict[str, Any]:
        from sparkwright.core.compare.result import finite

        plain: dict[str, Any] = finite(attrs.asdict(self))
        return plain


@attrs.frozen
class Step:
    """function: "package.module:name", called as function(job, tell) -> Outcome."""

    name: str
    what: str
    function: str


_HERE = "sparkwright.core.evidence.steps"
STEPS = (
    Step("machine", "chip, memory, system, MLX and its device", f"{_HERE}:machine"),
    Step("checkpoint", "what the model is, and hashes of its headers", f"{_HERE}:checkpoint"),
    Step("doctor", "what runs here, and what does not", f"{_HERE}:doctor"),
    Step("kernels", "every kernel beside its reference, on the device", f"{_HERE}:kernels"),
    Step("consistency", "decode, verify and prefill as one function", f"{_HERE}:consistency"),
    Step("calibrate", "what verifies of 1..8 rows and a block of drafts cost", f"{_HERE}:calibrate"),
    Step("speed", "plain decoding against speculation at temperature 1", f"{_HERE}:speed"),
)


def perform(job: Job, tell: Tell) -> dict[str, Any]:
    """Runs a step; whatever it raises becomes a failed outcome with one sentence."""
    module, _, name = job.function.partition(":")
    try:
        outcome: Outcome = getattr(import_module(module), name)(job, tell)
    except SparkwrightError as error:
        outcome = Outcome("failed", str(error), {"error": type(error).__name__})
    except Exception as error:
        traceback.print_exc()  # to the log in the work folder, which stays here
        outcome = Outcome("failed", f"{type(error).__name__}: {error}", {"error": type(error).__name__})
    return outcome.to_dict() | {"peak_memory_bytes": _peak_memory()}


def _peak_memory() -> int | None:
    import sys

    mx = sys.modules.get("mlx.core")
    return None if mx is None else int(mx.get_peak_memory())


def configuration(job: Job, **more: Any) -> Any:
    """The configuration that is asked for, with some values changed."""
    from sparkwright.core.config import load_config

    flags = {key: (value, "the evidence step") for key, value in more.items()}
    return load_config(job.config, sets=job.sets, flags=flags)


# ------------------------------------------------------------------------------------------------- what is here


def machine(job: Job, tell: Tell) -> Outcome:
    from sparkwright.core.evidence import facts

    data = facts.machine()
    chip = data.get("chip") or data["device_info"].get("device_name", "unknown processor")
    memory = f"{data['memory_bytes'] / 2**30:.0f} GiB" if "memory_bytes" in data else "unknown memory"
    system = f"macOS {data['macos']}" if data.get("macos") else data["system"]
    return Outcome("ok", f"{chip}, {memory}, {system}, MLX {facts.versions()['mlx']} on {data['device']}", data)


def checkpoint(job: Job, tell: Tell) -> Outcome:
    from sparkwright.core.assembly import device_name
    from sparkwright.core.evidence import facts
    from sparkwright.core.plugins import discover

    folder = Path(job.model)
    data = facts.checkpoint(folder)
    count = data["weight_files"]
    size = f"{count} weight file{'s' * (count != 1)}, {data['bytes'] / 2**30:.2f} GiB"
    if not count:
        return Outcome("failed", "the model folder holds no .safetensors files: no weights, or in another format", data)
    inspected: dict[str, Any] = {}
    sure = [
        (item.provider.recognises(folder) if item.provider.recognises else 0, item.provider)
        for item in discover().of_kind("target")
        if "inspect" in item.provider.tools
    ]
    best = max(sure, key=lambda one: one[0], default=(0, None))
    if best[0] > 0 and best[1] is not None:
        module, _, function = best[1].tools["inspect"].partition(":")
        inspected = getattr(import_module(module), function)(folder, device_name())
        kept = ("architecture", "variant", "layout", "formats", "layers", "drafter_stages", "tensors", "bytes",
                "bytes_by_part", "contract", "memory", "fingerprint")  # fmt: skip
        data["inspected"] = {key: inspected[key] for key in kept if key in inspected}
        if not inspected["contract"]["fits"]:
            return Outcome("not passed", f"{inspected['architecture']}: the contract is not met; {size}", data)
        size = f"{inspected['architecture']} with {inspected['variant']}, {size}; complete"
    return Outcome("ok", size, data)


def doctor(job: Job, tell: Tell) -> Outcome:
    from sparkwright.core.doctor import diagnose
    from sparkwright.core.plugins import discover

    found = diagnose(discover().unusable)
    data = found.as_dict()
    del data["switches"]  # environment variables are nobody's business
    counts = {level: sum(f.level == level for f in found.findings) for level in ("problem", "note")}
    said = ", ".join(f"{count} {level}{'s' * (count != 1)}" for level, count in counts.items())
    return Outcome("ok" if found.healthy else "not passed", said, data)


# ------------------------------------------------------------------------------------------------------- audits


def kernels(job: Job, tell: Tell) -> Outcome:
    from sparkwright.core.assembly import device_name
    from sparkwright.core.audit.kernels import audit_kernels
    from sparkwright.core.audit.texts import PROMPTS

    result = audit_kernels(configuration(job), PROMPTS, max_tokens=job.settings.audit_tokens, progress=tell)
    data = result.to_dict() | {"device": device_name()}
    if not any(op.calls for op in result.ops) and result.first is None:
        why = (
            f"Not checked: on this device ({data['device']}) no fused kernel covers any op of this model, so every op "
            "ran as its own reference and nothing was compared."
        )
        return Outcome("not applicable", why, data, result.config_sha256)
    return Outcome("ok" if result.passed else "not passed", result.meaning, data, result.config_sha256)


def consistency(job: Job, tell: Tell) -> Outcome:
    from sparkwright.core.assembly import promise_of
    from sparkwright.core.audit.consistency import audit_consistency
    from sparkwright.core.audit.texts import text_from

    config = configuration(job)
    result = audit_consistency(config, text_from(None), limit=job.settings.rows, progress=tell)
    data = result.to_dict() | {"promise": promise_of(config)}
    return Outcome("ok" if result.passed else "not passed", result.meaning, data, result.config_sha256)


# ------------------------------------------------------------------------------------------------- measurements


def calibrate(job: Job, tell: Tell) -> Outcome:
    """As `sparkwright calibrate` does, but the curves stay in the work folder: the user's cache is not touched."""
    from sparkwright.core import costs
    from sparkwright.core.assembly import assemble, device_name
    from sparkwright.core.audit.identity import changed
    from sparkwright.core.audit.texts import text_from
    from sparkwright.core.calibrate import measure_curves
    from sparkwright.core.compare.prompts import SETS
    from sparkwright.core.confidences import fit_confidences
    from sparkwright.core.contracts import WIDEST_VERIFY
    from sparkwright.core.store import WeightStore

    config = changed(configuration(job), {"engine.costs": "none"})
    store, asked = WeightStore(), job.settings
    with assemble(config, store=store, progress=tell) as engine:
        drafter = engine.slots["drafter"].effective
        ids = engine.target.encode(text_from(None))
        facts, drafts = engine.run(lambda parts: (parts.target.facts, parts.drafter.facts))
        room = min(facts.context, drafts.context or facts.context) - WIDEST_VERIFY
        ids = ids[: max(1, min(asked.context, room))]
        curves = engine.run(
            lambda parts: measure_curves(
                parts.target, parts.drafter if drafts.block else None, ids, repeats=asked.repeats,
                progress=lambda done, total: tell("measuring", done, total),
            )
        )  # fmt: skip
        sha256 = engine.config_sha256
    fitted: dict[str, Any] = {"fitted": False, "why": "the drafter has no confidences"}
    if drafts.confidence and drafts.block:
        fitted = {"fitted": False, "why": "not asked for (--quick)"}
        if asked.fit:
            prompts = ",".join(SETS[:3])
            fitted = fit_confidences(config, store, prompts, 128, min(drafts.block, WIDEST_VERIFY - 1), tell)
            curves = attrs.evolve(curves, temperatures=tuple(fitted.get("temperatures", ())))
    about = {
        "fingerprint": facts.fingerprint, "drafter": drafter, "device": device_name(), "context": len(ids),
        "repeats": asked.repeats, "confidences": fitted,
    }  # fmt: skip
    costs.save(Path(job.work) / "costs.json", curves, about)
    words = f"A plain decode takes {1000 * curves.plain:.2f} ms; a verify of {len(curves.verify)} rows costs "
    words += f"{curves.verify[-1] / curves.plain:.2f} of it"
    words += f", a block of drafts {curves.draft / curves.plain:.2f}." if curves.draft else "."
    return Outcome("ok", words, {"curves": attrs.asdict(curves), **about}, sha256)


def speed(job: Job, tell: Tell) -> Outcome:
    """`compare` with plain decoding as the base, speculation as configured as the candidate."""
    from sparkwright.core.compare import compare

    asked, config = job.settings, configuration(job)
    drafter, sampler = config.slots["drafter"].use, config.slots["sampler"].use
    if drafter == "none":
        return Outcome("not applicable", "The configuration says drafter.use = none: there is nothing to compare.")
    curves = Path(job.work) / "costs.json"
    sets = [*job.sets, "drafter.use=none"]
    if sampler == "chain":
        sets.append("sampler.chain.temperature=1.0")
    if curves.is_file():
        sets.append(f"engine.costs={curves}")
        if drafter == "auto":  # what it came to is known: name it
            drafter = json.loads(curves.read_text(encoding="utf-8"))["about"]["drafter"]
    result = compare(
        job.config, swap=f"drafter.use={drafter}", sets=sets, prompts="code,prose,chat", pairs=asked.pairs,
        tokens=asked.tokens, gate=asked.gate, profile=asked.profile, out=Path(job.work) / "speed", progress=tell,
    )  # fmt: skip
    data = result.to_dict()
    data["prompts"] = [
        {"id": p["id"], "kind": p["kind"], "sha256": hashlib.sha256(p["text"].encode()).hexdigest()}
        for p in data["prompts"]
    ]
    for one in data["measurements"]:
        for run in one["runs"].values():
            run["tokens"] = len(run["tokens"])  # how many; what they are is in tokens_sha256
    data["environment"].pop("switches", None)
    data |= {"sampler": sampler, "costs": "measured here" if curves.is_file() else "as configured"}
    labels = ("plain decoding", f"speculation with {drafter}")
    for arm, label in zip(data["arms"], labels, strict=True):
        arm["label"] = label
    sha256 = data["arms"][-1]["config_sha256"]
    return Outcome("ok", f"Speculation against plain decoding: {result.verdict}", data, sha256)


def bundled_model(config: Any) -> Path:
    """The folder of the model that is used: the configured one, or what a target plugin brings. ModelError if none."""
    slot = config.slots["target"]
    if slot.model is not None:
        folder: Path = slot.model
        if not folder.is_dir():
            found = "is a file" if folder.exists() else "does not exist"
            raise ModelError(f"{folder} {found}; expected a model folder with config.json and weights (--model PATH)")
        if not (folder / "config.json").is_file():
            raise ModelError(f"{folder} has no config.json; expected a model folder with config.json and weights")
        return folder
    for item in config.catalogue.of_kind("target"):
        brought = item.provider.bundled() if item.provider.bundled is not None else None
        if brought is not None and slot.use in ("auto", item.provider.name):
            return Path(brought)
    raise ModelError("no model: give --model PATH, or target.model in the configuration")
