"""A checkpoint rewritten for MLX: experts and projections in the forms asked for, in mlx-lm's and mlx-vlm's names.

Bounded: rows are read, converted and written a slice at a time (`SLICE` values; a few hundred MiB in all), whatever the
shards' sizes. Resumable: a shard is written beside its final name, flushed and then renamed, so that a name that is
there stands for a whole shard, and a rerun goes on after the last one. Atomic: config.json comes last; without it the
directory is no model. The same source and recipe give the same bytes, interrupted or not.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sparkwright.core.errors import ModelError, OutputError
from sparkwright.plugins.deepseek_v4 import formats, names
from sparkwright.plugins.deepseek_v4.checkpoint import CONFIG, Checkpoint, open_checkpoint
from sparkwright.plugins.deepseek_v4.contract import Stored
from sparkwright.plugins.deepseek_v4.formats import FP8_BLOCK, Form, in_memory
from sparkwright.plugins.deepseek_v4.headers import INDEX, Tensor, read_file, read_into, read_json, some
from sparkwright.plugins.deepseek_v4.memory import GIB
from sparkwright.plugins.deepseek_v4.recipe import Move, Recipe, Shard, plan
from sparkwright.plugins.deepseek_v4.weights import NUMPY, widened

SLICE = 1 << 23
"""Values converted at once: 32 MiB in float32."""
STATE = ".conversion.json"
"""Marks a directory as ours while a conversion is unfinished."""
SIDECARS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
            "chat_template.jinja", "LICENSE", "LICENSE.txt")  # fmt: skip

Progress = Callable[[str, int, int], None]


def convert(source: Path, destination: Path, recipe: Recipe, progress: Progress | None = None) -> dict[str, Any]:
    """Writes the conversion of `source` into `destination` (new, empty, or begun by an interrupted run).

    progress("convert", bytes done, bytes in all). Returns what was done, as plain data. ModelError for a source that
    cannot be converted; OutputError for a destination that cannot take it.
    """
    checkpoint = open_checkpoint(source)
    shards = plan(checkpoint, recipe)
    total = sum(shard.size for shard in shards)
    report = progress or (lambda what, done, total: None)
    state = {"source": _identity(checkpoint), "recipe": attrs.asdict(recipe)}
    with _destination(source, destination, state):
        done = [shard for shard in shards if _finished(destination / shard.file, shard)]
        _refuse_full_disk(destination, total - sum(shard.size for shard in done))
        written = sum(shard.size for shard in done)
        for shard in shards:
            report("convert", written, total)
            if shard not in done:
                for grown in _write_shard(destination / shard.file, shard):
                    report("convert", written + grown, total)
                written += shard.size
                mx.clear_cache()
        report("convert", total, total)
        _finish(checkpoint, destination, shards)
    return {
        "source": str(source),
        "destination": str(destination),
        "recipe": attrs.asdict(recipe),
        "shards": len(shards),
        "resumed_after": len(done),
        "source_bytes": checkpoint.nbytes,
        "bytes": sum(piece.nbytes for shard in shards for piece in shard.pieces),
        "drafter_stages": checkpoint.stages,
    }


# --------------------------------------------------------------------------------------------------------------
# The destination
# --------------------------------------------------------------------------------------------------------------


def _identity(checkpoint: Checkpoint) -> dict[str, Any]:
    files = {file.name: file.stat() for file in checkpoint.files}
    stats = {name: [stat.st_size, stat.st_mtime_ns] for name, stat in files.items()}
    return {"fingerprint": checkpoint.fingerprint, "files": stats}


@contextmanager
def _destination(source: Path, destination: Path, state: Mapping[str, Any]) -> Iterator[None]:
    """Holds the directory for this conversion; refuses one that holds anything else."""
    try:
        destination.mkdir(parents=True, exist_ok=True)
        if destination.resolve() == source.resolve():
            raise OutputError(f"{destination}: source and destination are the same directory")
        marker = destination / STATE
        if not marker.exists() and (others := sorted(path.name for path in destination.iterdir())):
            raise OutputError(f"{destination}: not empty (it holds {some(others, 3)}); name a new directory")
        with marker.open("a+") as file:
            _lock(file.fileno(), destination)
            file.seek(0)
            begun = file.read()
            if not begun:
                file.write(json.dumps(state))
                file.flush()
            elif (before := _state(begun)) != state:
                what = "another recipe" if before.get("source") == state["source"] else "another source"
                raise OutputError(
                    f"{destination}: holds an unfinished conversion of {what} ({before.get('recipe')}); "
                    "finish that one, or remove the directory"
                )
            yield
            marker.unlink()
    except OSError as error:
        raise OutputError(f"{destination}: cannot be written ({error.strerror or error})") from None


def _state(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _lock(descriptor: int, destination: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise OutputError(f"{destination}: another conversion is writing here") from None


def _refuse_full_disk(destination: Path, needed: int) -> None:
    free = shutil.disk_usage(destination).free
    if needed > free:
        raise OutputError(
            f"{destination}: {needed / GIB:.2f} GiB are still to be written and {free / GIB:.2f} GiB are free, "
            f"{(needed - free) / GIB:.2f} GiB too little"
        )


def _finished(path: Path, shard: Shard) -> bool:
    if not path.exists():
        return False
    try:
        found = read_file(path)
    except ModelError:
        return False
    return {name: (t.dtype, t.shape) for name, t in found.items()} == {p.name: (p.dtype, p.shape) for p in shard.pieces}


def _finish(checkpoint: Checkpoint, destination: Path, shards: list[Shard]) -> None:
    """Sidecars, index and, last, config.json: what makes the directory a model."""
    for name in SIDECARS:
        if (checkpoint.path / name).is_file():
            _write_small(destination / name, (checkpoint.path / name).read_bytes())
    weight_map = {piece.name: shard.file for shard in shards for piece in shard.pieces}
    total = sum(piece.nbytes for shard in shards for piece in shard.pieces)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    _write_small(destination / INDEX, json.dumps(index, indent=1).encode())
    raw = {key: value for key, value in read_json(checkpoint.path / CONFIG).items() if key != "quantization_config"}
    table: dict[str, Any] = {"group_size": 64, "bits": 8, "mode": "affine"}
    for shard in shards:
        for move in shard.moves:
            if move.form is not None and move.form.kind != "float":
                module = names.mlx(f"{move.stored.parameter.name}.weight").removesuffix(".weight")
                table[module] = move.form.config()
    if len(table) > 3:
        raw["quantization"] = raw["quantization_config"] = table
    _write_small(destination / CONFIG, json.dumps(raw, indent=1).encode())


def _write_small(path: Path, content: bytes) -> None:
    with _replacing(path) as file:
        file.write(content)


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when it is whole and on the disk."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


# --------------------------------------------------------------------------------------------------------------
# Shards
# --------------------------------------------------------------------------------------------------------------


def _write_shard(path: Path, shard: Shard) -> Iterator[int]:
    """Yields the bytes written so far; the file has its name once this has run to its end."""
    with _replacing(path) as file:
        file.write(shard.header)
        file.truncate(shard.size)
        written = len(shard.header)
        for move in shard.moves:
            for suffix, row, block in _blocks(move):
                piece = move.pieces[suffix]
                rows = int(np.prod(piece.shape[:-1])) if len(piece.shape) > 1 else 1
                file.seek(piece.start + row * (piece.nbytes // rows))
                file.write(np.ascontiguousarray(block).data)
                written += block.nbytes
                yield written


def _blocks(move: Move) -> Iterator[tuple[str, int, NDArray[Any]]]:
    """(suffix, first row counted over all experts, rows) of everything a parameter becomes."""
    stored, form = move.stored, move.form
    if form is None:
        (tensor,) = stored.parts[""]
        array: NDArray[Any] = np.empty(stored.parameter.shape, NUMPY[tensor.dtype])
        read_into(tensor, array.reshape(-1).view(np.uint8).data)
        yield "", 0, array.astype(np.int32) if tensor.dtype == "I64" else array
        return
    rows, columns = stored.parameter.matrix
    step = max(SLICE // columns // FP8_BLOCK, 1) * FP8_BLOCK  # whole scale blocks
    for expert in range(stored.parameter.copies):
        for first in range(0, rows, step):
            parts = _rows(stored, expert, first, min(first + step, rows))
            for suffix, block in _converted(stored, parts, form).items():
                yield suffix, expert * rows + first, block


def _rows(stored: Stored, expert: int, first: int, last: int) -> dict[str, NDArray[Any]]:
    """Rows first..last of each part of one expert's matrix, as numpy sees them."""
    assert stored.form is not None
    rows = stored.parameter.matrix[0]
    parts = {}
    for suffix, tensors in stored.parts.items():
        tensor, place = (tensors[0], expert) if len(tensors) == 1 else (tensors[expert], 0)
        block = FP8_BLOCK if (stored.form.kind, suffix) == ("fp8", "scale") else 1
        held = -(-rows // block)  # rows of this part in each matrix
        a, b = first // block, -(-last // block)
        parts[suffix] = _read_rows(tensor, place * held + a, b - a)
    return parts


def _read_rows(tensor: Tensor, first: int, count: int) -> NDArray[Any]:
    array: NDArray[Any] = np.empty((count, tensor.shape[-1]), NUMPY[tensor.dtype])
    if array.nbytes:
        read_into(tensor, array.reshape(-1).view(np.uint8).data, first * array.strides[0])
    return array


def _converted(stored: Stored, parts: Mapping[str, NDArray[Any]], form: Form) -> dict[str, NDArray[Any]]:
    """The rows in the form they get; moved where that is the form they have in memory."""
    assert stored.form is not None
    here = in_memory(stored.form)
    if stored.form.kind in ("fp8", "fp4"):
        move = formats.fp8_to_mx if stored.form.kind == "fp8" else formats.fp4_to_mx
        weight, scales = move(parts["weight"], parts["scale"])
        parts = {"weight": weight, "scales": scales}
    if form == here:
        return dict(parts)
    # bfloat16 holds every FP8 and FP4 value times a power of two exactly; scales come out in it, as MLX's tools do.
    if here.kind == "mx":
        codes, powers = mx.array(parts["weight"]), mx.array(parts["scales"])
        values = mx.dequantize(codes, powers, group_size=here.group, bits=here.bits, mode=here.name, dtype=mx.bfloat16)
    else:
        values = mx.array(widened(parts["weight"], stored.parts["weight"][0].dtype)).astype(mx.bfloat16)
    if form.kind == "float":
        return {"weight": np.array(values.view(mx.uint16))}
    made = mx.quantize(values, group_size=form.group, bits=form.bits, mode=form.name if form.kind == "mx" else "affine")
    out = {}
    for suffix, array in zip(("weight", "scales", "biases"), made, strict=False):
        out[suffix] = np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
    return out
