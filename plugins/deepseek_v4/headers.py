"""Safetensors headers: which tensors a checkpoint holds, checked before a byte of payload is read.

Pure Python; knows the file format and nothing of models. Every size is compared with the file before memory is taken
for it, so that a damaged or hostile file costs one clear `ModelError` and nothing else. `read_into` is the only place
that reads payloads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core.errors import ModelError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

LARGEST_HEADER = 256 << 20
"""Bytes of JSON we are willing to parse; the largest real header (35,000 tensors) is under 5 MB."""
LARGEST_JSON = 64 << 20
"""Bytes of a config or index we are willing to parse."""
MOST_AXES = 8
LARGEST_AXIS = 1 << 40

ITEM_BITS: Mapping[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16,
    "U32": 32, "I32": 32, "F32": 32,
    "U64": 64, "I64": 64, "F64": 64,
}  # fmt: skip


@attrs.frozen
class Tensor:
    """One tensor of a file: where its payload lies (`start` counts from the beginning of the file)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def some(names: Iterable[str], most: int = 5) -> str:
    """The first few names, quoted, and how many more there are."""
    listed = list(names)
    text = ", ".join(f"'{name}'" for name in listed[:most])
    return text + (f" and {len(listed) - most} more" if len(listed) > most else "")


# --------------------------------------------------------------------------------------------------------------
# JSON, guarded
# --------------------------------------------------------------------------------------------------------------


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKeyError(key)
        found[key] = value
    return found


class _DuplicateKeyError(ValueError):
    pass


def _parse(raw: bytes, what: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except _DuplicateKeyError as error:
        raise ModelError(f"{what}: the name '{error}' appears twice; the file is damaged") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{what}: not valid JSON ({error}); the file is damaged") from None
    if not isinstance(value, dict):
        raise ModelError(f"{what}: found a JSON {type(value).__name__}, expected an object")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a small file. ModelError if it is missing, too large, damaged or not an object."""
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON:
            raise ModelError(f"{path}: {size:,} bytes of JSON; nothing over {LARGEST_JSON:,} is read")
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    return _parse(raw, str(path))


# --------------------------------------------------------------------------------------------------------------
# One file
# --------------------------------------------------------------------------------------------------------------


def read_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file. ModelError names the file and the first thing wrong with it."""
    try:
        if not path.is_file():
            raise ModelError(f"{path}: no such file" if not path.exists() else f"{path}: not a regular file")
        size = path.stat().st_size
        with path.open("rb") as file:
            if size < 8:
                raise ModelError(f"{path}: {size} bytes are too few for a safetensors file; it is truncated")
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise ModelError(
                    f"{path}: its header claims {length:,} bytes and the file has {size - 8:,} after the length; "
                    "it is truncated, or not a safetensors file"
                )
            if length > LARGEST_HEADER:
                raise ModelError(f"{path}: its header claims {length:,} bytes; nothing over {LARGEST_HEADER:,} is read")
            raw = file.read(length)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    if len(raw) != length:
        raise ModelError(f"{path}: {len(raw):,} bytes of header could be read, {length:,} were announced")

    header = _parse(raw, f"{path}: header")
    header.pop("__metadata__", None)
    tensors = {name: _entry(path, name, entry, base=8 + length) for name, entry in header.items()}
    _check_layout(path, tensors.values(), begin=8 + length, size=size)
    return tensors


def _entry(path: Path, name: str, entry: Any, base: int) -> Tensor:
    def wrong(found: str, expected: str) -> ModelError:
        return ModelError(f"{path}: tensor '{name}': {found}; expected {expected}")

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise wrong("its header entry is incomplete", "dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BITS:
        raise wrong(f"dtype {str(dtype)[:40]!r} is unknown", "one of " + ", ".join(ITEM_BITS))
    if not isinstance(shape, list) or len(shape) > MOST_AXES or not all(_is_size(axis) for axis in shape):
        raise wrong(f"shape {str(shape)[:80]} is absurd", f"at most {MOST_AXES} axes of 0 to {LARGEST_AXIS:,}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(at) for at in offsets):
        raise wrong(f"data_offsets {str(offsets)[:80]} are absurd", "two byte positions")
    start, end = offsets
    nbytes = math.prod(shape) * ITEM_BITS[dtype] // 8
    if end - start != nbytes:
        raise wrong(f"its offsets span {end - start:,} bytes", f"{nbytes:,} for {dtype} {shape}")
    return Tensor(name, dtype, tuple(shape), path, base + start, nbytes)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST_AXIS


def _check_layout(path: Path, tensors: Iterable[Tensor], begin: int, size: int) -> None:
    """Payloads follow one another without gap or overlap and end with the file, as the format demands."""
    at, before = begin, ""
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.nbytes)):
        if tensor.start + tensor.nbytes > size:
            raise ModelError(
                f"{path}: tensor '{tensor.name}' ends at byte {tensor.start + tensor.nbytes:,} and the file at "
                f"{size:,}; the file is truncated: fetch it again"
            )
        if tensor.start < at:
            raise ModelError(f"{path}: tensors '{before}' and '{tensor.name}' overlap; the file is damaged")
        if tensor.start > at:
            raise ModelError(f"{path}: {tensor.start - at:,} bytes before tensor '{tensor.name}' belong to no tensor")
        at, before = tensor.start + tensor.nbytes, tensor.name
    if at != size:
        raise ModelError(f"{path}: the last {size - at:,} bytes belong to no tensor; the file is damaged")


# --------------------------------------------------------------------------------------------------------------
# A directory
# --------------------------------------------------------------------------------------------------------------


def read_directory(path: Path) -> dict[str, Tensor]:
    """The tensors of a model directory: by its index, or its one file, or all of its files if it has no index."""
    if not path.is_dir():
        raise ModelError(
            f"{path}: {'not a directory' if path.exists() else 'no such directory'}; expected a model directory"
        )
    if (path / INDEX).exists():
        return _by_index(path)
    if (path / SINGLE).exists():
        return read_file(path / SINGLE)
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{path}: holds no *.safetensors file; expected {INDEX} with its shards, or {SINGLE}")
    return _join(read_file(file) for file in files)


def _by_index(path: Path) -> dict[str, Tensor]:
    index = path / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: holds no 'weight_map' object; expected tensor names with their files")
    for name, file in weight_map.items():
        # A shard is a plain name beside the index: anything else could read files that are not the model's.
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file:
            raise ModelError(
                f"{index}: tensor '{name}' is placed in {str(file)[:80]!r}; expected the name of a .safetensors file "
                "in the same directory"
            )
    shards = sorted(set(weight_map.values()))
    if missing := [shard for shard in shards if not (path / shard).exists()]:
        raise ModelError(
            f"{index}: names {len(missing)} of {len(shards)} shards that are not there: {some(missing)}; "
            "fetch them, or finish the download"
        )
    tensors = _join(read_file(path / shard) for shard in shards)
    if absent := [name for name in weight_map if name not in tensors]:
        raise ModelError(f"{index}: names tensors that no shard holds: {some(absent)}")
    for name, tensor in tensors.items():
        if (listed := weight_map.get(name)) != tensor.file.name:
            where = f"puts it in '{listed}'" if listed else "does not name it"
            raise ModelError(
                f"{tensor.file}: holds tensor '{name}' and {index.name} {where}; they do not belong together"
            )
    return tensors


def _join(files: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    joined: dict[str, Tensor] = {}
    for tensors in files:
        for name, tensor in tensors.items():
            if name in joined:
                raise ModelError(f"tensor '{name}' is in two files, {joined[name].file} and {tensor.file}")
            joined[name] = tensor
    return joined


# --------------------------------------------------------------------------------------------------------------
# Payloads
# --------------------------------------------------------------------------------------------------------------


def read_into(tensor: Tensor, buffer: memoryview, offset: int = 0) -> None:
    """Fill `buffer` (bytes, writable, contiguous) with the tensor's payload from byte `offset` of it on."""
    if offset + buffer.nbytes > tensor.nbytes:
        raise ValueError(f"tensor '{tensor.name}' has {tensor.nbytes} bytes, {offset + buffer.nbytes} were asked for")
    flat = buffer.cast("B")
    try:
        with tensor.file.open("rb", buffering=0) as file:
            file.seek(tensor.start + offset)
            done = 0
            while done < flat.nbytes:
                # One read gives at most 2^31 - 4096 bytes on Linux; ask for less than that on every system.
                count = file.readinto(flat[done : done + (1 << 30)])
                if not count:
                    raise ModelError(
                        f"{tensor.file}: ended inside tensor '{tensor.name}'; it was cut while it was open"
                    )
                done += count
    except OSError as error:
        raise ModelError(f"{tensor.file}: tensor '{tensor.name}' cannot be read ({error.strerror})") from None
