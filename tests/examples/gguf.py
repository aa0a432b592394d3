"""A writer of tiny llama GGUF files, and what their blocks stand for, computed apart from MLX."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.text.tokenizers_for_tests import SYMBOLS

HEADS, KV_HEADS, HEAD, HIDDEN, INNER, LAYERS = 4, 2, 16, 64, 96, 2
TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q8_0": 8, "Q4_K": 12}
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(SYMBOLS.values()), SYMBOLS[32] + "h", "12"]

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 256,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INNER,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": HEAD,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (len(TOKENS) - 3)],
    "tokenizer.ggml.merges": [f"{SYMBOLS[32]} h", "1 2"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
}


def quantised(kind: str, rows: int, columns: int, rng: np.random.Generator) -> tuple[bytes, np.ndarray]:
    """Random blocks of 32 and the float32 values they stand for."""
    blocks = rows * columns // 32
    if kind in ("F32", "F16"):
        plain = rng.normal(size=(rows, columns)).astype(np.float32 if kind == "F32" else np.float16)
        return plain.tobytes(), plain.astype(np.float32)
    scale = rng.uniform(0.01, 0.1, (blocks, 1)).astype(np.float16)
    if kind == "Q8_0":
        signed = rng.integers(-128, 128, (blocks, 32), dtype=np.int8)
        data = np.concatenate([scale.view(np.uint8), signed.view(np.uint8)], axis=1)
        return data.tobytes(), (scale.astype(np.float32) * signed).reshape(rows, columns)
    packed = rng.integers(0, 256, (blocks, 16), dtype=np.uint8)
    four = np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)  # low halves first
    if kind == "Q4_0":
        data = np.concatenate([scale.view(np.uint8), packed], axis=1)
        return data.tobytes(), (scale.astype(np.float32) * (four - 8)).reshape(rows, columns)
    least = rng.uniform(-1, 0, (blocks, 1)).astype(np.float16)
    data = np.concatenate([scale.view(np.uint8), least.view(np.uint8), packed], axis=1)
    return data.tobytes(), (scale.astype(np.float32) * four + least.astype(np.float32)).reshape(rows, columns)


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows in the order GGUF wants them: the two halves of each head, one by one in turn."""
    order = [h * HEAD + half * HEAD // 2 + i for h in range(heads) for i in range(HEAD // 2) for half in (0, 1)]
    return rows[order]


def _value(value: Any) -> bytes:
    if isinstance(value, str):
        return struct.pack("<IQ", 8, len(value.encode())) + value.encode()
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value[0], str):
        items = b"".join(struct.pack("<Q", len(v.encode())) + v.encode() for v in value)
        return struct.pack("<IIQ", 9, 8, len(value)) + items
    return struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)


def write(path: Path, kinds: Mapping[str, str] | None = None, **metadata: Any) -> dict[str, np.ndarray]:
    """The values written, under their GGUF names. kinds: the type of tensors whose name holds the key."""
    rng = np.random.default_rng(0)
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (1, HIDDEN)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (1, HIDDEN),
            f"blk.{i}.attn_q.weight": (HEADS * HEAD, HIDDEN),
            f"blk.{i}.attn_k.weight": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{i}.attn_v.weight": (KV_HEADS * HEAD, HIDDEN),
            f"blk.{i}.attn_output.weight": (HIDDEN, HEADS * HEAD),
            f"blk.{i}.ffn_norm.weight": (1, HIDDEN),
            f"blk.{i}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{i}.ffn_down.weight": (HIDDEN, INNER),
        }
    values, table, payload = {}, b"", b""
    for name, (rows, columns) in shapes.items():
        kind = "F32" if "norm" in name else "Q8_0" if "embd" in name else "Q4_1"
        kind = next((k for part, k in (kinds or {}).items() if part in name), kind)
        data, values[name] = quantised(kind if kind in ("F32", "F16", "Q4_0", "Q8_0") else "Q4_1", rows, columns, rng)
        shape = (columns,) if "norm" in name else (columns, rows)
        table += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        table += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", TYPES[kind], len(payload))
        payload += data + b"\0" * (-len(data) % 32)
    given = {k: v for k, v in {**METADATA, **metadata}.items() if v is not None}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(given))
    for key, value in given.items():
        head += struct.pack("<Q", len(key)) + key.encode() + _value(value)
    head += table
    path.write_bytes(head + b"\0" * (-len(head) % 32) + payload)
    return values
