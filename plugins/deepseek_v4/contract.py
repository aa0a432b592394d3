"""The tensor contract: every array a DeepSeek-V4 checkpoint must hold, by config, and how a given one holds it.

`parameters` lists what a config asks for, in official names with logical shapes. `expected` is the same as an official
release writes it, tensor by tensor. `resolve` holds a checkpoint's headers against it: which parts each parameter is
stored in, and what is missing, extra or misshapen. Headers only; no payload is read here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import attrs

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4 import formats
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.formats import ITEM_BYTES, Form
from sparkwright.plugins.deepseek_v4.headers import Tensor, some

Written: TypeAlias = Literal["fp8", "fp4", "BF16", "F32", "I64"]
"""How an official release stores a parameter."""

_FLOATS = ("BF16", "F16", "F32")
_INTEGERS = ("I64", "I32")


@attrs.frozen
class Parameter:
    """name: official, without the `.weight` of a matrix; a bank of experts is named without numbers. shape: logical."""

    name: str
    shape: tuple[int, ...]
    written: Written
    kind: Literal["plain", "matrix", "bank"]

    @property
    def matrix(self) -> tuple[int, int]:
        """Rows and columns of a matrix, or of one expert of a bank."""
        return self.shape[-2], self.shape[-1]

    @property
    def copies(self) -> int:
        """How many matrices: the experts of a bank, else one."""
        return self.shape[0] if self.kind == "bank" else 1

    def stem(self, expert: int) -> str:
        """`layers.0.ffn.experts.w1` -> `layers.0.ffn.experts.7.w1`."""
        module, _, leaf = self.name.rpartition(".")
        return f"{module}.{expert}.{leaf}"


@attrs.frozen(eq=False)
class Stored:
    """A parameter as a checkpoint holds it.

    parts: suffix ("weight", "scale", ...; "" for a plain array) -> its tensor, or one for each expert of a bank.
    """

    parameter: Parameter
    form: Form | None
    parts: Mapping[str, tuple[Tensor, ...]]

    @property
    def stacked(self) -> bool:
        """Whether a bank's experts lie in one array."""
        return self.parameter.kind == "bank" and all(len(tensors) == 1 for tensors in self.parts.values())

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensors in self.parts.values() for tensor in tensors)


@attrs.frozen
class Report:
    """What is wrong with a checkpoint; each list holds one entry a tensor."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    misshapen: tuple[str, ...]

    @property
    def fine(self) -> bool:
        return not (self.missing or self.extra or self.misshapen)

    def refuse(self, path: object) -> None:
        """ModelError if tensors are missing or misshapen. Extra ones harm nothing; `inspect` lists them."""
        problems = []
        if self.missing:
            problems.append(f"{len(self.missing)} tensors are missing: {some(self.missing)}")
        if self.misshapen:
            problems.append(f"{len(self.misshapen)} tensors are not as expected: {'; '.join(self.misshapen[:3])}")
        if problems:
            more = "; `sparkwright models inspect` lists everything"
            raise ModelError(f"{path}: the checkpoint does not fit its config.json: {'; '.join(problems)}{more}")


# --------------------------------------------------------------------------------------------------------------
# What a config asks for
# --------------------------------------------------------------------------------------------------------------


def parameters(c: ModelConfig, stages: int, target: bool = True, confidence: bool = True) -> Iterator[Parameter]:
    """Every parameter of a checkpoint with `stages` drafter stages (0: none).

    target: the model itself too. confidence: the drafter's confidence head too (mlx-vlm leaves it out).
    """

    def plain(name: str, *shape: int, written: Written = "BF16") -> Parameter:
        return Parameter(name, shape, written, "plain")

    def matrix(name: str, rows: int, columns: int, written: Written = "fp8") -> Parameter:
        return Parameter(name, (rows, columns), written, "matrix")

    d, n = c.hidden, c.hc_mult

    def head(prefix: str) -> Iterator[Parameter]:
        yield plain(f"{prefix}norm.weight", d)
        yield plain(f"{prefix}hc_head_fn", n, n * d, written="F32")
        yield plain(f"{prefix}hc_head_base", n, written="F32")
        yield plain(f"{prefix}hc_head_scale", 1, written="F32")

    def compressor(prefix: str, ratio: int, width: int) -> Iterator[Parameter]:
        wide = width * 2 if ratio == 4 else width  # ratio 4 overlaps: an "A" and a "B" half
        yield matrix(f"{prefix}.wkv", wide, d, "BF16")
        yield matrix(f"{prefix}.wgate", wide, d, "BF16")
        yield plain(f"{prefix}.ape", ratio, wide, written="F32")
        yield plain(f"{prefix}.norm.weight", width)

    def block(p: str, ratio: int, hashed: bool) -> Iterator[Parameter]:
        yield plain(f"{p}.attn_norm.weight", d)
        yield plain(f"{p}.ffn_norm.weight", d)
        yield matrix(f"{p}.attn.wq_a", c.q_rank, d)
        yield plain(f"{p}.attn.q_norm.weight", c.q_rank)
        yield matrix(f"{p}.attn.wq_b", c.heads * c.head_dim, c.q_rank)
        yield matrix(f"{p}.attn.wkv", c.head_dim, d)
        yield plain(f"{p}.attn.kv_norm.weight", c.head_dim)
        yield plain(f"{p}.attn.attn_sink", c.heads, written="F32")
        yield matrix(f"{p}.attn.wo_a", c.o_groups * c.o_rank, c.heads * c.head_dim // c.o_groups)
        yield matrix(f"{p}.attn.wo_b", d, c.o_groups * c.o_rank)
        mixes = (2 + n) * n
        for branch in ("attn", "ffn"):
            yield plain(f"{p}.hc_{branch}_fn", mixes, n * d, written="F32")
            yield plain(f"{p}.hc_{branch}_base", mixes, written="F32")
            yield plain(f"{p}.hc_{branch}_scale", 3, written="F32")
        yield matrix(f"{p}.ffn.gate", c.experts, d, "BF16")
        if hashed:
            yield plain(f"{p}.ffn.gate.tid2eid", c.vocab_size, c.experts_per_token, written="I64")
        else:
            yield plain(f"{p}.ffn.gate.bias", c.experts, written="F32")
        for which, rows, columns in (
            ("w1", c.expert_width, d),
            ("w3", c.expert_width, d),
            ("w2", d, c.expert_width),
        ):
            experts: Written = "fp8" if c.expert_dtype in ("fp8", "fp8_e4m3") else "fp4"
            yield Parameter(f"{p}.ffn.experts.{which}", (c.experts, rows, columns), experts, "bank")
            yield matrix(f"{p}.ffn.shared_experts.{which}", rows, columns)
        if ratio:
            yield from compressor(f"{p}.attn.compressor", ratio, c.head_dim)
        if ratio == 4:
            yield matrix(f"{p}.attn.indexer.wq_b", c.index_heads * c.index_dim, c.q_rank)
            yield matrix(f"{p}.attn.indexer.weights_proj", c.index_heads, d, "BF16")
            yield from compressor(f"{p}.attn.indexer.compressor", ratio, c.index_dim)

    if target:
        yield matrix("embed", c.vocab_size, d, "BF16")
        yield matrix("head", c.vocab_size, d, "BF16")
        yield from head("")
        for layer, ratio in enumerate(c.ratios):
            yield from block(f"layers.{layer}", ratio, c.hashed(layer))
    if stages:
        if c.dspark is None:
            raise ModelError("config.json: it has no 'dspark_*' keys and the checkpoint holds 'mtp.*' tensors")
        rank, last = c.dspark.markov_rank, f"mtp.{stages - 1}"
        for stage in range(stages):
            yield from block(f"mtp.{stage}", 0, hashed=False)
        yield matrix("mtp.0.main_proj", d, len(c.dspark.target_layer_ids) * d)
        yield plain("mtp.0.main_norm.weight", d)
        yield from head(f"{last}.")
        yield matrix(f"{last}.markov_head.markov_w1", c.vocab_size, rank, "BF16")
        yield matrix(f"{last}.markov_head.markov_w2", c.vocab_size, rank, "BF16")
        if confidence:
            yield matrix(f"{last}.confidence_head.proj", 1, d + rank, "BF16")


def expected(c: ModelConfig, stages: int, quantised: bool = True) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> dtype and shape of every tensor of an official release, or of the same in BF16 throughout."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    for parameter in parameters(c, stages):
        if parameter.kind == "plain":
            tensors[parameter.name] = (parameter.written, parameter.shape)
            continue
        parts = release_form(parameter, quantised).parts(*parameter.matrix)
        stems = [parameter.name] if parameter.kind == "matrix" else map(parameter.stem, range(parameter.copies))
        for stem in stems:
            for suffix, (dtypes, shape) in parts.items():
                tensors[f"{stem}.{suffix}"] = (dtypes[0], shape)
    return tensors


def release_form(parameter: Parameter, quantised: bool = True) -> Form:
    """How a release stores a matrix or a bank; widths that no group divides stay BF16."""
    form = {"fp8": formats.FP8, "fp4": formats.FP4}.get(parameter.written) if quantised else None
    return form if form and parameter.matrix[1] % form.group == 0 else formats.BFLOAT16


def total_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    return sum(math.prod(shape) * ITEM_BYTES[dtype] for dtype, shape in tensors.values())


# --------------------------------------------------------------------------------------------------------------
# What a checkpoint holds
# --------------------------------------------------------------------------------------------------------------


def resolve(wanted: Sequence[Parameter], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Stored], Report]:
    """How `tensors` (by official names) store what is wanted, and what is wrong with them."""
    search = _Search(tensors)
    stored = {parameter.name: found for parameter in wanted if (found := search.find(parameter)) is not None}
    extra = tuple(name for name in tensors if name not in search.used)
    return stored, Report(tuple(search.missing), extra, tuple(search.misshapen))


class _Search:
    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.used: set[str] = set()
        self.missing: list[str] = []
        self.misshapen: list[str] = []
        # Whether the checkpoint quantises at all: only to name what is missing as the release would name it.
        self._quantised = any(tensor.dtype.startswith("F8") for tensor in tensors.values())

    def find(self, parameter: Parameter) -> Stored | None:
        if parameter.kind == "plain":
            return self._plain(parameter)
        if parameter.kind == "matrix" or f"{parameter.name}.weight" in self._tensors:
            return self._matrix(parameter, [parameter.name], parameter.shape)
        return self._matrix(parameter, [parameter.stem(e) for e in range(parameter.copies)], parameter.matrix)

    def _plain(self, parameter: Parameter) -> Stored | None:
        tensor = self._tensors.get(parameter.name)
        if tensor is None:
            self.missing.append(parameter.name)
            return None
        self.used.add(parameter.name)
        accepted = _INTEGERS if parameter.written == "I64" else _FLOATS
        if tensor.dtype not in accepted or tensor.shape != parameter.shape:
            self._wrong(parameter.name, tensor, f"{parameter.written} {list(parameter.shape)}")
            return None
        return Stored(parameter, None, {"": (tensor,)})

    def _matrix(self, parameter: Parameter, stems: list[str], shape: tuple[int, ...]) -> Stored | None:
        """One form for all stems, told by the first that is there; every part of every stem is then held against it."""
        there = [stem for stem in stems if f"{stem}.weight" in self._tensors]
        form = self._form(parameter, there[0], shape) if there else release_form(parameter, self._quantised)
        if form is None:
            for stem in stems:
                self._claim(stem)
            return None
        parts: dict[str, list[Tensor]] = {}
        complete = True
        for suffix, (dtypes, matrix) in form.parts(*shape[-2:]).items():
            wanted = (*shape[:-2], *matrix)
            for stem in stems:
                name = f"{stem}.{suffix}"
                tensor = self._tensors.get(name)
                if tensor is None:
                    self.missing.append(name)
                    complete = False
                    continue
                self.used.add(name)
                if tensor.dtype not in dtypes or _flat(parameter, tensor.shape) != wanted:
                    self._wrong(name, tensor, f"{dtypes[0]} {list(wanted)}")
                    complete = False
                parts.setdefault(suffix, []).append(tensor)
        return Stored(parameter, form, {s: tuple(ts) for s, ts in parts.items()}) if complete else None

    def _form(self, parameter: Parameter, stem: str, shape: tuple[int, ...]) -> Form | None:
        weight = self._tensors[f"{stem}.weight"]
        rows, columns = shape[-2:]
        found = _flat(parameter, weight.shape)
        if weight.dtype in formats.FLOAT_FORMS:
            return formats.FLOAT_FORMS[weight.dtype]
        if weight.dtype in ("F8_E4M3", "I8", "U8"):
            # Both official forms are bytes; the width tells them apart, whatever the dtype is called.
            form = formats.FP4 if found == (*shape[:-1], columns // 2) else formats.FP8
            if columns % form.group == 0:
                return form
        if weight.dtype == "U32":
            scales = self._tensors.get(f"{stem}.scales")
            if scales is None:
                self.missing.append(f"{stem}.scales")
                return None
            biases = f"{stem}.biases" in self._tensors
            packed = formats.packed(found, scales.shape, scales.dtype, biases, columns)
            if isinstance(packed, Form):
                return packed
            self.misshapen.append(f"'{stem}.weight': found {weight} with scales {scales}: {packed}")
            return None
        written = release_form(parameter, self._quantised)
        dtypes, wanted = written.parts(rows, columns)["weight"]
        self._wrong(f"{stem}.weight", weight, f"{dtypes[0]} {[*shape[:-2], *wanted]}")
        return None

    def _claim(self, stem: str) -> None:
        """Parts of a parameter that is already reported are not reported again as extra."""
        self.used.update(f"{stem}.{suffix}" for suffix in ("weight", "scale", "scales", "biases"))

    def _wrong(self, name: str, tensor: Tensor, wanted: str) -> None:
        self.misshapen.append(f"'{name}': found {tensor}, expected {wanted}")


def _flat(parameter: Parameter, shape: tuple[int, ...]) -> tuple[int, ...]:
    """mlx-vlm keeps `wo_a` cut into its groups, [g, rank, in]; rows are group-major, so it is the same matrix."""
    if parameter.kind == "matrix" and len(shape) == 3 and parameter.name.endswith(".wo_a"):
        return shape[0] * shape[1], shape[2]
    return shape
