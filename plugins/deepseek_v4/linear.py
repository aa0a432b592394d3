"""Weight containers of the family, and the protocol by which a model asks for them.

A `Linear` is a matrix in the form in which it is kept (dense or quantised), an `ExpertBank` the stacked matrices of a
layer's routed experts. They know their form and the plain MLX way to multiply with it; they know no checkpoint layout
(that is `Weights`' side) and choose no kernel (that is an op's side).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import attrs
import mlx.core as mx

from sparkwright.core.errors import ModelError

T = TypeVar("T")
Mode: TypeAlias = Literal["dense", "affine", "mxfp4", "mxfp8"]

_DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16, "int32": mx.int32}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

UPCAST_ROWS = 16384
"""A dense weight of another dtype than its input is converted in slices of this many outputs: a bounded temporary."""


def dtype_of(name: str) -> mx.Dtype:
    """The MLX dtype called "float32", "bfloat16", "float16" or "int32"."""
    return _DTYPES[name]


def dtype_name(dtype: mx.Dtype) -> str:
    return _NAMES[dtype]


@attrs.frozen(eq=False)
class Linear:
    """A matrix W [out, in] (leading axes allowed: [E, out, in]), used as y = x @ W^T.

    weight: dense: the matrix; else packed codes uint32 [..., out, in * bits / 32]
    scales: [..., out, in / group_size]: affine: floating; mxfp4, mxfp8: UE8M0 bytes, uint8
    biases: as scales, affine only
    """

    weight: mx.array
    scales: mx.array | None = None
    biases: mx.array | None = None
    mode: Mode = "dense"
    bits: int = 0
    group_size: int = 0

    @property
    def format(self) -> str:
        """What kernels are selected by: "float32", "bfloat16", "affine4", "mxfp4", "mxfp8", ..."""
        if self.mode == "dense":
            return dtype_name(self.weight.dtype)
        return f"affine{self.bits}" if self.mode == "affine" else self.mode

    @property
    def out_size(self) -> int:
        return int(self.weight.shape[-2])

    @property
    def in_size(self) -> int:
        last = int(self.weight.shape[-1])
        return last if self.mode == "dense" else last * 32 // self.bits

    @property
    def nbytes(self) -> int:
        """Bytes that one multiplication must read."""
        return sum(a.nbytes for a in (self.weight, self.scales, self.biases) if a is not None)

    def __call__(self, x: mx.array) -> mx.array:
        """x [..., in] -> [..., out] in x's dtype."""
        if self.scales is not None:
            return mx.quantized_matmul(
                x,
                self.weight,
                scales=self.scales,
                biases=self.biases,
                transpose=True,
                group_size=self.group_size,
                bits=self.bits,
                mode=self.mode,
            )
        if self.weight.dtype == x.dtype:
            return x @ self.weight.swapaxes(-1, -2)
        parts = [
            x @ self.weight[..., at : at + UPCAST_ROWS, :].astype(x.dtype).swapaxes(-1, -2)
            for at in range(0, self.out_size, UPCAST_ROWS)
        ]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)

    def split(self, groups: int) -> Linear:
        """The same matrix with its outputs cut into equal groups: [groups, out / groups, in] (`wo_a`)."""

        def cut(a: mx.array) -> mx.array:
            return a.reshape(groups, a.shape[0] // groups, a.shape[1])

        return attrs.evolve(
            self,
            weight=cut(self.weight),
            scales=None if self.scales is None else cut(self.scales),
            biases=None if self.biases is None else cut(self.biases),
        )

    def lookup(self, index: mx.array, dtype: str) -> mx.array:
        """Rows of the matrix as vectors (an embedding): index [r] -> [r, in] in this dtype."""
        rows = self.weight[index]
        if self.scales is None:
            return rows.astype(dtype_of(dtype))
        return mx.dequantize(
            rows,
            self.scales[index],
            None if self.biases is None else self.biases[index],
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        ).astype(dtype_of(dtype))

    def gather(self, x: mx.array, index: mx.array, sorted_indices: bool = False) -> mx.array:
        """Stacked matrices only: x [..., 1, in] by the experts `index` [...] -> [..., 1, out]."""
        if self.scales is not None:
            return mx.gather_qmm(
                x,
                self.weight,
                scales=self.scales,
                biases=self.biases,
                rhs_indices=index,
                transpose=True,
                group_size=self.group_size,
                bits=self.bits,
                mode=self.mode,
                sorted_indices=sorted_indices,
            )
        # Not told that indices are sorted: MLX 0.32 gives NaN on CUDA for sorted dense weights above 2 GiB.
        return mx.gather_mm(x, self.weight.swapaxes(-1, -2), rhs_indices=index)


@attrs.frozen(eq=False)
class ExpertBank:
    """The routed experts of one layer: w1 (gate) and w3 (up) [E, width, d], w2 (down) [E, d, width], all stacked."""

    w1: Linear
    w3: Linear
    w2: Linear

    @property
    def format(self) -> str:
        """w1's format, and w2's where it differs ("affine2/affine4")."""
        up, down = self.w1.format, self.w2.format
        return up if up == down else f"{up}/{down}"

    @property
    def count(self) -> int:
        return int(self.w1.weight.shape[0])


class Weights(Protocol):
    """A checkpoint as a model sees it: official names, without the `.weight` of a matrix, whatever is on the disk.

    Absent or misshapen tensors are a ModelError that names them. Nothing is dequantised but where `expand` asks for it.
    """

    @property
    def activation(self) -> str:
        """Dtype of activations: "float32" when the weights are float32 or run on the CPU, else "bfloat16"."""

    def linear(self, name: str) -> Linear:
        """The matrix called `name`, e.g. "layers.0.attn.wq_a", "head", "layers.2.attn.compressor.wkv"."""

    def array(self, name: str, dtype: str) -> mx.array:
        """A plain array by its full name, e.g. "layers.0.attn_norm.weight", "layers.0.hc_attn_fn", in this dtype."""

    def experts(self, prefix: str) -> ExpertBank:
        """The routed experts under "layers.0.ffn" or "mtp.0.ffn"."""


class ArrayWeights:
    """`Weights` of a dict of dense arrays by official names: for tests, benchmarks and tiny models made in memory."""

    def __init__(self, arrays: Mapping[str, mx.array], activation: str = "float32") -> None:
        self._arrays = dict(arrays)
        self._activation = activation

    @property
    def activation(self) -> str:
        return self._activation

    def _get(self, name: str) -> mx.array:
        if name not in self._arrays:
            raise ModelError(f"tensor '{name}' is missing")
        return self._arrays[name]

    def linear(self, name: str) -> Linear:
        return Linear(self._get(f"{name}.weight"))

    def array(self, name: str, dtype: str) -> mx.array:
        return self._get(name).astype(dtype_of(dtype))

    def experts(self, prefix: str) -> ExpertBank:
        count = 0
        while f"{prefix}.experts.{count}.w1.weight" in self._arrays:
            count += 1

        def stack(which: str) -> Linear:
            return Linear(mx.stack([self._get(f"{prefix}.experts.{e}.{which}.weight") for e in range(count)]))

        return ExpertBank(w1=stack("w1"), w3=stack("w3"), w2=stack("w2"))


class SharedWeights:
    """`Weights` that reads each tensor once and then gives the same arrays: what engines of one process share."""

    def __init__(self, source: Weights) -> None:
        self._source = source
        self._held: dict[tuple[str, ...], Any] = {}

    @property
    def activation(self) -> str:
        return self._source.activation

    def _once(self, key: tuple[str, ...], read: Callable[[], T]) -> T:
        if key not in self._held:
            self._held[key] = read()
        found: T = self._held[key]
        return found

    def linear(self, name: str) -> Linear:
        return self._once(("linear", name), lambda: self._source.linear(name))

    def array(self, name: str, dtype: str) -> mx.array:
        return self._once(("array", name, dtype), lambda: self._source.array(name, dtype))

    def experts(self, prefix: str) -> ExpertBank:
        return self._once(("experts", prefix), lambda: self._source.experts(prefix))
