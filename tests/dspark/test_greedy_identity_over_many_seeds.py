"""Greedy text with a random drafter is plain decoding's: 200 tokens, 20 seeds, every scheduler.

The target is as small as one can be that has both compression ratios, an indexer and routed experts: what is tested are
rounds and rollbacks, thousands of them. Its vocabulary is small so that a random drafter is sometimes right.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.dspark.folders import write_folder
from tests.dspark.test_engine_drafts_with_dspark import SCHEDULERS, bit_equal_rows, run
from tests.dspark.tiny import SPARK, spark_weights

pytestmark = pytest.mark.exact

SMALLEST: dict[str, Any] = SPARK | {
    "vocab_size": 13,
    "num_hidden_layers": 2,
    "compress_ratios": [4, 128, 0],
    "num_hash_layers": 0,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "head_dim": 16,
    "q_lora_rank": 16,
    "o_groups": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 1,
    "dspark_target_layer_ids": [1],
    "dspark_block_size": 3,
    "dspark_noise_token_id": 12,
}
LENGTH = {"generation": {"max_tokens": 200, "ignore_eos": True}}
SEEDS = range(20)
Texts = list[tuple[int, ...]]


def prompt(seed: int) -> list[int]:
    """Lengths from 2 to 21: windows of 4 are at every phase when decoding begins."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, 12, 2 + seed)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("smallest"), SMALLEST, spark_weights(SMALLEST, 1))


@pytest.fixture(scope="module")
def plain(model: Path) -> Texts:
    bit_equal_rows()
    texts, _ = run(model, {"drafter": {"use": "none"}} | LENGTH, list(SEEDS), prompt)
    assert all(len(text) == 200 for text in texts)
    assert len({text[-30:] for text in texts}) > 10  # not one loop that all of them fall into
    return texts


@pytest.mark.parametrize("scheduler", list(SCHEDULERS))
def test_text_is_that_of_plain_decoding(model: Path, plain: Texts, scheduler: str) -> None:
    texts, seen = run(model, {"scheduler": SCHEDULERS[scheduler]} | LENGTH, list(SEEDS), prompt)
    assert texts == plain
    sizes = Counter(r.accepted for r in seen if r.submitted)
    assert sum(sizes.values()) > 100 and sizes[0] and sizes[1]  # commits of several sizes
