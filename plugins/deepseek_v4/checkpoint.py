"""A DeepSeek-V4 checkpoint, known from its config and headers alone.

`examine` looks at a directory and says what it is; `open_checkpoint` also refuses what cannot be run. Neither reads a
payload nor imports MLX: `weights` does, when arrays are asked for. Three layouts are known, and may be mixed tensor by
tensor: the official one (FP8 and FP4 with UE8M0 scales), official names in BF16, F16 or F32, and MLX conversions in
mlx-lm's or mlx-vlm's names (affine or mx).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4 import headers, names
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.contract import Report, Stored, parameters, resolve
from sparkwright.plugins.deepseek_v4.headers import Tensor, some

Variant: TypeAlias = Literal["DSpark", "target only", "drafter only"]

CONFIG = "config.json"
_STAGE = re.compile(r"^mtp\.(\d+)\.")
MOST_EXPERTS = 1 << 20
"""Of all layers together; Pro has 23,424. It bounds what a damaged config can make us expect."""
_ALONE = "deepseek_v4_dspark"
"""model_type of a drafter that mlx-vlm has split from its target."""


@attrs.frozen(eq=False)
class Checkpoint:
    """path, its config.json (`raw`) and the checked `config`; `stored`: parameter name -> how it is stored.

    stages: drafter stages in the files. layout: in words. report: how headers and contract compare.
    """

    path: Path
    raw: Mapping[str, Any]
    config: ModelConfig
    variant: Variant
    stages: int
    layout: str
    tensors: Mapping[str, Tensor]
    stored: Mapping[str, Stored]
    report: Report
    fingerprint: str

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def files(self) -> list[Path]:
        return sorted({tensor.file for tensor in self.tensors.values()})

    @property
    def confidence(self) -> bool:
        """Whether the drafter's confidence head is here (mlx-vlm's conversions drop it)."""
        return any(name.endswith(".confidence_head.proj") for name in self.stored)


def open_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in `path`. ModelError if it is not a DeepSeek-V4 one that can be run."""
    checkpoint = examine(path)
    checkpoint.report.refuse(path)
    return checkpoint


def examine(path: Path) -> Checkpoint:
    """As `open_checkpoint`, but tensors that are missing or misshapen are only reported."""
    if not path.is_dir():
        raise ModelError(
            f"{path}: {'not a directory' if path.exists() else 'no such directory'}; expected a model directory"
        )
    raw = headers.read_json(path / CONFIG)
    alone = raw.get("model_type") == _ALONE
    config = ModelConfig.from_json(_of_target(raw) if alone else raw, str(path / CONFIG))

    if (asked := config.layers * config.experts) > MOST_EXPERTS:
        raise ModelError(
            f"{path / CONFIG}: {config.layers} layers of {config.experts} experts are {asked:,} experts; "
            f"nothing over {MOST_EXPERTS:,} is read"
        )
    found = headers.read_directory(path)
    renamed = {name: names.official(name) for name in found}
    stages = _stages(renamed.values())
    tensors: dict[str, Tensor] = {}
    for name, tensor in found.items():
        official = renamed[name]
        if name.startswith(names.STAGELESS):
            official = names.official(name, last_stage=max(stages - 1, 0))
        if official in tensors:
            raise ModelError(f"{path}: tensors '{tensors[official].name}' and '{name}' are both '{official}'")
        tensors[official] = tensor
    _refuse_relatives(path, tensors)
    if stages and config.dspark is None:
        raise ModelError(f"{path}: holds 'mtp.*' tensors and its {CONFIG} has no 'dspark_*' keys; restore them")
    if config.dspark and stages and stages != config.dspark.stages:
        raise ModelError(
            f"{path}: holds {stages} drafter stages (mtp.*) and {CONFIG} names {config.dspark.stages} tap layers "
            "('dspark_target_layer_ids'); the two must agree"
        )

    confidence = any(".confidence_head." in name for name in tensors) or not alone
    wanted = list(parameters(config, stages, target=not alone, confidence=confidence))
    stored, report = resolve(wanted, tensors)
    variant: Variant = "drafter only" if alone else "DSpark" if stages else "target only"
    return Checkpoint(
        path=path,
        raw=raw,
        config=config,
        variant=variant,
        stages=stages,
        layout=_layout(found, any(name != official for name, official in renamed.items())),
        tensors=tensors,
        stored=stored,
        report=report,
        fingerprint=_fingerprint(raw, tensors),
    )


def _of_target(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The target's config that mlx-vlm keeps inside a drafter's, with the drafter's numbers under their V4 keys."""
    text = raw.get("text_config")
    if not isinstance(text, dict):
        raise ModelError(f"a {_ALONE} {CONFIG} without 'text_config'; expected the target's config there")
    block = raw.get("block_size")
    numbers = {
        "dspark_block_size": block - 1 if isinstance(block, int) else None,  # mlx-vlm counts the anchor
        "dspark_target_layer_ids": raw.get("target_layer_ids"),
        "dspark_noise_token_id": raw.get("mask_token_id"),
        "dspark_markov_rank": raw.get("markov_rank"),
    }
    return {
        **{key: value for key, value in numbers.items() if value is not None},
        **text,
        "model_type": "deepseek_v4",
    }


def _stages(officials: Iterable[str]) -> int:
    numbers = {int(match[1]) for name in officials if (match := _STAGE.match(name))}
    if numbers and numbers != set(range(max(numbers) + 1)):
        gaps = sorted(set(range(min(max(numbers), 4096))) - numbers)
        raise ModelError(f"drafter stages must count from 0 without a gap; stages {gaps[:5]} have no 'mtp.*' tensor")
    return len(numbers)


def _refuse_relatives(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Models of another forward pass, told by their tensors whatever the config says (spec section 15)."""
    relatives = (
        (r"^mtp\.\d+\.(e_proj|h_proj|enorm|hnorm)\.", "a preview release with a NextN head", "a DSpark release"),
        (r"\.markov_head\.(embed|head)\.|\.engram", "DeepSeek-V4.1", "a DeepSeek-V4 release"),
        (r"\.ffn\.gate\.bias_vl$|^vision", "a vision release", "a text release"),
    )  # fmt: skip
    for pattern, what, instead in relatives:
        if hits := [name for name in tensors if re.search(pattern, name)]:
            raise ModelError(f"{path}: this is {what}, which is not supported ({some(hits, 2)}); use {instead}")


def _layout(found: Mapping[str, Tensor], renamed: bool) -> str:
    dtypes = {tensor.dtype for tensor in found.values()}
    if "U32" in dtypes:
        return "MLX, quantised" if renamed else "official names, quantised by MLX"
    if dtypes & {"F8_E4M3", "I8"}:
        return "official, FP8 and FP4"
    width = "F32" if dtypes <= {"F32", "I64", "I32"} else "16-bit"
    return f"{'MLX' if renamed else 'official'} names, {width} floats"


def _fingerprint(raw: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.blake2b(json.dumps(raw, sort_keys=True).encode(), digest_size=8)
    for name in sorted(tensors):
        digest.update(f"{name} {tensors[name]}\n".encode())
    return digest.hexdigest()
