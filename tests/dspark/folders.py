"""Model folders of tiny random checkpoints, and engines on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from tests.oracles.deepseek_v4_numpy import Weights
from tokenizers import Tokenizer, models, pre_tokenizers

from sparkwright.core.assembly import assemble
from sparkwright.core.config import load_config
from sparkwright.core.engine import Engine
from sparkwright.core.plugins import Catalogue, discover


def write_folder(path: Path, raw: dict[str, Any], weights: Weights) -> Path:
    """A float32 checkpoint in official names, and a tokenizer of whole words."""
    path.mkdir(parents=True, exist_ok=True)
    arrays = {n: mx.array(a.astype(np.int32 if a.dtype == np.int64 else np.float32)) for n, a in weights.items()}
    (path / "config.json").write_text(json.dumps(raw))
    mx.save_safetensors(str(path / "model.safetensors"), arrays)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(raw["vocab_size"])}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def engine(model: Path, settings: dict[str, Any], catalogue: Catalogue | None = None) -> Engine:
    base: dict[str, Any] = {
        "target": {"use": "deepseek_v4", "model": str(model)},
        "drafter": {"use": "dspark"},
        "scheduler": {"use": "fixed"},
        "sampler": {"use": "greedy"},
        "verifier": {"use": "greedy"},
        "generation": {"max_tokens": 40},
        "engine": {"costs": "none"},
    }
    config = load_config(base | settings, environ={}, catalogue=catalogue or discover())
    return assemble(config)
