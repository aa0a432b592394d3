"""DSpark in the engine: texts are those of plain decoding, transfers are counted, misfits are refused by name."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tests.core.engines import rounds_observer
from tests.dspark.folders import engine, write_folder
from tests.dspark.tiny import SPARK, TAPS, spark_weights

from sparkwright.core.errors import AssemblyError, ModelError
from sparkwright.core.generation import RoundTrace
from sparkwright.core.plugins import discover

SAMPLED = {"sampler": {"use": "chain", "chain": {"temperature": 1.0, "top_p": 0.9}}}
SHORT: dict[str, Any] = {"generation": {"max_tokens": 16}}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "fixed": {"use": "fixed"},
    "threshold": {"use": "threshold", "threshold": {"confidence": 0.3}},
    "cost_aware": {"use": "cost_aware"},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tiny-spark"), SPARK, spark_weights(SPARK, 1))


def prompt(seed: int, length: int = 21) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(2, 256, length)]


def run(
    model: Path, settings: dict[str, Any], seeds: list[int], prompts: Callable[[int], list[int]] = prompt
) -> tuple[list[tuple[int, ...]], list[RoundTrace]]:
    observer, seen = rounds_observer()
    catalogue = discover().with_providers(observer)
    with engine(model, settings | {"observers": {"use": ["rounds"]}}, catalogue) as running:
        texts = [tuple(running.complete(prompts(seed), seed=seed).tokens) for seed in seeds]
    return texts, seen


def bit_equal_rows() -> None:
    assert not hasattr(ctypes.CDLL(None), "openblas_get_config"), "OpenBLAS rounds one row and several differently"


def test_greedy_text_is_that_of_plain_decoding_whatever_the_scheduler(model: Path) -> None:
    bit_equal_rows()
    plain, _ = run(model, {"drafter": {"use": "none"}} | SHORT, [0])
    for scheduler in SCHEDULERS.values():
        texts, seen = run(model, {"scheduler": scheduler} | SHORT, [0])
        assert texts == plain
        assert any(r.drafted for r in seen)


@pytest.mark.parametrize("proposal", ["dense", pytest.param("point", marks=pytest.mark.exact)])
def test_coupled_text_at_temperature_1_is_that_of_plain_decoding(model: Path, proposal: str) -> None:
    bit_equal_rows()
    plain, _ = run(model, SAMPLED | {"drafter": {"use": "none"}, "verifier": {"use": "coupled"}} | SHORT, [3])
    drafter = {"use": "dspark", "dspark": {"proposal": proposal}}
    texts, seen = run(model, SAMPLED | {"drafter": drafter, "verifier": {"use": "coupled"}} | SHORT, [3])
    assert texts == plain
    assert sum(r.drafted for r in seen) > 20


@pytest.mark.parametrize(("scheduler", "transfers"), [("fixed", 1), ("threshold", 2)])
def test_a_round_reads_the_device_once_and_once_more_for_confidences(
    model: Path, scheduler: str, transfers: int
) -> None:
    settings = SAMPLED | {"verifier": {"use": "stochastic"}, "scheduler": SCHEDULERS[scheduler]}
    _, seen = run(model, settings, [5])
    drafted = [r for r in seen if r.drafted and not r.repeated]
    assert len(drafted) > 10
    assert {r.transfers for r in drafted} == {transfers}


def test_own_temperature_and_filters_are_the_law_of_the_drafts(model: Path) -> None:
    drafter = {"use": "dspark", "dspark": {"temperature": 0.7, "top_k": 8, "top_p": 0.9}}
    texts, seen = run(model, SAMPLED | {"drafter": drafter, "verifier": {"use": "stochastic"}}, [6])
    assert len(texts[0]) == 40 and any(r.drafted == 5 for r in seen)
    assert all(0.0 <= c <= 1.0 for r in seen for c in r.confidences)


def refused(model: Path, settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        engine(model, settings)


def test_misfits_are_refused_with_both_sides_named(model: Path, tmp_path: Path) -> None:
    def other(name: str, **keys: Any) -> str:
        raw = SPARK | keys
        return str(write_folder(tmp_path / name, raw, spark_weights(raw, 2)))

    def with_model(path: str, **more: Any) -> dict[str, Any]:
        return {"drafter": {"use": "dspark", "model": path} | more}

    narrow = other("narrow", hidden_size=32, head_dim=16)
    refused(model, with_model(narrow), AssemblyError, r"dspark .*narrow.* hidden size 32, .*hidden size is 64")
    words = other("words", vocab_size=300, dspark_noise_token_id=299)
    refused(model, with_model(words), AssemblyError, r"'dspark' has a vocabulary of 300 .*'deepseek_v4' of 257")
    filters = {"use": "dspark", "dspark": {"top_k": 5}}
    refused(model, {"drafter": filters}, AssemblyError, r"top_k and top_p are set and temperature is 'match'")
    bare = {k: v for k, v in SPARK.items() if not k.startswith("dspark")} | {
        "compress_ratios": SPARK["compress_ratios"][:7]
    }
    weights = {n: a for n, a in spark_weights(SPARK, 1).items() if not n.startswith("mtp.")}
    folder = write_folder(tmp_path / "bare", bare, weights)
    refused(folder, {}, ModelError, r"holds no DSpark drafter")


def test_a_drafter_of_its_own_folder_drafts_the_same(model: Path, tmp_path: Path) -> None:
    bit_equal_rows()
    copy = write_folder(tmp_path / "copy", SPARK, spark_weights(SPARK, 1))
    inside, a = run(model, SHORT, [7])
    outside, b = run(model, {"drafter": {"use": "dspark", "model": str(copy)}} | SHORT, [7])
    assert inside == outside
    assert [r.accepted for r in a] == [r.accepted for r in b]


def test_a_calibration_of_another_block_is_refused(model: Path) -> None:
    from sparkwright.core.contracts import CostCurves, Resources, Site
    from sparkwright.plugins.deepseek_v4.checkpoint import open_checkpoint
    from sparkwright.plugins.deepseek_v4.model import Lent
    from sparkwright.plugins.deepseek_v4.weights import CheckpointWeights
    from sparkwright.plugins.drafters import dspark

    checkpoint = open_checkpoint(model)
    lent = Lent(checkpoint, checkpoint.config, CheckpointWeights(checkpoint))
    curves = CostCurves(1.0, (1.0,) * 8, 0.3, temperatures=(1.0, 2.0))
    site = Site(model=model, costs=curves, taps=TAPS, resources=Resources(lambda x: x, lambda x: x, lent))
    with pytest.raises(AssemblyError, match=r"blocks of 5 .* 2 temperatures"):
        dspark.build(dspark.Options(), site)
    with pytest.raises(AssemblyError, match=r"lends no DeepSeek-V4 checkpoint"):
        dspark.build(dspark.Options(), attrs.evolve(site, resources=Resources(lambda x: x, lambda x: x)))
