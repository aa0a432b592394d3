"""Safetensors headers: what is damaged is refused in one sentence, before memory is taken for it."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deepseek_v4_checkpoint import tinyq

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4.headers import INDEX, read_directory, read_file, read_into

A = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
B = {"dtype": "U8", "shape": [3], "data_offsets": [16, 19]}


SECOND = "model-00002-of-00002.safetensors"


def written(path: Path, header: object, payload: int = 19, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(payload))
    return path


def test_a_sound_file_is_read_to_the_byte(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    tinyq.save_file(path, {"a": ("F32", values), "b": ("U8", np.arange(5, dtype=np.uint8)), "s": ("F32", values[0, 0])})
    tensors = read_file(path)
    assert {name: (t.dtype, t.shape) for name, t in tensors.items()} == {
        "a": ("F32", (3, 4)),
        "b": ("U8", (5,)),
        "s": ("F32", ()),
    }
    buffer = np.empty(8, np.float32)
    read_into(tensors["a"], buffer.data, offset=16)  # the last two rows
    assert np.array_equal(buffer.reshape(2, 4), values[1:])
    with pytest.raises(ValueError, match="48 bytes, 52 were asked for"):
        read_into(tensors["a"], np.empty(9, np.float32).data, offset=16)


@pytest.mark.parametrize(
    ("header", "payload", "length", "message"),
    [
        ({"a": A, "b": B}, 19, 1 << 40, "header claims 1,099,511,627,776 bytes and the file has"),
        ({"a": A, "b": B}, 19, (1 << 64) - 1, "header claims"),
        ({"a": A, "b": B}, 18, None, "tensor 'b' ends at byte .* and the file at .*truncated"),
        ({"a": A, "b": B}, 20, None, "last 1 bytes belong to no tensor"),
        ({"a": A, "b": B | {"data_offsets": [15, 18]}}, 19, None, "tensors 'a' and 'b' overlap"),
        ({"a": A, "b": B | {"data_offsets": [17, 20]}}, 20, None, "1 bytes before tensor 'b' belong to no tensor"),
        ({"a": A | {"data_offsets": [16, 0]}}, 19, None, "'a': its offsets span -16 bytes; expected 16"),
        ({"a": A | {"shape": [1 << 39, 1 << 39]}}, 19, None, "'a': its offsets span 16 bytes; expected 1,208,9"),
        ({"a": A | {"shape": [1 << 60]}}, 19, None, "'a': shape .* is absurd"),
        ({"a": A | {"shape": [-1, 4]}}, 19, None, "'a': shape .* is absurd"),
        ({"a": A | {"shape": [2.0, 2]}}, 19, None, "'a': shape .* is absurd"),
        ({"a": A | {"shape": [True, 4]}}, 19, None, "'a': shape .* is absurd"),
        ({"a": A | {"shape": [1] * 9}}, 19, None, "'a': shape .* is absurd"),
        ({"a": A | {"dtype": "F7"}}, 19, None, "'a': dtype 'F7' is unknown"),
        ({"a": A | {"data_offsets": [0]}}, 19, None, "'a': data_offsets .* are absurd"),
        ({"a": {"dtype": "F32"}}, 19, None, "'a': its header entry is incomplete"),
        ({"a": 3}, 19, None, "'a': its header entry is incomplete"),
        ([1], 19, None, "found a JSON list"),
        (b"{" * 100_000, 0, None, "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, 0, None, "not valid JSON"),
        (b"\xff\xfe", 0, None, "not valid JSON"),
        (b'{"a": {"dtype": "U8", "shape": [' + b"9" * 5000 + b"]}}", 0, None, "not valid JSON"),
        (b'{"a": 1, "a": 2}', 0, None, "the name 'a' appears twice"),
    ],
)
def test_a_damaged_file_is_refused_in_one_sentence(
    tmp_path: Path, header: object, payload: int, length: int | None, message: str
) -> None:
    path = written(tmp_path / "m.safetensors", header, payload, length)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=message) as error:
            read_file(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    assert peak < 8 << 20  # nothing of what the header claims was taken


def test_files_that_are_no_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    for name, message in (("absent", "no such file"), (".", "not a regular file"), ("short", "too few")):
        with pytest.raises(ModelError, match=message):
            read_file(tmp_path / name)


def broken_index(change: Callable[[dict[str, Any], Path], None], path: Path) -> None:
    raw, _ = tinyq.make(drafter=False)
    some = dict(list(raw.items())[:9])
    tinyq.save(path, some)
    index = json.loads((path / INDEX).read_text())
    change(index, path)
    (path / INDEX).write_text(json.dumps(index))


def first_of(index: dict[str, Any]) -> str:
    return str(next(iter(index["weight_map"])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i, p: min(p.glob("*.safetensors")).unlink(), "names 1 of 2 shards that are not there: 'model-00001"),
        (lambda i, p: i["weight_map"].update(x="model-00001-of-00002.safetensors"), "tensors that no shard holds: 'x'"),
        (lambda i, p: i["weight_map"].pop(first_of(i)), "holds tensor 'embed.weight' and .* does not name it"),
        (lambda i, p: i["weight_map"].update({first_of(i): SECOND}), "puts it in 'model-00002"),
        (lambda i, p: i["weight_map"].update({first_of(i): "../m.safetensors"}), "expected the name of a .safe"),
        (lambda i, p: i["weight_map"].update({first_of(i): "/etc/passwd"}), "expected the name of a .safetensors file"),
        (lambda i, p: i["weight_map"].update({first_of(i): 3}), "expected the name of a .safetensors file"),
        (lambda i, p: i.pop("weight_map"), "holds no 'weight_map'"),
        (lambda i, p: i.update(weight_map={}), "holds no 'weight_map'"),
    ],
)  # fmt: skip
def test_an_index_that_does_not_fit_its_shards_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any], Path], None], message: str
) -> None:
    broken_index(change, tmp_path)
    with pytest.raises(ModelError, match=message):
        read_directory(tmp_path)


def test_a_truncated_shard_is_refused_by_name(tmp_path: Path) -> None:
    broken_index(lambda i, p: None, tmp_path)
    shard = tmp_path / SECOND
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"model-00002.*truncated"):
        read_directory(tmp_path)


def test_a_directory_without_index_is_all_of_its_files(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds no \*.safetensors file"):
        read_directory(tmp_path)
    with pytest.raises(ModelError, match="no such directory"):
        read_directory(tmp_path / "absent")
    tinyq.save_file(tmp_path / "a.safetensors", {"a": ("U8", np.zeros(3, np.uint8))})
    tinyq.save_file(tmp_path / "b.safetensors", {"b": ("U8", np.zeros(3, np.uint8))})
    assert sorted(read_directory(tmp_path)) == ["a", "b"]
    tinyq.save_file(tmp_path / "c.safetensors", {"a": ("U8", np.zeros(3, np.uint8))})
    with pytest.raises(ModelError, match="tensor 'a' is in two files"):
        read_directory(tmp_path)


def test_no_bytes_whatever_give_anything_but_a_model_error(tmp_path: Path) -> None:
    """1,000 mutations of a sound file: bytes changed, cut, doubled, numbers replaced; each is read or refused."""
    path = tmp_path / "m.safetensors"
    tinyq.save_file(path, {"a": ("F32", np.zeros((2, 2), np.float32)), "b": ("U8", np.zeros(3, np.uint8))})
    sound, rng, refused = path.read_bytes(), random.Random(7), 0
    for _ in range(1000):
        data = bytearray(sound)
        match rng.randrange(4):
            case 0:
                for _ in range(rng.randint(1, 4)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                at = rng.randrange(len(data))
                data[at:at] = data[rng.randrange(len(data)) :][: rng.randint(1, 30)]
            case _:
                digits = [i for i in range(8, len(data)) if chr(data[i]).isdigit()]
                at = rng.choice(digits)
                data[at : at + 1] = rng.choice(
                    [b"-1", b"1e9", b"99999999999999999999", b"null", b'"x"', b"[0]", b"NaN"]
                )
        path.write_bytes(data)
        try:
            for tensor in read_file(path).values():
                assert tensor.start + tensor.nbytes <= len(data)
        except ModelError:
            refused += 1
    assert 500 < refused < 1000
