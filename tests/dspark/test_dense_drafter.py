"""The dense drafter against its float64 definition, in the engine on an mlx-lm target, and what it refuses."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.core.engines import rounds_observer
from tests.dspark.folders import engine
from tests.dspark.tiny import no_keys
from tests.mlx_lm_target import tiny as mlx_lm_tiny
from tests.oracles.dense_dspark_numpy import Array, Weights, draft_block

from sparkwright.core.contracts import DrafterFacts, Site
from sparkwright.core.errors import ModelError, SparkwrightError
from sparkwright.core.plugins import discover
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.drafters import dspark
from sparkwright.plugins.drafters.dspark.dense import GROW, DenseDrafter, DenseState, load
from sparkwright.plugins.drafters.dspark.dense_config import expected, read_config

V = mlx_lm_tiny.VOCABULARY
RAW: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "rms_norm_eps": 1e-5,
    "vocab_size": V,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "block_size": 7,
    "mask_token_id": V - 1,
    "target_layer_ids": [-1, 1, 3],
    "markov_rank": 8,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "layer_types": ["full_attention"] * 3,
}


def made(folder: Path, seed: int = 0, **keys: Any) -> tuple[dict[str, Any], Weights]:
    """Writes a random drafter; its numbers in float64."""
    raw = RAW | keys
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    rng, weights = np.random.default_rng(seed), {}
    for name, shape in expected(read_config(folder)).items():
        norm = "norm" in name
        scale = 0.2 if norm else 1.0 if "markov" in name or "embed" in name else 1.5 / shape[-1] ** 0.5
        weights[name] = (norm + scale * rng.standard_normal(shape)).astype(np.float32)
    mx.save_safetensors(str(folder / "model.safetensors"), {n: mx.array(a) for n, a in weights.items()})
    return raw, {n: a.astype(np.float64) for n, a in weights.items()}


def drafter(folder: Path) -> DenseDrafter:
    config = read_config(folder)
    return DenseDrafter.build(config, load(folder, config, "cpu"), select_reference)


def random_taps(count: int) -> Array:
    return np.random.default_rng(count).standard_normal((count, 3 * 64)).astype(np.float32).astype(np.float64)


def fed(model: DenseDrafter, taps: Array, appends: list[int]) -> DenseState:
    state = model.new_state(lambda logits: logits, False, False)
    at = turn = 0
    while at < len(taps):
        m = min(appends[turn % len(appends)], len(taps) - at)
        model.observe(state, mx.array(taps[at : at + m].astype(np.float32)))
        at, turn = at + m, turn + 1
    return state


@pytest.mark.parametrize("with_markov", [True, False])
@pytest.mark.parametrize("appends", [[400], [1], [5, 1, 6, 2], [7]])
def test_tokens_logits_and_confidences_are_those_of_the_definition(
    tmp_path: Path, with_markov: bool, appends: list[int]
) -> None:
    raw, weights = made(tmp_path, 1, confidence_head_with_markov=with_markov)
    model = drafter(tmp_path)
    for count in (1, 9, 25, GROW + 3) if len(appends) == 1 and appends[0] > 1 else (1, 9, 25):
        taps = random_taps(count)
        seen: list[mx.array] = []

        def shape(logits: mx.array, seen: list[mx.array] = seen) -> mx.array:
            seen.append(logits)
            return logits

        state = fed(model, taps, appends)
        state.shape, state.drawn = shape, True
        draft = model.draft(state, 5 + count, 7, no_keys(7))
        tokens, logits, confidence = draft_block(5 + count, taps, weights, raw)
        assert draft.tokens.tolist() == tokens
        got = np.array(mx.concatenate(seen))
        assert np.abs(got - logits).max() <= 1e-4 * np.abs(logits).max()
        np.testing.assert_allclose(np.array(draft.confidence), confidence, atol=1e-4)
        assert state.position == count


def run(target: Path, settings: dict[str, Any]) -> tuple[tuple[int, ...], list[Any]]:
    observer, seen = rounds_observer()
    base: dict[str, Any] = {"target": {"use": "mlx_lm", "model": str(target)}, "observers": {"use": ["rounds"]}}
    base["generation"] = {"max_tokens": 24}
    with engine(target, base | settings, discover().with_providers(observer)) as running:
        return tuple(running.complete([9, 4, 7, 7, 2, 8], seed=1).tokens), seen


def test_in_the_engine_greedy_text_is_that_of_plain_decoding(tmp_path: Path) -> None:
    assert not hasattr(ctypes.CDLL(None), "openblas_get_config")
    target = mlx_lm_tiny.make(tmp_path / "target", "qwen3")
    made(tmp_path / "drafter")
    plain, _ = run(target, {"drafter": {"use": "none"}})
    for scheduler in ("fixed", "cost_aware"):
        mine = {"use": "dspark", "model": str(tmp_path / "drafter")}
        text, seen = run(target, {"drafter": mine, "scheduler": {"use": scheduler}})
        assert text == plain
        assert any(r.drafted for r in seen)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"markov_head_type": "rnn"}, r"'markov_head_type' is 'rnn'; supported: 'vanilla'"),
        ({"layer_types": ["sliding_attention"] * 3}, r"'layer_types' holds 'sliding_attention'"),
        ({"architectures": ["Gemma4DSparkModel"]}, r"'architectures' is 'Gemma4DSparkModel'"),
        ({"transformer_layer_config": {}}, r"'speculators' packaging"),
        ({"mask_token_id": V}, r"'mask_token_id' is 270, outside"),
        ({"block_size": 0}, r"'block_size' is 0"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, r"rotary type is 'yarn'"),
    ],
)
def test_what_it_cannot_run_is_refused_by_name(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RAW | keys))
    with pytest.raises(ModelError, match=words):
        dspark.describe(dspark.Options(), Site(model=tmp_path))


def test_facts_come_from_the_config_and_damaged_tensors_are_named(tmp_path: Path) -> None:
    made(tmp_path)
    assert dspark.describe(dspark.Options(), Site(model=tmp_path)) == DrafterFacts(
        block=7, proposal="dense", vocab_size=V, taps=(-1, 1, 3), confidence=True, context=512, target_noise=True
    )
    (tmp_path / "config.json").write_text(json.dumps(RAW | {"markov_rank": 9}))
    with pytest.raises(SparkwrightError, match=r"'markov_head.markov_w1.weight' has shape \[270, 8\], expected"):
        dspark.build(dspark.Options(), Site(model=tmp_path))
