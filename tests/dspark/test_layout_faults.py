"""A drafter that does not fit is refused when it is loaded, with both sides named: V4-native and dense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.dspark.dense_cases import DEEPSPEC, REDUCED, SPECULATORS, V, inner, lent, made
from tests.dspark.folders import engine, write_folder
from tests.dspark.tiny import SPARK, spark_weights
from tests.mlx_lm_target import tiny as mlx_lm_tiny
from tests.oracles.dense_dspark_numpy import Weights

from sparkwright.core.contracts import CostCurves, Site
from sparkwright.core.errors import AssemblyError, ModelError, SparkwrightError
from sparkwright.plugins.drafters import dspark
from sparkwright.plugins.drafters.dspark.dense_config import expected, read_config

# ------------------------------------------------------------------------------------------------------ V4-native

LAST = "mtp.2."
RATIOS = SPARK["compress_ratios"]


def without(*keys: str) -> dict[str, Any]:
    return {k: v for k, v in SPARK.items() if not k.startswith(keys)}


def integers(name: str) -> dict[str, Any]:
    return {name: spark_weights(SPARK, 1)[name].astype(np.int64)}


@pytest.mark.parametrize(
    ("raw", "tensors", "words"),
    [
        (without("dspark"), {}, r"holds 'mtp\.\*' tensors and its config\.json has no 'dspark_\*' keys"),
        (without("dspark_markov_rank"), {}, r"the key 'dspark_markov_rank' is missing"),
        (SPARK | {"dspark_target_layer_ids": [4, 5, 7]}, {}, r"is \[4, 5, 7\]; expected layers in 0\.\.6"),
        (
            SPARK | {"dspark_target_layer_ids": [5, 6], "compress_ratios": RATIOS[:-1]},
            {},
            r"holds 3 drafter stages \(mtp\.\*\) and config\.json names 2 tap layers",
        ),
        (SPARK | {"dspark_block_size": 99}, {}, r"'dspark_block_size' is 99, expected a whole number in 1\.\.64"),
        (SPARK | {"dspark_noise_token_id": 257}, {}, r"'dspark_noise_token_id' is 257, outside the vocabulary of 257"),
        (SPARK | {"dspark_markov_rank": 9}, {}, r"markov_w1.weight': found F32 \[257, 8\], expected F32 \[257, 9\]"),
        (SPARK, integers(f"{LAST}markov_head.markov_w2.weight"), r"w2.weight': found I32 \[257, 8\], expected BF16"),
        (SPARK, integers(f"{LAST}confidence_head.proj.weight"), r"proj.weight': found I32 \[1, 72\], expected BF16"),
    ],
)
def test_v4_faults_of_a_checkpoint(tmp_path: Path, raw: dict[str, Any], tensors: Weights, words: str) -> None:
    folder = write_folder(tmp_path, raw, spark_weights(SPARK, 1) | tensors)
    with pytest.raises(ModelError, match=words):
        engine(folder, {}).close()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hidden_size": 32, "head_dim": 16}, r"with hidden size 32, and this target's hidden size is 64"),
        (
            {"num_hidden_layers": 8, "compress_ratios": [*RATIOS, 0]},
            r"with number of layers 8, and this target's number of layers is 7",
        ),
        ({"vocab_size": 300}, r"'dspark' has a vocabulary of 300 tokens, target 'deepseek_v4' of 257"),
    ],
)
def test_a_v4_drafter_of_another_target(tmp_path: Path, keys: dict[str, Any], words: str) -> None:
    target = write_folder(tmp_path / "target", SPARK, spark_weights(SPARK, 1))
    other = SPARK | keys
    folder = write_folder(tmp_path / "drafter", other, spark_weights(other, 2))
    with pytest.raises(AssemblyError, match=words):
        engine(target, {"drafter": {"use": "dspark", "model": str(folder)}}).close()


# ----------------------------------------------------------------------------------------------------------- dense


def less(base: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in base.items() if k != key}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        # A flag that decides how tensors are read is never guessed.
        (less(DEEPSPEC, "markov_head_type"), r"'markov_head_type' is missing, expected .*'vanilla', 'gated', 'rnn'"),
        (less(DEEPSPEC, "enable_confidence_head"), r"'enable_confidence_head' is missing, expected true or false"),
        (less(DEEPSPEC, "confidence_head_with_markov"), r"'confidence_head_with_markov' is missing"),
        (less(SPECULATORS, "sample_from_anchor"), r"'sample_from_anchor' is missing, expected true or false"),
        (SPECULATORS | {"sample_from_anchor": False}, r"'sample_from_anchor' is False, expected true: drafts begin"),
        (less(SPECULATORS, "speculators_model_type"), r"'speculators_model_type' is missing"),
        (SPECULATORS | {"speculators_model_type": "dflash"}, r"'speculators_model_type' is 'dflash', .* 'dspark'"),
        (
            less(SPECULATORS, "sliding_window_non_causal")
            | inner(layer_types=["sliding_attention"] * 3, sliding_window=8),
            r"'sliding_window_non_causal' is missing",
        ),
        # Backbones and heads that are not supported
        (DEEPSPEC | {"markov_head_type": "lstm"}, r"'markov_head_type' is 'lstm', .*'rnn'"),
        (DEEPSPEC | {"layer_types": ["sliding_attention"] * 3}, r"'layer_types' holds 'sliding_attention'"),
        (SPECULATORS | inner(layer_types=["chunked"] * 3), r"'layer_types' holds 'chunked'"),
        (SPECULATORS | inner(layer_types=["full_attention"]), r"'transformer_layer_config.layer_types' .* 3 kinds"),
        (SPECULATORS | inner(layer_types=["sliding_attention"] * 3), r"_config.sliding_window' is missing"),
        (SPECULATORS | inner(model_type="llama"), r"'transformer_layer_config.model_type' is 'llama', .*'qwen3'"),
        (SPECULATORS | {"transformer_layer_config": 3}, r"'transformer_layer_config' is 3, expected an object"),
        (DEEPSPEC | {"architectures": ["Gemma4DSparkModel"]}, r"'architectures' is 'Gemma4DSparkModel'"),
        (DEEPSPEC | {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, r"rotary type is 'yarn'"),
        (DEEPSPEC | {"attention_bias": True}, r"'attention_bias' is True"),
        # Taps, blocks, vocabularies
        (DEEPSPEC | {"target_layer_ids": [-2, 1, 2]}, r"'target_layer_ids' is \[-2, 1, 2\], .* from -1 on"),
        (DEEPSPEC | {"target_layer_ids": [1, 1, 2]}, r"'target_layer_ids' is \[1, 1, 2\], .*different"),
        (SPECULATORS | {"aux_hidden_state_layer_ids": [-1, 2]}, r"ids' is \[-1, 2\], .* from 0 on \(0 is the embed"),
        (DEEPSPEC | {"block_size": 0}, r"'block_size' is 0"),
        (SPECULATORS | {"block_size": 8}, r"'block_size' is 8 and 'speculators_config' proposes 7 tokens"),
        (DEEPSPEC | {"mask_token_id": V}, r"'mask_token_id' is 270, outside 270"),
        (SPECULATORS | {"draft_vocab_size": V + 1}, r"'draft_vocab_size' is 271, expected at most .* 270"),
        (SPECULATORS | {"target_hidden_size": 128}, r"'target_hidden_size' is 128, expected .* 64"),
    ],
)  # fmt: skip
def test_dense_faults_of_a_config(tmp_path: Path, raw: dict[str, Any], words: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ModelError, match=words):
        dspark.describe(dspark.Options(), Site(model=tmp_path))


def rewritten(folder: Path, change: dict[str, Any]) -> None:
    """The folder's tensors with these replaced, or taken away (None)."""
    file = folder / "model.safetensors"
    stored = mx.load(str(file))
    assert isinstance(stored, dict)
    kept = {n: mx.array(a) for n, a in (stored | change).items() if a is not None}
    mx.eval(list(kept.values()))
    mx.save_safetensors(str(file), kept)


ARANGE = np.arange(REDUCED, dtype=np.int64)
PART = {"draft_vocab_size": REDUCED}
W2, GATE, JOINT = (f"markov_head.{name}" for name in ("markov_w2.weight", "gate_proj.bias", "joint_proj.bias"))


@pytest.mark.parametrize(
    ("base", "keys", "change", "words"),
    [
        (DEEPSPEC, {}, {W2: np.zeros((V, 8), np.int32)}, r"w2.weight' is I32, expected BF16"),
        (DEEPSPEC, {}, {"confidence_head.proj.weight": np.zeros((1, 72), np.uint8)}, r"weight' is U8, expected BF16"),
        (DEEPSPEC, {}, {"lm_head.weight": None}, r"'lm_head.weight' is missing, expected shape \[270, 64\]"),
        (DEEPSPEC, {}, {"fc.weight": np.zeros((64, 128), np.float32)}, r"has shape \[64, 128\], .*\[64, 192\]"),
        (DEEPSPEC, {}, {GATE: np.zeros(8, np.float32)},
         r"holds 'markov_head.gate_proj.bias', of which config.json says nothing \(markov_head_type 'vanilla'"),
        (DEEPSPEC, {}, {"layers.3.mlp.up_proj.weight": np.zeros((96, 64), np.float32)},
         r"holds 'layers.3.mlp.up_proj.weight', .* 3 layers\)"),
        (SPECULATORS, {"markov_head_type": "rnn"}, {JOINT: None}, r"'markov_head.joint_proj.bias' is mis"),
        (SPECULATORS, PART, {"lm_head.weight": None}, r"'lm_head.weight' is missing, .*\[101, 64\]"),
        (SPECULATORS, PART, {"d2t": None}, r"101 of 270 tokens needs the tensor 'd2t', which is mis"),
        (SPECULATORS, PART, {"d2t": ARANGE[:-1]}, r"'d2t', which is int64 \[100\]"),
        (SPECULATORS, PART, {"d2t": ARANGE * 9}, r"'d2t' leads to tokens 0\.\.1000, .*0\.\.269"),
        (SPECULATORS, PART, {"d2t": -ARANGE}, r"tokens 0\.\.0, 1 different ones; expected 101"),
        (SPECULATORS, PART, {"t2d": np.arange(V) < 9}, r"'t2d' \[270\] marks 9 tokens"),
        (SPECULATORS, PART, {"d2t": 0 * ARANGE}, r"not the 101 that 'd2t' leads to"),
    ],
)  # fmt: skip
def test_dense_faults_of_tensors(
    tmp_path: Path, base: dict[str, Any], keys: dict[str, Any], change: dict[str, Any], words: str
) -> None:
    _, weights = made(tmp_path, base, **keys)
    dspark.build(dspark.Options(), Site(model=tmp_path, resources=lent(weights)))
    rewritten(tmp_path, change)
    with pytest.raises(SparkwrightError, match=words):
        dspark.build(dspark.Options(), Site(model=tmp_path, resources=lent(weights)))


def test_a_target_that_lends_nothing_and_a_calibration_of_another_block(tmp_path: Path) -> None:
    _, weights = made(tmp_path, SPECULATORS)
    with pytest.raises(AssemblyError, match=r"no 'embed_tokens.weight' and this target lends none"):
        dspark.build(dspark.Options(), Site(model=tmp_path))
    curves = CostCurves(1.0, (1.0,) * 8, 0.3, temperatures=(1.0, 2.0))
    with pytest.raises(AssemblyError, match=r"blocks of 7 .* 2 temperatures"):
        dspark.build(dspark.Options(), Site(model=tmp_path, resources=lent(weights), costs=curves))


@pytest.mark.parametrize(
    ("base", "keys", "words"),
    [
        (DEEPSPEC, {"hidden_size": 32}, r"with hidden size 32, and this target's hidden size is 64"),
        (DEEPSPEC, {"num_target_layers": 36}, r"with number of layers 36, and this target's number of layers is 4"),
        (DEEPSPEC, {"target_layer_ids": [1, 9, 17]}, r"reads the outputs of layers \[9, 17\], .* has layers 0\.\.3"),
        (DEEPSPEC, {"vocab_size": 300}, r"'dspark' has a vocabulary of 300 tokens, target 'mlx_lm' of 270"),
        (SPECULATORS, inner(vocab_size=300) | {"draft_vocab_size": 300}, r"vocabulary of 300 tokens, .* of 270"),
        (SPECULATORS, {"aux_hidden_state_layer_ids": [0, 2, 4]}, r"holds 4, after which this target of 4 layers ends"),
    ],
)
def test_a_dense_drafter_of_another_target(
    tmp_path: Path, base: dict[str, Any], keys: dict[str, Any], words: str
) -> None:
    target = mlx_lm_tiny.make(tmp_path / "target", "qwen3")
    made(tmp_path / "drafter", base, **keys)
    settings = {
        "target": {"use": "mlx_lm", "model": str(target)},
        "drafter": {"use": "dspark", "model": str(tmp_path / "drafter")},
    }
    with pytest.raises(AssemblyError, match=words):
        engine(target, settings).close()


def test_a_config_as_its_trainer_writes_it_is_read(tmp_path: Path) -> None:
    """The target's Qwen3 config copied, with DeepSpec's keys on top (its `dspark/qwen3/config.py`), in transformers 5's
    spelling of the rotary base and in that of version 4."""
    written = {
        "architectures": ["Qwen3DSparkModel"], "attention_bias": False, "attention_dropout": 0.0, "block_size": 7,
        "bos_token_id": 151643, "confidence_head_with_markov": True, "dtype": "bfloat16",
        "enable_confidence_head": True, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "hidden_size": 2560, "initializer_range": 0.02, "intermediate_size": 9728,
        "layer_types": ["full_attention"] * 5,
        "markov_head_type": "vanilla", "markov_rank": 256, "mask_token_id": 151669, "max_position_embeddings": 40960,
        "max_window_layers": 36, "model_type": "qwen3", "num_anchors": 512, "num_attention_heads": 32,
        "num_hidden_layers": 5, "num_key_value_heads": 8, "num_target_layers": 36, "pad_token_id": None,
        "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
        "sliding_window": None, "target_layer_ids": [1, 9, 17, 25, 33], "tie_word_embeddings": False,
        "transformers_version": "5.10.2", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
    }  # fmt: skip
    file = tmp_path / "config.json"
    file.write_text(json.dumps(written))
    config = read_config(tmp_path)
    assert (config.block, config.layers, config.target_layers, config.taps) == (7, 5, 36, (1, 9, 17, 25, 33))
    assert (config.rope_theta, config.context, config.rank, config.lent) == (1e6, 40960, 256, False)
    assert expected(config)["fc.weight"] == (2560, 5 * 2560)
    older = {key: value for key, value in written.items() if key != "rope_parameters"}
    file.write_text(json.dumps(older | {"rope_theta": 1000000, "rope_scaling": None}))
    assert read_config(tmp_path) == config
    file.write_text(json.dumps({k: v for k, v in written.items() if k != "markov_head_type"} | {"markov_rank": 0}))
    with pytest.raises(ModelError, match="'markov_rank' is 0, expected a whole number from 1 on"):
        read_config(tmp_path)
