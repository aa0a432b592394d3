"""What `sparkwright models` can do with a checkpoint of this family, as plain data in and out.

`TOOLS` goes into the target's Provider; the command line finds the functions by it and knows nothing of the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4 import headers, memory
from sparkwright.plugins.deepseek_v4.checkpoint import CONFIG, Checkpoint, examine
from sparkwright.plugins.deepseek_v4.contract import Stored, expected
from sparkwright.plugins.deepseek_v4.formats import in_memory

_HERE = "sparkwright.plugins.deepseek_v4.tools"
TOOLS: Mapping[str, str] = {name: f"{_HERE}:{name}" for name in ("inspect", "convert")}


def claims(path: Path) -> bool:
    """Whether `path` says that it is a model of this family or a relative that deserves a refusal by name."""
    if not (path / CONFIG).is_file():
        return False
    try:
        raw = headers.read_json(path / CONFIG)
    except ModelError:
        return False
    return str(raw.get("model_type", "")).startswith("deepseek_v4")


def inspect(path: Path, device: str) -> dict[str, Any]:
    """What the checkpoint is, whether it fits its contract, its sizes, and the memory it needs on `device`."""
    checkpoint = examine(path)
    report, config = checkpoint.report, checkpoint.config
    stored = list(checkpoint.stored.values())
    need, there = memory.needed(stored, expand=False), memory.present(device)
    official = expected(config, checkpoint.stages)
    return {
        "path": str(path),
        "architecture": _architecture(checkpoint),
        "variant": checkpoint.variant,
        "layout": checkpoint.layout,
        "formats": _formats(stored),
        "layers": config.layers,
        "drafter_stages": checkpoint.stages,
        "vocabulary": config.vocab_size,
        "context": config.context,
        "tensors": len(checkpoint.tensors),
        "bytes": checkpoint.nbytes,
        "bytes_by_part": _by_part(stored),
        "files": len(checkpoint.files),
        "fingerprint": checkpoint.fingerprint,
        "contract": {
            "fits": report.fine,
            "official_tensors": len(official),
            "missing": list(report.missing),
            "extra": list(report.extra),
            "misshapen": list(report.misshapen),
        },
        "memory": {
            "device": device,
            "weights": need.weights,
            "while_loading": need.staging,
            "needed": need.peak,
            "state_at_8192_tokens": memory.state_bytes(config, 8192),
            "present": there,
            "fits": there is None or need.peak <= there,
        },
    }


def convert(
    source: Path,
    destination: Path,
    options: Mapping[str, str],
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Converts for MLX; options: experts, dense, drafter_experts (those left out have their defaults)."""
    from sparkwright.plugins.deepseek_v4.convert import convert as run  # imports MLX
    from sparkwright.plugins.deepseek_v4.recipe import Recipe

    return run(source, destination, Recipe(**options), progress)


def refuse_if_too_large(checkpoint: Checkpoint, device: str, expand: bool, force: bool) -> None:
    """ModelError, saying by how much, if the target of this checkpoint does not fit the device's memory."""
    target = [one for name, one in checkpoint.stored.items() if not name.startswith("mtp.")]
    memory.refuse_if_too_large(str(checkpoint.path), memory.needed(target, expand), device, force)


def _architecture(checkpoint: Checkpoint) -> str:
    listed = checkpoint.raw.get("architectures")
    return str(listed[0]) if isinstance(listed, list) and listed else "DeepseekV4ForCausalLM"


def _formats(stored: Iterable[Stored]) -> dict[str, list[str]]:
    """Forms in memory of experts and of the matrices that a release quantises."""
    found: dict[str, set[str]] = {}
    for one in stored:
        if one.form is not None and one.parameter.written != "BF16":
            where = "experts" if one.parameter.kind == "bank" else "dense"
            drafter = "drafter " if one.parameter.name.startswith("mtp.") else ""
            found.setdefault(drafter + where, set()).add(in_memory(one.form).name)
    return {where: sorted(forms) for where, forms in sorted(found.items())}


def _by_part(stored: Iterable[Stored]) -> dict[str, int]:
    parts = dict.fromkeys(
        ("routed experts", "drafter", "attention", "shared experts", "embedding and head", "other"), 0
    )
    for one in stored:
        name = one.parameter.name
        if name.startswith("mtp."):
            part = "drafter"
        elif ".ffn.experts." in name:
            part = "routed experts"
        elif ".ffn.shared_experts." in name:
            part = "shared experts"
        elif ".attn." in name:
            part = "attention"
        else:
            part = "embedding and head" if name in ("embed", "head") else "other"
        parts[part] += one.nbytes
    return parts
