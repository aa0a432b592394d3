"""Reading: every layout gives the containers a model asks for, with exactly the values that are stored."""

from __future__ import annotations

import threading
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.deepseek_v4_checkpoint import conversions, tinyq
from tests.deepseek_v4_checkpoint.tinyq import Oracle

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4 import memory
from sparkwright.plugins.deepseek_v4.checkpoint import Checkpoint, open_checkpoint
from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear
from sparkwright.plugins.deepseek_v4.weights import CheckpointWeights, should_expand

WITHOUT_DRAFTER = {k: v for k, v in tinyq.CONFIG.items() if not k.startswith(("dspark", "num_nextn"))}


def values(linear: Linear) -> NDArray[np.float64]:
    """A container's values by MLX's own decoding, in float32 (exact for the mx forms)."""
    if linear.mode == "dense":
        return np.array(linear.weight.astype(mx.float32)).astype(np.float64)
    scales, biases = linear.scales, linear.biases
    assert scales is not None
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    made = mx.dequantize(
        linear.weight, scales, biases, linear.group_size, linear.bits, mode=linear.mode, dtype=mx.float32
    )
    return np.array(made).astype(np.float64)


def stacked(exact: Oracle) -> Oracle:
    """The oracle's experts stacked under the bank's name."""
    out = {name: array for name, array in exact.items() if ".experts." not in name or "shared" in name}
    for name in exact:
        if ".experts.0." in name and "shared" not in name:
            banked = [exact[name.replace(".experts.0.", f".experts.{e}.")] for e in range(8)]
            out[name.replace(".experts.0.", ".experts.")] = np.stack(banked)
    return out


def assert_reads(checkpoint: Checkpoint, exact: Oracle, expand: bool, rounding: float = 0.0) -> dict[str, Linear]:
    """Everything the contract asks for is there with the oracle's values; returns the matrices."""
    weights = CheckpointWeights(checkpoint, expand=expand)
    linears: dict[str, Linear] = {}
    banks: dict[str, ExpertBank] = {}
    for name, stored in checkpoint.stored.items():
        kind = stored.parameter.kind
        if kind == "plain":
            array = weights.array(name, "int32" if name.endswith("tid2eid") else "float32")
            assert np.array_equal(np.array(array).astype(np.float64), exact[name]), name
            continue
        if kind == "matrix":
            linears[name] = weights.linear(name)
        else:
            prefix, _, which = name.partition(".experts.")
            if prefix not in banks:
                banks[prefix] = weights.experts(prefix)
            linears[name] = getattr(banks[prefix], which)
        found, wanted = values(linears[name]), exact[f"{name}.weight"]
        assert found.shape == wanted.shape, name
        assert np.abs(found - wanted).max() <= rounding * np.abs(wanted).max(), name
        assert not expand or linears[name].format == "float32"
    return linears


@pytest.mark.parametrize("expand", [False, True], ids=["packed", "expanded"])
def test_the_official_layout_is_read_bit_for_bit(tmp_path: Path, expand: bool) -> None:
    exact = tinyq.write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.layout, checkpoint.variant, checkpoint.stages) == ("official, FP8 and FP4", "DSpark", 3)
    linears = assert_reads(checkpoint, stacked(exact), expand)
    if not expand:
        formats = {name: linear.format for name, linear in linears.items()}
        assert formats["layers.0.ffn.experts.w1"] == formats["mtp.2.ffn.experts.w2"] == "mxfp4"
        assert formats["layers.0.attn.wq_a"] == formats["mtp.0.main_proj"] == "mxfp8"
        assert formats["embed"] == formats["layers.2.attn.compressor.wkv"] == "bfloat16"


def test_official_codes_and_scales_are_moved_not_decoded(tmp_path: Path) -> None:
    """Codes that no decoder survives (both NaN, both zeros, scales 0, 254 and 255) arrive as they were."""
    raw, _ = tinyq.make(drafter=False)
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 256, (128, 256), dtype=np.uint8)
    scales = np.array([[255, 0]], np.uint8)
    raw["layers.0.attn.wq_a.weight"], raw["layers.0.attn.wq_a.scale"] = ("F8_E4M3", codes), ("F8_E8M0", scales)
    nibbles = rng.integers(0, 256, (128, 128), dtype=np.uint8)
    groups = rng.choice(np.array([0, 1, 127, 254, 255], np.uint8), (128, 8))
    raw["layers.1.ffn.experts.3.w3.weight"] = ("I8", nibbles)
    raw["layers.1.ffn.experts.3.w3.scale"] = ("F8_E8M0", groups)
    weights = CheckpointWeights(open_checkpoint(tinyq.save(tmp_path, raw, WITHOUT_DRAFTER)))
    dense, bank = weights.linear("layers.0.attn.wq_a"), weights.experts("layers.1.ffn").w3
    assert dense.scales is not None and bank.scales is not None
    assert np.array_equal(np.array(dense.weight).view(np.uint8), codes)
    assert np.array_equal(np.array(dense.scales), np.repeat(np.repeat(scales, 128, 0), 4, 1))
    assert np.array_equal(np.array(bank.weight[3]).view(np.uint8), nibbles)
    assert np.array_equal(np.array(bank.scales[3]), groups)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_floats_in_official_names_are_read_exactly(tmp_path: Path, dtype: str) -> None:
    _, exact = tinyq.make()
    tinyq.save(tmp_path, tinyq.as_floats(exact, dtype), shards=2)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.layout == f"official names, {'F32' if dtype == 'F32' else '16-bit'} floats"
    linears = assert_reads(checkpoint, stacked(exact), expand=False)
    assert {linear.format for linear in linears.values()} == {"float32" if dtype == "F32" else "bfloat16"}
    assert CheckpointWeights(checkpoint, device="metal").activation == ("float32" if dtype == "F32" else "bfloat16")
    assert CheckpointWeights(checkpoint, device="cpu").activation == "float32"


@pytest.mark.parametrize(
    ("style", "experts", "dense", "vocabulary"),
    [
        ("mlx-lm", "mxfp4", "mxfp8", "bfloat16"),
        ("mlx-vlm", "mxfp4", "mxfp8", "affine8"),
        ("mlx-lm", "affine3", "affine8", "affine4"),
        ("mlx-vlm", "affine2", "bfloat16", "affine8"),
        ("mlx-lm", "affine4", "affine4", "bfloat16"),
    ],
)
def test_mlx_conversions_are_read_as_they_are(
    tmp_path: Path, style: str, experts: str, dense: str, vocabulary: str
) -> None:
    _, exact = tinyq.make()
    raw, meant = conversions.convert(exact, style, experts, dense, vocabulary)
    checkpoint = open_checkpoint(tinyq.save(tmp_path, raw))
    assert checkpoint.layout == "MLX, quantised"
    rounding = 1e-6  # affine: float32 rounds scale * code + bias where the oracle does not
    linears = assert_reads(checkpoint, meant, expand=False, rounding=rounding)
    assert linears["layers.3.ffn.experts.w1"].format == experts
    assert linears["layers.3.attn.wo_a"].format == dense
    assert linears["layers.3.attn.wo_a"].weight.ndim == 2
    assert linears["head"].format == vocabulary
    assert_reads(checkpoint, meant, expand=True, rounding=rounding)
    embed = CheckpointWeights(checkpoint).array("embed.weight", "float32")
    assert np.abs(np.array(embed) - meant["embed.weight"]).max() <= rounding * np.abs(meant["embed.weight"]).max()


def test_a_drafter_on_its_own_is_read_under_the_official_names(tmp_path: Path) -> None:
    """mlx-vlm splits it off: `stages.*`, the Markov head without a stage, no confidence head, a config of its own."""
    _, exact = tinyq.make()
    raw, meant = conversions.convert(exact, "drafter", "mxfp4", "mxfp8")
    raw = {n: t for n, t in raw.items() if n.startswith(("stages.", "markov_head.")) and "confidence_head" not in n}
    text = {key: value for key, value in tinyq.CONFIG.items() if not key.startswith("dspark")}
    config = {
        "model_type": "deepseek_v4_dspark",
        "text_config": text,
        "block_size": 6,
        "mask_token_id": 256,
        "markov_rank": 32,
        "target_layer_ids": [4, 5, 6],
    }
    checkpoint = open_checkpoint(tinyq.save(tmp_path, raw, config))
    assert (checkpoint.variant, checkpoint.stages, checkpoint.confidence) == ("drafter only", 3, False)
    assert checkpoint.config.dspark is not None and checkpoint.config.dspark.block_size == 5
    linears = assert_reads(checkpoint, meant, expand=False)
    assert "mtp.2.markov_head.markov_w1" in linears and "embed" not in linears


def test_a_checkpoint_without_drafter_is_a_target(tmp_path: Path) -> None:
    exact = tinyq.write(tmp_path, drafter=False)
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.variant, checkpoint.stages, checkpoint.config.dspark) == ("target only", 0, None)
    assert_reads(checkpoint, stacked(exact), expand=False)


def test_names_that_are_not_there_are_refused_with_a_suggestion(tmp_path: Path) -> None:
    tinyq.write(tmp_path)
    weights = CheckpointWeights(open_checkpoint(tmp_path))
    with pytest.raises(ModelError, match=r"no matrix 'layers\.0\.attn\.w_kv'; did you mean 'layers\.0\.attn\.wkv'"):
        weights.linear("layers.0.attn.w_kv")
    for ask in (lambda: weights.array("layers.9.attn_norm.weight", "float32"), lambda: weights.experts("layers.9.ffn")):
        with pytest.raises(ModelError, match="holds no"):
            ask()


def test_arrays_come_evaluated_and_may_cross_threads(tmp_path: Path) -> None:
    tinyq.write(tmp_path)
    weights = CheckpointWeights(open_checkpoint(tmp_path))
    bank = weights.experts("layers.0.ffn")
    arrays = [weights.linear("head").weight, weights.array("norm.weight", "float32"), bank.w1.weight]
    failures: list[BaseException] = []

    def use() -> None:
        try:
            mx.eval([array.astype(mx.float32).sum() for array in arrays])
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert not failures


def test_what_does_not_fit_is_refused_by_how_much_before_it_is_read(tmp_path: Path) -> None:
    tinyq.write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    need = memory.needed(checkpoint.stored.values(), expand=False)
    # Packed it is about as large as its files: scales of FP8 grow, tables shrink to 32 bits.
    assert 0.9 * checkpoint.nbytes < need.weights < 1.1 * checkpoint.nbytes
    memory.refuse_if_too_large("x", need, "cpu", there=need.peak)
    with pytest.raises(ModelError, match=r"^x: loading needs .* and cpu has .*, 1\.00 GiB too little; .*--force"):
        memory.refuse_if_too_large("x", need, "cpu", there=need.peak - memory.GIB)
    memory.refuse_if_too_large("x", need, "cpu", force=True, there=0)
    expanded = memory.needed(checkpoint.stored.values(), expand=True)
    elements = sum(array.size for array in tinyq.make()[1].values())
    assert expanded.weights == 4 * elements
    assert memory.present("cpu") is not None


def test_expansion_is_for_the_cpu_and_for_what_fits_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tinyq.write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    peak = memory.needed(checkpoint.stored.values(), expand=True).peak
    monkeypatch.setattr("sparkwright.plugins.deepseek_v4.weights.present", lambda device: 2 * peak)
    assert should_expand("auto", checkpoint, "cpu") and not should_expand("auto", checkpoint, "metal")
    monkeypatch.setattr("sparkwright.plugins.deepseek_v4.weights.present", lambda device: 2 * peak - 2)
    assert not should_expand("auto", checkpoint, "cpu")
    assert should_expand("on", checkpoint, "metal") and not should_expand("off", checkpoint, "cpu")


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    tinyq.write(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    seen: list[int] = []
    weights = CheckpointWeights(checkpoint, progress=seen.append)
    for name, stored in checkpoint.stored.items():
        if stored.parameter.kind == "plain":
            weights.array(name, "float32")
        elif stored.parameter.kind == "matrix":
            weights.linear(name)
        elif name.endswith("w1"):
            weights.experts(name.partition(".experts.")[0])
    assert seen[-1] == checkpoint.nbytes and seen == sorted(seen)
