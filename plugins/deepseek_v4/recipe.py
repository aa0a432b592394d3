"""What a conversion will write: for each parameter its new form, and for each output shard its layout, byte by byte.

Decided from headers alone, before anything is written, so that every file's size is known and an interrupted run can
tell a finished shard from an unfinished one. Writing is `convert`'s side.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from sparkwright.core.errors import ConfigError, ModelError, did_you_mean
from sparkwright.plugins.deepseek_v4 import formats, names
from sparkwright.plugins.deepseek_v4.checkpoint import Checkpoint
from sparkwright.plugins.deepseek_v4.contract import Parameter, Stored
from sparkwright.plugins.deepseek_v4.formats import ITEM_BYTES, Form, in_memory

EXPERTS = ("mxfp4", "affine4", "affine3", "affine2")
DENSE = ("mxfp8", "affine8", "bf16")
AFFINE_GROUP = 64


@attrs.frozen
class Recipe:
    """experts: form of the routed experts. dense: form of what the release stores in FP8 (projections, shared experts).
    drafter_experts: as experts, for the drafter's; by default they are kept exact, because drafts pay for it directly.
    Everything else (embedding, head, routers, compressors, norms) is copied as it is."""

    experts: str = "mxfp4"
    dense: str = "mxfp8"
    drafter_experts: str = "mxfp4"

    def __attrs_post_init__(self) -> None:
        for option, value, known in (
            ("experts", self.experts, EXPERTS),
            ("dense", self.dense, DENSE),
            ("drafter-experts", self.drafter_experts, EXPERTS),
        ):
            if value not in known:
                raise ConfigError(f"--{option}: '{value}' is not one of {', '.join(known)}{did_you_mean(value, known)}")


@attrs.frozen(eq=False)
class Piece:
    """One tensor of an output file: `start` counts from the beginning of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        size = ITEM_BYTES[self.dtype]
        for axis in self.shape:
            size *= axis
        return size


@attrs.frozen(eq=False)
class Move:
    """A parameter on its way: how it is stored, the form it gets (None: plain), and its pieces by suffix."""

    stored: Stored
    form: Form | None
    pieces: Mapping[str, Piece]


@attrs.frozen(eq=False)
class Shard:
    """One output file: its first bytes (`header`), then the pieces of `moves` in the order of their starts."""

    file: str
    header: bytes
    moves: tuple[Move, ...]

    @property
    def pieces(self) -> list[Piece]:
        return sorted((piece for move in self.moves for piece in move.pieces.values()), key=lambda piece: piece.start)

    @property
    def size(self) -> int:
        return len(self.header) + sum(piece.nbytes for piece in self.pieces)


def plan(checkpoint: Checkpoint, recipe: Recipe) -> list[Shard]:
    """One shard for what belongs to no block, one for each layer, one for each drafter stage."""
    blocks: dict[str, list[Stored]] = {}
    for name, stored in checkpoint.stored.items():
        parts = name.split(".")
        blocks.setdefault(".".join(parts[:2]) if parts[0] in ("layers", "mtp") else "", []).append(stored)
    return [
        _shard(f"model-{i:05d}-of-{len(blocks):05d}.safetensors", stored, recipe)
        for i, stored in enumerate(blocks.values(), start=1)
    ]


def _shard(file: str, block: Iterable[Stored], recipe: Recipe) -> Shard:
    laid: list[tuple[Stored, Form | None, dict[str, tuple[str, tuple[int, ...]]]]] = []
    for stored in block:
        form = target_form(stored, recipe)
        laid.append((stored, form, _written(stored, form)))
    order = sorted(
        ((suffix, dtype, shape, stored) for stored, _, parts in laid for suffix, (dtype, shape) in parts.items()),
        key=lambda piece: (-ITEM_BYTES[piece[1]], _name(piece[3].parameter, piece[0])),  # wide items first: aligned
    )
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    placed: dict[tuple[str, str], Piece] = {}
    at = 0
    for suffix, dtype, shape, stored in order:
        name = _name(stored.parameter, suffix)
        piece = Piece(name, dtype, shape, at)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + piece.nbytes]}
        placed[stored.parameter.name, suffix] = piece
        at += piece.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    first = struct.pack("<Q", len(text)) + text
    moves = tuple(
        Move(stored, form, {s: _after(placed[stored.parameter.name, s], len(first)) for s in parts})
        for stored, form, parts in laid
    )
    return Shard(file, first, moves)


def _after(piece: Piece, first: int) -> Piece:
    return attrs.evolve(piece, start=piece.start + first)


def _name(parameter: Parameter, suffix: str) -> str:
    return names.mlx(f"{parameter.name}.{suffix}" if suffix else parameter.name)


def _written(stored: Stored, form: Form | None) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Suffix -> dtype and shape of what is written; banks are stacked."""
    parameter = stored.parameter
    if form is None:
        (tensor,) = stored.parts[""]
        return {"": ("I32" if tensor.dtype == "I64" else tensor.dtype, parameter.shape)}
    lead = parameter.shape[:-2]
    parts = form.parts(*parameter.matrix)
    if form == stored.form:  # moved as it is, its own dtypes included
        return {suffix: (stored.parts[suffix][0].dtype, (*lead, *shape)) for suffix, (_, shape) in parts.items()}
    return {suffix: (dtypes[0], (*lead, *shape)) for suffix, (dtypes, shape) in parts.items()}


def target_form(stored: Stored, recipe: Recipe) -> Form | None:
    """The form a parameter gets. ModelError where that would quantise something twice, or does not fit its width."""
    parameter, here = stored.parameter, stored.form
    if here is None:
        return None
    here = in_memory(here)
    if parameter.kind == "matrix" and parameter.written == "BF16":
        return here
    choice = recipe.dense
    if parameter.kind == "bank":
        choice = recipe.drafter_experts if parameter.name.startswith("mtp.") else recipe.experts
    form = _form(choice, parameter)
    if here.kind == "affine" and here.name == form.name:
        return here
    if here.kind == "affine":
        raise ModelError(
            f"tensor '{parameter.name}' is already quantised ({here.name}) and {form.name} was asked for; quantising "
            "twice loses what nothing brings back: convert from the release itself"
        )
    return form


def _form(choice: str, parameter: Parameter) -> Form:
    columns = parameter.matrix[1]
    fixed = {"mxfp4": formats.MXFP4, "mxfp8": formats.MXFP8, "bf16": formats.BFLOAT16}
    form = fixed.get(choice)
    if form is None:
        group = AFFINE_GROUP if columns % AFFINE_GROUP == 0 else formats.GROUP
        form = formats.affine(int(choice.removeprefix("affine")), group)
    if form.group and columns % form.group:
        raise ModelError(
            f"tensor '{parameter.name}' has {columns} columns; {form.name} needs a multiple of {form.group}"
        )
    return form
