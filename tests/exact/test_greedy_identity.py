"""Greedy speculative text is greedy plain text, whatever drafts and however long the blocks: tiny random models.

With MLX's bundled BLAS rows are bit-equal for any number of rows (conftest sets SPARKWRIGHT_OPENBLAS=0), so equality is
exact here, not up to ties.
"""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparkwright import assemble, load_config
from sparkwright.core.contracts import WIDEST_VERIFY
from sparkwright.core.engine import Engine
from sparkwright.core.plugins import discover
from sparkwright.core.testing.toys import random_drafter

pytestmark = pytest.mark.exact
PROMPTS, TOKENS = 50, 128
VOCAB = 64


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama, float32: its greedy text soon repeats, so that `lookup` finds something to draft."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import llama
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("tiny")
    config = {
        "model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": VOCAB,
        "rope_theta": 10000.0, "max_position_embeddings": 1024, "tie_word_embeddings": False, "eos_token_id": VOCAB - 1,
    }  # fmt: skip
    mx.random.seed(7)
    model = llama.Model(llama.ModelArgs.from_dict(config))  # type: ignore[no-untyped-call]
    shapes: dict[str, Any] = dict(tree_flatten(model.parameters()))
    weights = {name: mx.random.normal(w.shape) * 0.35 for name, w in shapes.items()}
    (folder / "config.json").write_text(json.dumps(config))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    letters = {chr(0x100 + i): i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [rng.integers(0, VOCAB - 1, size=int(n)).tolist() for n in rng.integers(1, 40, size=PROMPTS)]


def engine(model: Path, drafter: str, block: int) -> Engine:
    options: dict[str, Any] = {"use": drafter} | ({"lookup": {"block": block}} if drafter == "lookup" else {})
    config = load_config(
        {
            "target": {"use": "mlx_lm", "model": str(model)},
            "drafter": options,
            "scheduler": {"use": "fixed", "fixed": {"depth": block}},
            "sampler": {"use": "greedy"},
            "verifier": {"use": "greedy"},
            "generation": {"max_tokens": TOKENS},
        },
        environ={},
        catalogue=discover().with_providers(random_drafter()),
    )
    return assemble(config)


def texts(model: Path, drafter: str, block: int) -> tuple[list[tuple[int, ...]], int]:
    with engine(model, drafter, block) as running:
        results = [running.complete(prompt) for prompt in prompts()]
    return [result.tokens for result in results], sum(result.stats.submitted for result in results)


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> list[tuple[int, ...]]:
    assert not hasattr(ctypes.CDLL(None), "openblas_get_config"), "this test needs MLX's bundled BLAS"
    return texts(tiny_model, "none", 1)[0]


@pytest.mark.parametrize("drafter", ["lookup", "random"])
@pytest.mark.parametrize("block", range(1, WIDEST_VERIFY))
def test_greedy_text_does_not_depend_on_drafter_or_block(
    tiny_model: Path, plain: list[tuple[int, ...]], drafter: str, block: int
) -> None:
    speculative, submitted = texts(tiny_model, drafter, block)
    assert submitted > PROMPTS, "hardly anything was drafted: the test would prove nothing"
    assert speculative == plain
