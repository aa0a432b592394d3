"""Arrays of a checkpoint, in the containers a model asks for: `CheckpointWeights` is `linear.Weights` of files.

Official FP8 and FP4 become mxfp8 and mxfp4 by their bytes; nothing is decoded unless `expand` asks for float32. Every
array comes back evaluated, so that it may cross threads. Memory: what is asked for, and while it is being read once
more the same (a bank of experts is stacked as it is read, one projection of one layer at a time).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sparkwright.core.errors import ModelError, did_you_mean
from sparkwright.plugins.deepseek_v4 import formats
from sparkwright.plugins.deepseek_v4.checkpoint import Checkpoint
from sparkwright.plugins.deepseek_v4.contract import Stored
from sparkwright.plugins.deepseek_v4.formats import Form
from sparkwright.plugins.deepseek_v4.headers import Tensor, read_into
from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear, Mode, dtype_of
from sparkwright.plugins.deepseek_v4.memory import needed, present

# numpy has neither BF16 nor the 8-bit floats: they travel as their bits.
NUMPY: Mapping[str, type] = {
    "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "I8": np.uint8, "U8": np.uint8,
    "BF16": np.uint16, "F16": np.float16, "F32": np.float32,
    "U32": np.uint32, "I32": np.int32, "I64": np.int64,
}  # fmt: skip


class CheckpointWeights:
    """`Weights` of a checkpoint, by official names.

    expand: matrices become float32. device: "cpu", "metal" or "cuda"; fixes the activations' dtype.
    progress(bytes): told after each array how many bytes of files have been read so far.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        expand: bool = False,
        device: str = "cpu",
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.expand = expand
        self._device = device
        self._progress = progress
        self._read = 0

    @property
    def activation(self) -> str:
        if self.expand or self._device == "cpu":
            return "float32"
        forms = {one.form.name for one in self.checkpoint.stored.values() if one.form is not None}
        return "float32" if forms == {"float32"} else "bfloat16"

    def linear(self, name: str) -> Linear:
        return self._linear(self._stored(name, "matrix"))

    def array(self, name: str, dtype: str) -> mx.array:
        stem = name.removesuffix(".weight")
        if name not in self.checkpoint.stored and stem in self.checkpoint.stored:
            stored = self._stored(stem, "matrix")
            made = _whole(stored) if _packed(stored) else _parts(stored)["weight"]
        else:
            stored = self._stored(name, "plain")
            made = _array(stored.parts[""][0])
        made = made.astype(dtype_of(dtype))
        self._done(stored, made)
        return made

    def experts(self, prefix: str) -> ExpertBank:
        w1, w3, w2 = (self._linear(self._stored(f"{prefix}.experts.{which}", "bank")) for which in ("w1", "w3", "w2"))
        return ExpertBank(w1=w1, w3=w3, w2=w2)

    def _stored(self, name: str, kind: str) -> Stored:
        stored = self.checkpoint.stored.get(name)
        if stored is None or stored.parameter.kind != kind:
            near = did_you_mean(name, self.checkpoint.stored)
            raise ModelError(f"{self.checkpoint.path}: holds no {kind} '{name}'{near}")
        return stored

    def _linear(self, stored: Stored) -> Linear:
        assert stored.form is not None
        parts = {"weight": _whole(stored)} if self.expand else _parts(stored)
        self._done(stored, *parts.values())
        made = formats.in_memory(stored.form)
        if self.expand or made.kind == "float":
            return Linear(parts["weight"])
        mode: Mode = "affine" if made.kind == "affine" else "mxfp8" if made is formats.MXFP8 else "mxfp4"
        return Linear(**parts, mode=mode, bits=made.bits, group_size=made.group)

    def _done(self, stored: Stored, *arrays: mx.array) -> None:
        mx.eval(arrays)
        self._read += stored.nbytes
        if self._progress is not None:
            self._progress(self._read)


def should_expand(option: str, checkpoint: Checkpoint, device: str) -> bool:
    """The option "on", "off" or "auto": auto expands on the CPU, whose packed matmul is slow, where half the memory
    that is present suffices for float32."""
    if option != "auto":
        return option == "on"
    there = present(device)
    return device == "cpu" and (there is None or needed(checkpoint.stored.values(), expand=True).peak <= there // 2)


# --------------------------------------------------------------------------------------------------------------
# From files
# --------------------------------------------------------------------------------------------------------------


def _packed(stored: Stored) -> bool:
    return stored.form is not None and stored.form.kind != "float"


def _numpy(tensor: Tensor, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """The payload as numpy sees it (BF16 and 8-bit floats as bits), into `out` where it is given."""
    array: NDArray[Any] = np.empty(tensor.shape, NUMPY[tensor.dtype]) if out is None else out
    if tensor.nbytes:
        read_into(tensor, array.reshape(-1).view(np.uint8).data)
    return array


def _mlx(array: NDArray[Any], dtype: str) -> mx.array:
    made = mx.array(array)
    return made.view(mx.bfloat16) if dtype == "BF16" else made


def _array(tensor: Tensor) -> mx.array:
    if tensor.dtype == "I64":  # token and expert ids: 32 bits hold them
        return _mlx(_numpy(tensor).astype(np.int32), "I32")
    return _mlx(_numpy(tensor), tensor.dtype)


def _parts(stored: Stored) -> dict[str, mx.array]:
    """weight, and scales and biases where the form has them, in the form the matrix has in memory."""
    form, parameter = stored.form, stored.parameter
    assert form is not None
    parts: dict[str, mx.array] = {}
    for suffix, tensors in stored.parts.items():
        array = _stack(tensors) if len(tensors) > 1 else _numpy(tensors[0])
        dtype = tensors[0].dtype
        if form.kind == "fp8" and suffix == "scale":
            array = _spread(array, *parameter.matrix)
        if form.kind in ("fp8", "fp4") and suffix == "weight":
            array = array.view(np.uint32)
        # wo_a may be stored cut into groups: it is handed out whole, [groups * rank, in].
        shape = (*parameter.shape[:-1], array.shape[-1])
        parts["scales" if suffix == "scale" else suffix] = _mlx(array.reshape(shape), dtype)
        del array
    return parts


def _stack(tensors: tuple[Tensor, ...]) -> NDArray[Any]:
    """[E, ...], each expert read straight into its place."""
    stacked: NDArray[Any] = np.empty((len(tensors), *tensors[0].shape), NUMPY[tensors[0].dtype])
    for place, tensor in zip(stacked, tensors, strict=True):
        _numpy(tensor, place)
    return stacked


def _spread(scale: NDArray[np.uint8], rows: int, columns: int) -> NDArray[np.uint8]:
    if scale.ndim == 2:
        return formats.spread(scale, rows, columns)
    return np.stack([formats.spread(one, rows, columns) for one in scale])


def _whole(stored: Stored) -> mx.array:
    """The matrix, or the bank, in float32, decoded one expert at a time."""
    parameter = stored.parameter
    if parameter.kind != "bank":
        return mx.array(_decoded_one(stored))
    out = np.empty(parameter.shape, np.float32)
    stacked = {suffix: _numpy(tensors[0]) for suffix, tensors in stored.parts.items()} if stored.stacked else None
    for e, place in enumerate(out):
        place[...] = _decoded_one(stored, e, stacked)
    return mx.array(out)


def _decoded_one(
    stored: Stored, expert: int = 0, stacked: Mapping[str, NDArray[Any]] | None = None
) -> NDArray[np.float32]:
    """The matrix, or one expert's of a bank (`stacked`: its parts, if they have been read), in float32."""
    parameter, form = stored.parameter, stored.form
    assert form is not None
    dtypes = {suffix: tensors[0].dtype for suffix, tensors in stored.parts.items()}
    if stored.stacked:
        stacked = stacked or {suffix: _numpy(tensors[0]) for suffix, tensors in stored.parts.items()}
        parts = {suffix: array[expert] for suffix, array in stacked.items()}
    else:
        parts = {suffix: _numpy(tensors[expert]) for suffix, tensors in stored.parts.items()}
    return decoded(form, parts, dtypes).reshape(parameter.matrix if parameter.kind == "bank" else parameter.shape)


class Numbers:
    """A checkpoint's tensors as numbers, float64 (ids: integers), by official name; an expert by its number.

    Read and decoded when they are asked for, and not kept: what the definition runs on, whatever the model made of it.
    Only a layer's stacked experts stay, as they are stored, while that layer's are asked for one by one.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._banks: dict[str, Mapping[str, NDArray[Any]]] = {}

    def _stacked(self, bank: str, stored: Stored) -> Mapping[str, NDArray[Any]] | None:
        """The parts of a bank that lies in one array, read once."""
        if not stored.stacked:
            return None
        if stored.parameter.name not in self._banks:
            self._banks = {name: parts for name, parts in self._banks.items() if name.startswith(bank)}
            self._banks[stored.parameter.name] = {s: _numpy(tensors[0]) for s, tensors in stored.parts.items()}
        return self._banks[stored.parameter.name]

    def __getitem__(self, name: str, /) -> NDArray[Any]:
        stem = name.removesuffix(".weight")
        module, _, which = stem.rpartition(".")
        bank, _, expert = module.rpartition(".")
        if bank.endswith(".experts") and expert.isdecimal():
            stored = self.checkpoint.stored[f"{bank}.{which}"]
            return _decoded_one(stored, int(expert), self._stacked(f"{bank}.", stored)).astype(np.float64)
        if (matrix := self.checkpoint.stored.get(stem)) is not None and matrix.parameter.kind == "matrix":
            return _decoded_one(matrix).astype(np.float64)
        (tensor,) = self.checkpoint.stored[name].parts[""]
        array = _numpy(tensor)
        return array if tensor.dtype in ("I64", "I32") else widened(array, tensor.dtype).astype(np.float64)


def decoded(form: Form, parts: Mapping[str, NDArray[Any]], dtypes: Mapping[str, str]) -> NDArray[np.float32]:
    if form.kind == "affine":
        with mx.stream(mx.cpu):  # the same values whatever device the model runs on
            scales, biases = (_mlx(parts[s], dtypes[s]).astype(mx.float32) for s in ("scales", "biases"))
            weight = mx.array(parts["weight"])
            made = mx.dequantize(weight, scales, biases, group_size=form.group, bits=form.bits)
            return np.array(made)
    if form.kind == "float":
        return widened(parts["weight"], dtypes["weight"])
    return formats.values(form, parts)


def widened(array: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """BF16 (as bits), F16 or F32 in float32."""
    if dtype == "BF16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)
