"""A dense drafter's tensors, checked against what its config announces before one of them is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4.headers import read_directory, some
from sparkwright.plugins.drafters.dspark.dense_config import DenseConfig, expected, lendable

Array = np.ndarray[Any, np.dtype[np.int32]]

HEADS = ("layers.", "markov_head.", "confidence_head.")
"""Namespaces in which a tensor that the config does not announce means that the config is another checkpoint's."""


def load(path: Path, config: DenseConfig, device: str) -> dict[str, mx.array]:
    """Every tensor, evaluated; float32 on the CPU, as stored elsewhere. What a target may lend can be missing.

    With a reduced vocabulary, "d2t" holds the target's token of each draftable one, int32 [draft_vocab]. ModelError for
    what is missing, misshapen, of another dtype, or not announced by the config.
    """
    headers, wanted = read_directory(path), expected(config)
    for name, shape in wanted.items():
        found = headers.get(name)
        if found is None and name in lendable(config):
            continue
        if found is None or tuple(found.shape) != shape:
            said = "is missing" if found is None else f"has shape {list(found.shape)}"
            raise ModelError(f"{path}: the drafter's tensor '{name}' {said}, expected shape {list(shape)}")
        if found.dtype not in ("BF16", "F16", "F32"):
            raise ModelError(f"{path}: the drafter's tensor '{name}' is {found.dtype}, expected BF16, F16 or F32")
    strangers = [name for name in headers if name.startswith(HEADS) and name not in wanted]
    if strangers:
        raise ModelError(
            f"{path}: holds {some(sorted(strangers))}, of which config.json says nothing (markov_head_type "
            f"'{config.head}', enable_confidence_head {str(config.confidence).lower()}, {config.layers} layers); "
            "use the config that belongs to this checkpoint"
        )
    names = {name for name in wanted if name in headers}
    if config.reduced:
        names |= {name for name in ("d2t", "t2d") if name in headers}
    arrays: dict[str, mx.array] = {}
    for file in sorted({headers[name].file for name in names}):
        stored = mx.load(str(file))
        assert isinstance(stored, dict)
        arrays |= {name: a for name, a in stored.items() if name in names}
    mapping: dict[str, mx.array] = {name: arrays.pop(name) for name in ("d2t", "t2d") if name in arrays}
    if device == "cpu":
        arrays = {name: a.astype(mx.float32) for name, a in arrays.items()}
    if config.reduced:
        arrays["d2t"] = mx.array(targets_of(path, config, mapping))
    mx.eval(list(arrays.values()))
    return arrays


def targets_of(path: Path, config: DenseConfig, mapping: dict[str, mx.array]) -> Array:
    """The target's token of each draftable one: stored as its distance from the draft's own number, in `d2t`."""
    said = f"{path}: the drafter's reduced vocabulary of {config.draft_vocab} of {config.vocab_size} tokens"
    offsets = mapping.get("d2t")
    if offsets is None or offsets.shape != (config.draft_vocab,) or not mx.issubdtype(offsets.dtype, mx.integer):
        found = "is missing" if offsets is None else f"is {_name(offsets)}"
        raise ModelError(f"{said} needs the tensor 'd2t', which {found}; expected integers [{config.draft_vocab}]")
    tokens = np.arange(config.draft_vocab) + np.array(offsets).astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= config.vocab_size or len(np.unique(tokens)) != len(tokens):
        raise ModelError(
            f"{said}: 'd2t' leads to tokens {tokens.min()}..{tokens.max()}, {len(np.unique(tokens))} different ones; "
            f"expected {config.draft_vocab} different ones of 0..{config.vocab_size - 1}"
        )
    marked = mapping.get("t2d")
    if marked is not None:
        named = np.flatnonzero(np.array(marked)) if marked.shape == (config.vocab_size,) else np.zeros(0)
        if not np.array_equal(named, np.sort(tokens)):
            raise ModelError(
                f"{said}: 't2d' {list(marked.shape)} marks {len(named)} tokens and they are not the {len(tokens)} that "
                "'d2t' leads to; one of the two is another vocabulary's"
            )
    return tokens.astype(np.int32)


def _name(array: mx.array) -> str:
    return f"{str(array.dtype).removeprefix('mlx.core.')} {list(array.shape)}"
