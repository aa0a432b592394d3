"""Keys by purpose, and noise by key: Python ints as NumPy arrays, uniformity, independence of the number of rows."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest

from sparkwright.core.contracts import Distribution
from sparkwright.core.draw import draw, gumbel_argmax
from sparkwright.core.randomness import Keys, Purpose, gumbel, key, mix, stream, uniform, words

PURPOSES: tuple[Purpose, ...] = ("target", "draft", "accept", "residual")


def test_mix_is_splitmix64() -> None:
    """Known outputs of splitmix64 from state 0 (the generator adds the constant before it mixes)."""
    golden = 0x9E3779B97F4A7C15
    states = [(i * golden) % 2**64 for i in range(3)]
    assert [mix(s) for s in states] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_keys_are_distinct_across_everything_they_are_for() -> None:
    seen: dict[int, tuple[object, ...]] = {}
    for seed, choice, purpose in itertools.product((0, 1, 2**63), (0, 1, 2), PURPOSES):
        for anchor in (None,) if purpose == "target" else range(0, 40, 3):
            root = stream(seed, choice, purpose, anchor)
            for position in range(60):
                k = key(root, position)
                assert k not in seen, (seen.get(k), (seed, choice, purpose, anchor, position))
                seen[k] = (seed, choice, purpose, anchor, position)
    assert len(seen) > 15_000


def test_target_keys_belong_to_a_position_and_others_to_the_round_too() -> None:
    def at(purpose: Purpose, anchor: int, position: int) -> list[int]:
        row: list[int] = Keys(3, 0, anchor).array(purpose, 12)[position - anchor - 1].tolist()  # type: ignore[assignment]
        return row

    assert at("target", 5, 10) == at("target", 7, 10)
    for purpose in PURPOSES[1:]:
        assert at(purpose, 5, 10) != at(purpose, 7, 10)
    with pytest.raises(ValueError, match="take no anchor"):
        stream(0, 0, "target", 3)
    with pytest.raises(ValueError, match="need the anchor"):
        stream(0, 0, "draft")


def test_arrays_of_keys_are_slices_of_one_another() -> None:
    keys = Keys(1, 2, 30)
    whole = keys.array("accept", 8)
    assert whole.shape == (8, 2) and whole.dtype == mx.uint32
    assert mx.array_equal(keys.array("accept", 3), whole[:3])
    assert mx.array_equal(keys.array("accept", 3, first=5), whole[4:7])
    assert keys.array("accept", 0).shape == (0, 2)
    assert mx.array_equal(Keys(1 + 2**64, 2, 30).array("accept", 8), whole)


def test_python_ints_and_numpy_arrays_make_the_same_keys() -> None:
    rng = np.random.default_rng(1)
    seeds = rng.integers(0, 2**64, size=50, dtype=np.uint64)
    anchors = rng.integers(0, 2**20, size=50, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for purpose in PURPOSES:
            anchor = None if purpose == "target" else anchors
            many = key(stream(seeds, np.uint64(1), purpose, anchor), anchors + np.uint64(2))
            for i in range(50):
                one = Keys(int(seeds[i]), 1, int(anchors[i])).array(purpose, 2)[1]
                assert words(many[i : i + 1])[0].tolist() == one.tolist()


def bulk(n: int, seed: int = 0) -> mx.array:
    return Keys(seed, 0, 0).array("target", n)


def test_uniform_is_inside_its_interval_and_uniform() -> None:
    """200 x 1000 draws; Kolmogorov-Smirnov at a false-alarm rate of 1e-6 finds a shift of the law by 0.6% for sure."""
    u = np.array(uniform(bulk(200), 1000)).reshape(-1).astype(np.float64)
    assert u.min() > 0.0 and u.max() < 1.0
    steps = np.arange(1, u.size + 1) / u.size
    distance = np.max(np.abs(np.sort(u) - steps))
    assert distance < 2.69 / np.sqrt(u.size)
    assert abs(np.corrcoef(u.reshape(200, 1000)[:-1].ravel(), u.reshape(200, 1000)[1:].ravel())[0, 1]) < 0.012


def test_gumbel_of_the_ends_is_finite_and_its_tail_is_not_cut() -> None:
    import sparkwright.core.randomness as randomness

    values = mx.array([[0, 1, 2**31, 2**32 - 1]], dtype=mx.uint32)
    original = randomness.bits
    randomness.bits = lambda keys, width: values
    try:
        u = np.array(uniform(bulk(1), 4))
        g = np.array(gumbel(bulk(1), 4))
    finally:
        randomness.bits = original
    assert 0 < u[0, 0] < 1e-9 and u[0, 3] < 1
    assert np.isfinite(g).all()
    assert np.all(np.abs(g) < 25) and max(abs(g[0])) > 20  # one end is as rare as 32 bits can say


def test_gumbel_has_its_mean_and_variance() -> None:
    """200,000 draws: the mean within 5 standard errors of Euler's constant, the variance within 2% of pi^2/6."""
    g = np.array(gumbel(bulk(200, seed=7), 1000)).astype(np.float64)
    assert abs(g.mean() - 0.5772156649) < 5 * np.sqrt(np.pi**2 / 6 / g.size)
    assert abs(g.var() / (np.pi**2 / 6) - 1) < 0.02


@pytest.mark.parametrize("width", [1, 2, 7, 1000, 1001])
def test_a_rows_noise_depends_on_its_own_key_only(width: int) -> None:
    keys = bulk(9)
    whole = gumbel(keys, width)
    assert whole.shape == (9, width)
    for rows in (1, 2, 5, 8):
        assert mx.array_equal(gumbel(keys[:rows], width), whole[:rows])
    assert mx.array_equal(gumbel(keys[4], width), whole[4])
    assert mx.array_equal(gumbel(keys.reshape(3, 3, 2), width).reshape(9, width), whole)
    assert mx.array_equal(gumbel(keys[::-1], width), whole[::-1])


def test_draws_follow_the_distribution() -> None:
    """20,000 draws from 5 tokens; each share within 5 standard errors. A wrong law by 2% in a token is 5.6 of them."""
    p = np.array([0.5, 0.25, 0.15, 0.1, 0.0])
    with np.errstate(divide="ignore"):
        log_p = mx.array(np.log(p).astype(np.float32))
    tokens = np.array(gumbel_argmax(mx.broadcast_to(log_p, (20_000, 5)), bulk(20_000)))
    shares = np.bincount(tokens, minlength=5) / 20_000
    assert shares[4] == 0 and np.all(np.abs(shares - p) <= 5 * np.sqrt(p * (1 - p) / 20_000))


def test_plain_drawing_uses_target_noise_of_its_position() -> None:
    log_p = mx.log(mx.full((1, 50), 0.02))
    p = Distribution(log_p, mx.zeros((1,), dtype=mx.int32))
    for anchor in range(20):
        keys = Keys(5, 1, anchor)
        expected = gumbel_argmax(log_p, keys.array("target", 1)).item()
        assert draw(p, keys).tolist() == [0, expected, 0]
        assert draw(p, Keys(5, 1, anchor + 3), first=-2).tolist() == [0, expected, 0]
    mode = Distribution(log_p, mx.array([4], dtype=mx.int32), mx.array([7], dtype=mx.int32))
    assert draw(mode, Keys(0, 0, 0)).tolist() == [0, 7, 4]
    with pytest.raises(ValueError, match="one row"):
        draw(Distribution(mx.zeros((2, 3)), mx.zeros((2,))), Keys(0, 0, 0))
