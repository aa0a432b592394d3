"""Numbers as the official checkpoints hold them, and the checkpoint writer and reader.

FP4: E2M1 codes in groups of 32 columns; FP8: E4M3 codes in blocks of 128 x 128; both with UE8M0 scales (powers of two).
`fake_fp4` is what quantisation-aware training multiplies with: the rounded weight, with the gradient of the weight.
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import inputs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

FP8_NAMES = re.compile(r"(attn\.(wq_a|wq_b|wkv|wo_a|wo_b)|indexer\.wq_b|shared_experts\.w[123]|main_proj)\.weight$")
F32_NAMES = re.compile(r"(hc_\w+|attn_sink|gate\.bias|\.ape)$")
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def power(amax: Tensor, top: float) -> Tensor:
    """The smallest power of two that brings amax to at most top, as an exponent."""
    return torch.ceil(torch.log2(amax.clamp_min(1e-30) / top)).clamp(-127, 127)


def fp4_parts(w: Tensor) -> tuple[Tensor, Tensor]:
    """w [.., columns] -> signed E2M1 values in groups [.., columns / 32, 32], exponents [.., columns / 32, 1]."""
    groups = w.float().unflatten(-1, (-1, 32))
    exponent = power(groups.abs().amax(-1, keepdim=True), 6.0)
    y = groups * torch.exp2(-exponent)
    step = torch.where(y.abs() < 2, 0.5, torch.where(y.abs() < 4, 1.0, 2.0))
    return torch.round(y / step) * step, exponent


def fp4(w: Tensor) -> Tensor:
    values, exponent = fp4_parts(w)
    return (values * torch.exp2(exponent)).flatten(-2)


def fake_fp4(w: Tensor) -> Tensor:
    return w + (fp4(w.detach()) - w.detach())


def fp8_parts(w: Tensor) -> tuple[Tensor, Tensor]:
    """w [rows, columns] -> E4M3 codes [rows, columns], exponents [ceil(rows / 128), ceil(columns / 128)]."""
    rows, columns = w.shape
    padded = F.pad(w.float(), (0, -columns % 128, 0, -rows % 128))
    blocks = padded.unflatten(0, (-1, 128)).unflatten(-1, (-1, 128))  # [R, 128, C, 128]
    exponent = power(blocks.abs().amax((1, 3)), 448.0)
    scaled = blocks * torch.exp2(-exponent)[:, None, :, None]
    return scaled.flatten(2).flatten(0, 1)[:rows, :columns].to(torch.float8_e4m3fn), exponent


def fp8_values(codes: Tensor, exponent: Tensor) -> Tensor:
    rows, columns = codes.shape
    scale = torch.exp2(exponent).repeat_interleave(128, 0).repeat_interleave(128, 1)[:rows, :columns]
    return codes.float() * scale


# --------------------------------------------------------------------------------------------------------------
# Names
# --------------------------------------------------------------------------------------------------------------


def official_block(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    out = {}
    for name, value in state.items():
        if name in ("ffn.w1", "ffn.w2", "ffn.w3"):
            for e in range(value.shape[0]):
                out[f"{prefix}.ffn.experts.{e}.{name[4:]}.weight"] = value[e]
            continue
        name = name.replace("ffn.shared.", "ffn.shared_experts.")
        name = {"ffn.tid2eid": "ffn.gate.tid2eid", "ffn.bias": "ffn.gate.bias"}.get(name, name)
        out[f"{prefix}.{name}"] = value
    return out


def block_from_official(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    out: dict[str, Tensor] = {}
    experts: dict[str, dict[int, Tensor]] = {}
    for full, value in tensors.items():
        if not full.startswith(prefix + "."):
            continue
        name = full[len(prefix) + 1 :]
        if found := re.fullmatch(r"ffn\.experts\.(\d+)\.(w[123])\.weight", name):
            experts.setdefault(found[2], {})[int(found[1])] = value
            continue
        name = name.replace("ffn.shared_experts.", "ffn.shared.")
        out[{"ffn.gate.tid2eid": "ffn.tid2eid", "ffn.gate.bias": "ffn.bias"}.get(name, name)] = value
    for leaf, bank in experts.items():
        out[f"ffn.{leaf}"] = torch.stack([bank[e] for e in range(len(bank))])
    return out


def under(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}


def official_target(state: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    out = {name: value for name, value in state.items() if not name.startswith("layers.")}
    for i in range(layers):
        out |= official_block(f"layers.{i}", under(state, f"layers.{i}."))
    return out


def target_state(tensors: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    out = {name: value for name, value in tensors.items() if not name.startswith(("layers.", "mtp."))}
    for i in range(layers):
        out |= {f"layers.{i}.{name}": value for name, value in block_from_official(f"layers.{i}", tensors).items()}
    return out


LAST = {
    "norm.weight": "norm.weight",
    "hc_head_fn": "hc_head_fn",
    "hc_head_base": "hc_head_base",
    "hc_head_scale": "hc_head_scale",
    "markov_w1.weight": "markov_head.markov_w1.weight",
    "markov_w2.weight": "markov_head.markov_w2.weight",
    "confidence.weight": "confidence_head.proj.weight",
}


def official_drafter(state: dict[str, Tensor], stages: int = 3) -> dict[str, Tensor]:
    out = {f"mtp.0.{name}": state[name] for name in ("main_proj.weight", "main_norm.weight")}
    out |= {f"mtp.{stages - 1}.{name}": state[mine] for mine, name in LAST.items()}
    for i in range(stages):
        out |= official_block(f"mtp.{i}", under(state, f"stages.{i}."))
    return out


def drafter_state(tensors: dict[str, Tensor], stages: int = 3) -> dict[str, Tensor]:
    out = {name: tensors[f"mtp.0.{name}"] for name in ("main_proj.weight", "main_norm.weight")}
    out |= {mine: tensors[f"mtp.{stages - 1}.{name}"] for mine, name in LAST.items()}
    own = {"main_proj.weight", "main_norm.weight", *LAST.values()}
    for i in range(stages):
        block = block_from_official(f"mtp.{i}", tensors)
        out |= {f"stages.{i}.{name}": value for name, value in block.items() if name not in own}
    return out


# --------------------------------------------------------------------------------------------------------------
# Files
# --------------------------------------------------------------------------------------------------------------

SIZES = {"F8_E4M3": 1, "F8_E8M0": 1, "I8": 1, "BF16": 2, "F32": 4, "I64": 8}


def raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def stored(name: str, value: Tensor, quantised: bool) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """name -> dtype, shape, payload of the tensors that hold one parameter"""
    shape, value = tuple(value.shape), value.detach().cpu()
    if name.endswith("tid2eid"):
        return {name: ("I64", shape, raw(value.long()))}
    if F32_NAMES.search(name) or not quantised:
        return {name: ("F32", shape, raw(value.float()))}
    stem = name.removesuffix(".weight")
    if ".experts." in name:
        values, exponent = fp4_parts(value)
        codes = torch.bucketize(values.abs(), E2M1 - 0.01, right=True) - 1
        codes = (codes + 8 * (values < 0)).flatten(-2).to(torch.uint8)
        packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
        scale = (exponent[..., 0] + 127).to(torch.uint8)
        return {
            name: ("I8", tuple(packed.shape), raw(packed)),
            f"{stem}.scale": ("F8_E8M0", tuple(scale.shape), raw(scale)),
        }
    if FP8_NAMES.search(name):
        codes, exponent = fp8_parts(value)
        scale = (exponent + 127).to(torch.uint8)
        return {
            name: ("F8_E4M3", shape, raw(codes)),
            f"{stem}.scale": ("F8_E8M0", tuple(scale.shape), raw(scale)),
        }
    return {name: ("BF16", shape, raw(value.bfloat16()))}


def write(path: Path, tensors: dict[str, Tensor], quantised: bool = True) -> int:
    """A safetensors file; returns its size in bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    payload: list[bytes] = []
    at = 0
    entries = [part for name in sorted(tensors) for part in stored(name, tensors[name], quantised).items()]
    entries.sort(key=lambda entry: (-SIZES[entry[1][0]], entry[0]))  # wide items first: everything stays aligned
    for name, (dtype, shape, data) in entries:
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        payload.append(data)
        at += len(data)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(struct.pack("<Q", len(head)) + head + b"".join(payload))
    return path.stat().st_size


def read(path: Path) -> dict[str, Tensor]:
    """Official name -> decoded float32 tensor (int64 for the hash table)."""
    inputs.weights(path, "train_target.py, train_drafter.py or assemble.py")
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    kinds = {"F8_E4M3": torch.float8_e4m3fn, "F8_E8M0": torch.uint8, "I8": torch.uint8, "BF16": torch.bfloat16}
    kinds |= {"F32": torch.float32, "I64": torch.int64}
    base = 8 + length

    def load(name: str) -> Tensor:
        entry = header[name]
        begin, end = entry["data_offsets"]
        buffer = bytearray(data[base + begin : base + end])
        return torch.frombuffer(buffer, dtype=torch.uint8).view(kinds[entry["dtype"]]).view(entry["shape"])

    out = {}
    for name, entry in header.items():
        if name.endswith(".scale"):
            continue
        value, stem = load(name), name.removesuffix(".weight")
        if entry["dtype"] == "I8":
            codes = torch.stack([value & 15, value >> 4], dim=-1).flatten(-2).int()
            values = E2M1[codes & 7] * torch.where(codes >= 8, -1.0, 1.0)
            scale = torch.exp2(load(f"{stem}.scale").float() - 127)
            out[name] = (values.unflatten(-1, (-1, 32)) * scale[..., None]).flatten(-2)
        elif entry["dtype"] == "F8_E4M3":
            out[name] = fp8_values(value, load(f"{stem}.scale").float() - 127)
        else:
            out[name] = value if value.dtype == torch.int64 else value.float()
    return out


def fill(target: nn.Module, path: Path) -> None:
    """The target's weights, from a file that holds those and perhaps a drafter's."""
    found, wanted = target_state(read(path), len(target.layers)), target.state_dict()
    other = [n for n in wanted if n not in found] + [n for n in found if n not in wanted]
    other = other or [n for n in wanted if found[n].shape != wanted[n].shape]
    if other:
        inputs.stop(f"{path} does not hold the target of config.json: {len(other)} tensors differ ({other[0]} first)")
    target.load_state_dict(found)
