"""Single ops against definitions written out here: selection with ties, rotary tables, routing, hyper-connections."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4 import tiny
from tests.oracles import deepseek_v4_numpy as oracle

from sparkwright.plugins.deepseek_v4 import ops, reference
from sparkwright.plugins.deepseek_v4.config import ModelConfig, Yarn
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.deepseek_v4.rotary import angles, frequencies


def best(scores: np.ndarray, k: int) -> list[int]:
    """Indices of the k largest, the lower index on ties, ascending."""
    return sorted(np.argsort(-scores, kind="stable")[:k].tolist())


@pytest.mark.parametrize("k", [1, 3, 8, 16])
def test_top_k_is_exact_and_ties_go_to_the_lower_row(k: int) -> None:
    rng = np.random.default_rng(k)
    scores = rng.integers(-2, 3, (40, 16)).astype(np.float32)  # five values: ties everywhere
    scores[0] = 0.0
    scores[1, ::2] = -0.0  # equal to 0
    chosen = np.array(reference.compact(reference.top_mask(mx.array(scores), k), k))
    for row in range(40):
        assert chosen[row].tolist() == best(scores[row], k)


def test_each_query_chooses_for_itself() -> None:
    """Queries that see 0, k - 1, k, k + 1 and all rows, in one call and one by one."""
    rng = np.random.default_rng(0)
    k, span = 6, 20
    query, keys = rng.standard_normal((5, 8, 4)), rng.standard_normal((span, 4))
    weight = rng.standard_normal((5, 8))
    visible = np.array([0, k - 1, k, k + 1, span])
    q, w, rows = (mx.array(a.astype(np.float32)) for a in (query, weight, keys))
    seen = mx.array(visible.astype(np.int32))
    together = np.array(reference.indexer_select(q, w, rows, seen, span, k))
    scores = np.einsum("rh,rhn->rn", weight, np.maximum(query @ keys.T, 0))
    for row, count in enumerate(visible):
        want = list(range(count)) if count <= k else best(scores[row, :count], k)
        assert together[row].tolist() == want + [-1] * (k - len(want))
        own = slice(row, row + 1)
        alone = np.array(reference.indexer_select(q[own], w[own], rows, seen[own], int(count), k))
        assert alone[0].tolist() == together[row].tolist()


def test_yarn_corners_of_the_released_numbers() -> None:
    """Spec 5.4: below pair 15 nothing is scaled, from pair 25 on everything is, by 16."""
    plain = frequencies(64, 160000.0)
    scaled = frequencies(64, 160000.0, Yarn(factor=16, original=65536))
    assert np.array_equal(scaled[:16], plain[:16])
    assert np.allclose(scaled[25:], plain[25:] / 16, rtol=1e-15)
    assert np.all(scaled[16:25] < plain[16:25]) and np.all(scaled[16:25] > plain[16:25] / 16)


def test_angles_stay_exact_at_a_million_positions() -> None:
    f = frequencies(64, 10000.0)
    cos, sin = angles(f, 1_000_000, 4)
    want = np.multiply.outer(1_000_000 + np.arange(4, dtype=np.float64), f)
    assert np.abs(np.array(cos) - np.cos(want)).max() < 1e-7
    assert np.abs(np.array(sin) - np.sin(want)).max() < 1e-7


def test_rotation_by_minus_the_angle_gives_back_the_row() -> None:
    x = mx.array(np.random.default_rng(0).standard_normal((3, 2, 16)).astype(np.float32))
    cos, sin = angles(frequencies(8, 10000.0), 77, 3)
    turned = reference.rotate(x, cos[:, None], sin[:, None])
    assert mx.array_equal(turned[..., :8], x[..., :8])
    assert not mx.allclose(turned[..., 8:], x[..., 8:], atol=1e-2)
    assert mx.allclose(reference.rotate(turned, cos[:, None], -sin[:, None]), x, atol=1e-6)


def test_hyper_connection_coefficients() -> None:
    raw = tiny.TINY_A
    size, weights = tiny.sizes(raw), tiny.random_weights(raw, 0)
    streams = np.random.default_rng(5).standard_normal((6, 4, raw["hidden_size"])).astype(np.float32)
    pre, post, comb = oracle.hyper_coefficients(streams.astype(np.float64), weights, "layers.0.hc_attn", size)
    names = ("layers.0.hc_attn_fn", "layers.0.hc_attn_base", "layers.0.hc_attn_scale")
    fn, base, scale = (mx.array(weights[n].astype(np.float32)) for n in names)
    mixed, got_post, got_comb = reference.hyper_mix(mx.array(streams), fn, base, scale, 1e-6, 1e-6, 20)
    assert np.allclose(np.array(mixed), (pre[:, :, None] * streams).sum(1), atol=2e-6)
    assert np.allclose(np.array(got_post), post, atol=2e-6)
    assert np.allclose(np.array(got_comb), comb, atol=2e-6)
    assert np.abs(comb - comb.swapaxes(1, 2)).max() > 0.1, "a symmetric comb could not tell its transpose"


def test_the_bias_steers_the_choice_and_not_the_weights() -> None:
    rng = np.random.default_rng(3)
    x, gate = rng.standard_normal((7, 16)).astype(np.float32), rng.standard_normal((10, 16)).astype(np.float32)
    bias = np.zeros(10, np.float32)
    bias[4] = 100.0
    chosen = reference.route_scores(mx.array(x), mx.array(gate), mx.array(bias), 3, 2.5)
    index, weight = np.array(chosen[0]), np.array(chosen[1])
    z = x.astype(np.float64) @ gate.T
    score = np.sqrt(np.log1p(np.exp(z)))
    assert (index == 4).any(axis=1).all()
    picked = np.take_along_axis(score, index, 1)
    assert np.allclose(weight, 2.5 * picked / picked.sum(1, keepdims=True), atol=1e-5)


def test_experts_do_not_depend_on_how_many_rows_there_are() -> None:
    """Below and above the number of pairs from which on they are sorted by expert."""
    raw = tiny.TINY_A
    bank = tiny.memory_weights(tiny.random_weights(raw, 0)).experts("layers.3.ffn")
    rng = np.random.default_rng(1)
    rows = reference.SORT_FROM // 2 + 8
    x = mx.array(rng.standard_normal((rows, raw["hidden_size"])).astype(np.float32))
    index = mx.array(np.stack([rng.permutation(6)[:2] for _ in range(rows)]).astype(np.int32))
    weight = mx.array(rng.random((rows, 2)).astype(np.float32))
    whole = reference.grouped_experts(x, index, weight, bank, 10.0)
    for at in (0, rows - 8):
        part = reference.grouped_experts(x[at : at + 8], index[at : at + 8], weight[at : at + 8], bank, 10.0)
        assert mx.allclose(whole[at : at + 8], part, atol=1e-5)


def test_every_op_names_a_reference_that_exists() -> None:
    for op in ops.OPS:
        assert callable(select_reference(op, dtype="float32", format="", widths=()))
    assert len({op.name for op in ops.OPS}) == len(ops.OPS)


def test_the_released_schedules_are_read_and_cut_to_the_layers() -> None:
    flash = tiny.TINY_A | {
        "num_hidden_layers": 43,
        "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0, 0, 0],
        "num_nextn_predict_layers": 1,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 200,
        "dspark_target_layer_ids": [40, 41, 42],
        "dspark_markov_rank": 8,
    }
    config = ModelConfig.from_json(flash)
    assert [config.ratios.count(r) for r in (0, 4, 128)] == [2, 21, 20]
    assert config.dspark is not None and config.dspark.stages == 3
