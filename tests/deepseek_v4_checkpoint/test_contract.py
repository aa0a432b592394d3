"""The tensor contract: the releases' totals, and every way in which a checkpoint can fail to meet it."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deepseek_v4_checkpoint import tinyq

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4.checkpoint import examine, open_checkpoint
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.contract import expected, total_bytes
from sparkwright.plugins.deepseek_v4.tools import inspect

FLASH: dict[str, Any] = tinyq.CONFIG | {
    "vocab_size": 129280,
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0, 0, 0],
    "max_position_embeddings": 1048576,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 2048,
    "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [40, 41, 42],
    "dspark_markov_rank": 256,
}
PRO: dict[str, Any] = FLASH | {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "q_lora_rank": 1536,
    "o_groups": 16,
    "compress_ratios": [128, 128, *[4, 128] * 29, 4, 0, 0, 0],
    "index_topk": 1024,
    "n_routed_experts": 384,
    "moe_intermediate_size": 3072,
    "routed_scaling_factor": 2.5,
    "dspark_target_layer_ids": [58, 59, 60],
    "dspark_markov_rank": 512,
}


@pytest.mark.parametrize(
    ("raw", "tensors", "size", "drafter_tensors", "drafter_size"),
    [
        (FLASH, 72_317, 166_878_536_440, 4_705, 10_862_838_300),
        (PRO, 149_782, 892_727_580_904, 7_009, 41_979_375_900),
    ],
    ids=["Flash-0731", "Pro-0813"],
)
def test_the_contract_reproduces_the_published_totals(
    raw: dict[str, Any], tensors: int, size: int, drafter_tensors: int, drafter_size: int
) -> None:
    wanted = expected(ModelConfig.from_json(raw), stages=3)
    assert (len(wanted), total_bytes(wanted)) == (tensors, size)
    drafter = {name: entry for name, entry in wanted.items() if name.startswith("mtp.")}
    assert (len(drafter), total_bytes(drafter)) == (drafter_tensors, drafter_size)


def test_the_contract_lists_what_an_independent_writer_writes() -> None:
    raw, _ = tinyq.make()
    wanted = expected(ModelConfig.from_json(tinyq.CONFIG), stages=3)
    assert wanted == {name: (dtype, array.shape) for name, (dtype, array) in raw.items()}


def test_missing_extra_and_misshapen_tensors_are_listed(tmp_path: Path) -> None:
    raw, _ = tinyq.make(drafter=False)
    del raw["layers.3.attn.wq_a.scale"], raw["layers.0.attn_norm.weight"], raw["layers.1.ffn.experts.5.w2.weight"]
    raw["layers.2.attn.rotary"] = ("F32", np.zeros(3, np.float32))
    raw["layers.4.attn.wkv.weight"] = ("I32", np.zeros((128, 256), np.int32))
    raw["layers.5.attn.wo_b.scale"] = ("F8_E8M0", np.zeros((1, 2), np.uint8))
    raw["layers.5.attn.wkv.scale"] = ("F32", np.ones((1, 2), np.float32))
    raw["norm.weight"] = ("I8", np.zeros(256, np.int8))
    raw["layers.6.ffn.experts.7.w1.weight"] = ("I8", np.zeros((128, 64), np.int8))
    tinyq.save(tmp_path, raw, {k: v for k, v in tinyq.CONFIG.items() if not k.startswith(("dspark", "num_nextn"))})
    report = examine(tmp_path).report
    assert set(report.missing) == {
        "layers.3.attn.wq_a.scale",
        "layers.0.attn_norm.weight",
        "layers.1.ffn.experts.5.w2.weight",
    }
    assert report.extra == ("layers.2.attn.rotary",)
    assert set(report.misshapen) == {
        "'layers.4.attn.wkv.weight': found I32 [128, 256], expected F8_E4M3 [128, 256]",
        "'layers.5.attn.wo_b.scale': found F8_E8M0 [1, 2], expected F8_E8M0 [2, 2]",
        "'layers.5.attn.wkv.scale': found F32 [1, 2], expected F8_E8M0 [1, 2]",
        "'norm.weight': found I8 [256], expected BF16 [256]",
        "'layers.6.ffn.experts.7.w1.weight': found I8 [128, 64], expected I8 [128, 128]",
    }
    with pytest.raises(ModelError, match=r"3 tensors are missing: .*; 5 tensors are not as expected"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("drop", "change", "tensor", "message"),
    [
        ("compress_ratios", {}, None, "'compress_ratios' is missing"),
        (None, {"model_type": "deepseek_v41"}, None, "DeepSeek-V4.1"),
        (None, {}, "layers.0.engram.table", "this is DeepSeek-V4.1"),
        (None, {}, "mtp.0.e_proj.weight", "NextN head"),
        (None, {}, "layers.3.ffn.gate.bias_vl", "vision release"),
        ("dspark_block_size", {}, None, "NextN head"),
        (None, {"dspark_target_layer_ids": [5, 6], "compress_ratios": [0, 0, 4, 128, 4, 128, 4, 0, 0]}, None,
         "3 drafter stages .* names 2 tap layers"),
        (None, {}, "mtp.4.norm.weight", r"stages \[3\] have no 'mtp.\*' tensor"),
        (None, {"hidden_size": 1 << 30}, None, "'hidden_size' is 1073741824"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_by_name(
    tmp_path: Path, drop: str | None, change: dict[str, Any], tensor: str | None, message: str
) -> None:
    raw, _ = tinyq.make()
    if tensor is not None:
        raw[tensor] = ("F32", np.zeros(4, np.float32))
    tinyq.save(tmp_path, raw, {key: value for key, value in tinyq.CONFIG.items() if key != drop} | change)
    with pytest.raises(ModelError, match=message) as error:
        open_checkpoint(tmp_path)
    assert "\n" not in str(error.value)


def test_a_drafter_without_its_keys_is_refused(tmp_path: Path) -> None:
    raw, _ = tinyq.make()
    tinyq.save(tmp_path, raw, {k: v for k, v in tinyq.CONFIG.items() if not k.startswith(("dspark", "num_nextn"))})
    with pytest.raises(
        ModelError, match=r"holds 'mtp\.\*' tensors and its config\.json has no 'dspark_\*' keys; restore"
    ):
        open_checkpoint(tmp_path)


def test_no_config_and_no_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json: cannot be read"):
        examine(tmp_path)
    with pytest.raises(ModelError, match="no such directory"):
        examine(tmp_path / "absent")
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelError, match="found a JSON list"):
        examine(tmp_path)


ODD: list[Any] = [None, True, False, 0, 1, -1, 2, 3, 7, 1 << 70, 1 << 22, 1e308, float("nan"), 0.5, "", "x", [], [1],
                  ["a"], [None], {}, {"a": 1}, [[1]], -5, "yarn", [0, 0, 4, 128, 4, 128, 4]]  # fmt: skip


def test_no_config_whatever_gives_anything_but_a_report_or_a_model_error(tmp_path: Path) -> None:
    """250 configs with one to three keys of odd values, seen through the whole of `inspect`."""
    tinyq.write(tmp_path)
    rng, read = random.Random(3), 0
    for _ in range(250):
        config = copy.deepcopy(tinyq.CONFIG)
        for _ in range(rng.randint(1, 3)):
            where = config["rope_scaling"] if rng.random() < 0.1 and config["rope_scaling"] else config
            if isinstance(where, dict):
                where[rng.choice(list(where))] = rng.choice(ODD)
        if rng.random() < 0.1:
            config["model_type"] = "deepseek_v4_dspark"
        (tmp_path / "config.json").write_text(json.dumps(config))
        try:
            inspect(tmp_path, "cpu")
            read += 1
        except ModelError as error:
            assert "\n" not in str(error)
    assert 5 < read < 200
