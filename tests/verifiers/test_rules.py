"""The verifiers' rules against a float64 reference that follows the papers one block at a time, with the same noise."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from sparkwright.core.contracts import (
    EMPTY_RESIDUAL,
    INCOMPLETE,
    NON_FINITE,
    Dense,
    Distribution,
    Draft,
    NoOptions,
    PointMass,
    Proposal,
    Site,
    Sparse,
)
from sparkwright.core.draw import draw
from sparkwright.core.randomness import Keys, gumbel, uniform
from sparkwright.plugins.verifiers import block, cores, coupled, greedy, stochastic

RNG = np.random.default_rng(7)
V = 11
RULES: dict[str, Any] = {
    "greedy": greedy.Greedy(),
    "stochastic": stochastic.Stochastic(),
    "block": block.Block(),
    "coupled": coupled.Coupled(),
}


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


def case(kind: str, n: int, closeness: float = 1.0) -> tuple[Draft, Distribution]:
    """A random block: q resembles p, the drafts come from q."""
    logits = RNG.normal(size=(n + 1, V)) * 2
    log_p = log_softmax(logits).astype(np.float32)
    log_q = log_softmax(logits[:n] + closeness * RNG.normal(size=(n, V))).astype(np.float32)
    proposal: Proposal
    if kind == "sparse":
        ids = np.argsort(-log_q, axis=-1)[:, :4]
        few = log_softmax(np.take_along_axis(log_q, ids, axis=-1))
        tokens = [RNG.choice(i, p=np.exp(f) / np.exp(f).sum()) for i, f in zip(ids, few, strict=True)]
        proposal = Sparse(mx.array(ids.astype(np.int32)), mx.array(few.astype(np.float32)))
    else:
        tokens = [RNG.choice(V, p=np.exp(q.astype(np.float64)) / np.exp(q.astype(np.float64)).sum()) for q in log_q]
        proposal = Dense(mx.array(log_q)) if kind == "dense" else PointMass()
    draft = Draft(mx.array(np.array(tokens, dtype=np.int32)), proposal)
    return draft, Distribution(mx.array(log_p), mx.zeros((n + 1,), dtype=mx.int32))


def q_rows(draft: Draft) -> Any:
    """q as float64 [n, V], whatever the kind."""
    n = draft.tokens.shape[0]
    q = np.zeros((n, V))
    if isinstance(draft.proposal, Dense):
        return np.exp(np.array(draft.proposal.log_q, dtype=np.float64))
    if isinstance(draft.proposal, Sparse):
        np.put_along_axis(
            q, np.array(draft.proposal.ids), np.exp(np.array(draft.proposal.log_q, dtype=np.float64)), axis=-1
        )
        return q
    q[np.arange(n), np.array(draft.tokens)] = 1
    return q


def pick(weights: Any, key: mx.array) -> int:
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(weights) + np.array(gumbel(key, V), dtype=np.float64)))


def rejection_by_the_paper(draft: Draft, p: Any, q: Any, keys: Keys) -> tuple[int, int]:
    n, tokens = len(draft), np.array(draft.tokens)
    u = np.array(uniform(keys.array("accept", n), 1))[:, 0]
    residual_keys = keys.array("residual", n + 1)
    for i, y in enumerate(tokens):
        if u[i] >= min(1.0, p[i, y] / q[i, y]):
            return i, pick(np.maximum(p[i] - q[i], 0), residual_keys[i])
    return n, pick(p[n], residual_keys[n])


def block_by_the_paper(draft: Draft, p: Any, q: Any, keys: Keys) -> tuple[int, int]:
    n, tokens = len(draft), np.array(draft.tokens)
    u = np.array(uniform(keys.array("accept", n), 1))[:, 0]
    w, accepted, kept = 1.0, 0, 1.0
    for i in range(1, n + 1):
        y = tokens[i - 1]
        w = min(1.0, w * p[i - 1, y] / q[i - 1, y])
        h = w
        if i < n:
            rest = np.maximum(w * p[i] - q[i], 0).sum()
            h = rest / (rest + 1 - w) if rest > 0 else 0.0
        if u[i - 1] < h:
            accepted, kept = i, w
    residual_keys = keys.array("residual", n + 1)
    weights = p[n] if accepted == n else np.maximum(kept * p[accepted] - q[accepted], 0)
    return accepted, pick(weights, residual_keys[accepted])


def verify(name: str, draft: Draft, p: Distribution, keys: Any) -> Any:
    return RULES[name].sparkwright_verifier_verify(draft, p, keys)


def ints(x: mx.array) -> list[int]:
    return [int(value) for value in np.array(x)]


@pytest.mark.parametrize("kind", ["dense", "sparse", "point"])
@pytest.mark.parametrize("n", [1, 2, 5, 7])
@pytest.mark.parametrize(
    ("name", "by_the_paper"), [("stochastic", rejection_by_the_paper), ("block", block_by_the_paper)]
)
def test_rules_do_what_the_papers_say(name: str, by_the_paper: Any, n: int, kind: str) -> None:
    lengths = set()
    for seed in range(60):
        draft, p = case(kind, n, closeness=0.7)
        keys = Keys(seed, 0, 40 + seed)
        verdict = verify(name, draft, p, keys)
        wanted = by_the_paper(draft, np.exp(np.array(p.log_p, dtype=np.float64)), q_rows(draft), keys)
        assert verdict.array.dtype == mx.int32
        assert ints(verdict.array) == [*wanted, 0, *ints(draft.tokens)]
        assert verdict.acceptance.shape == (n,)
        lengths.add(wanted[0])
    assert len(lengths) > min(n, 2) - 1  # the cases reach rejections as well as bonuses


@pytest.mark.parametrize("n", [1, 3, 7])
def test_coupled_says_what_plain_decoding_would(n: int) -> None:
    hits = 0
    for seed in range(80):
        _, p = case("point", n)
        keys = Keys(seed, 2, 9)
        plain = [
            int(draw(Distribution(p.log_p[i : i + 1], p.flags[i : i + 1]), keys, first=i + 1)[1]) for i in range(n + 1)
        ]
        wrong = int(RNG.integers(0, n + 1))
        tokens = [t if i != wrong else (t + 1) % V for i, t in enumerate(plain[:n])]
        verdict = verify("coupled", Draft(mx.array(tokens, dtype=mx.int32), PointMass()), p, keys)
        assert verdict.array.tolist() == [wrong, plain[wrong], 0, *tokens]
        hits += wrong == n
    assert hits > 0


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("kind", ["dense", "sparse", "point"])
def test_a_deterministic_sampler_makes_every_rule_greedy_and_free_of_noise(name: str, kind: str) -> None:
    draft, p = case(kind, 4)
    tokens = ints(draft.tokens)
    for wrong in range(5):
        mode = [*tokens, 3]
        if wrong < 4:
            mode[wrong] = (mode[wrong] + 1) % V
        sure = Distribution(p.log_p, p.flags, mx.array(mode, dtype=mx.int32))
        verdict = verify(name, draft, sure, None)  # without keys: any draw would raise
        assert verdict.array.tolist() == [wrong, mode[wrong], 0, *tokens]


class ManyKeys:
    """Keys of several rounds, stacked."""

    def __init__(self, keys: list[Keys]) -> None:
        self.keys = keys

    def array(self, purpose: Any, n: int, first: int = 1) -> mx.array:
        return mx.stack([k.array(purpose, n, first) for k in self.keys])


def stacked(cases: list[tuple[Draft, Distribution]]) -> tuple[Draft, Distribution]:
    first = cases[0][0].proposal
    proposal: Proposal = PointMass()
    drafts = [d for d, _ in cases]
    if isinstance(first, Dense):
        proposal = Dense(mx.stack([d.proposal.log_q for d in drafts]))  # type: ignore[union-attr]
    elif isinstance(first, Sparse):
        proposal = Sparse(
            mx.stack([d.proposal.ids for d in drafts]),  # type: ignore[union-attr]
            mx.stack([d.proposal.log_q for d in drafts]),  # type: ignore[union-attr]
        )
    p = Distribution(mx.stack([p.log_p for _, p in cases]), mx.stack([p.flags for _, p in cases]))
    return Draft(mx.stack([d.tokens for d in drafts]), proposal), p


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("kind", ["dense", "sparse", "point"])
@pytest.mark.parametrize("n", [1, 4])
def test_leading_axes_are_many_single_blocks(name: str, kind: str, n: int) -> None:
    cases, keys = [case(kind, n) for _ in range(16)], [Keys(s, 0, 5 + s % 3) for s in range(16)]
    many = verify(name, *stacked(cases), ManyKeys(keys))
    for i, ((draft, p), k) in enumerate(zip(cases, keys, strict=True)):
        one = verify(name, draft, p, k)
        assert mx.array_equal(one.array, many.array[i])
        assert np.allclose(np.array(one.acceptance), np.array(many.acceptance[i]), atol=1e-6)


# --------------------------------------------------------------------------------------------------------------
# Flags and what is not finite
# --------------------------------------------------------------------------------------------------------------


def sure_case(stop: int, n: int = 4) -> tuple[Draft, Distribution]:
    """Drafts 0, 0, ... of which exactly `stop` are accepted whatever the noise."""
    log_p = np.full((n + 1, 3), -math.inf, dtype=np.float32)
    log_p[:, 0] = 0.0
    if stop < n:
        log_p[stop] = [-math.inf, 0.0, -math.inf]
    return Draft(mx.zeros((n,), dtype=mx.int32), PointMass()), Distribution(
        mx.array(log_p), mx.zeros((n + 1,), dtype=mx.int32)
    )


@pytest.mark.parametrize("name", list(RULES))
@pytest.mark.parametrize("flag", [INCOMPLETE, NON_FINITE, INCOMPLETE | NON_FINITE])
def test_only_rows_up_to_the_accepted_ones_can_raise_a_flag(name: str, flag: int) -> None:
    for stop in range(5):
        for row in range(5):
            draft, p = sure_case(stop)
            flags = mx.array([flag if i == row else 0 for i in range(5)], dtype=mx.int32)
            verdict = verify(name, draft, Distribution(p.log_p, flags), Keys(1, 0, 3))
            assert verdict.array.tolist()[:3] == [stop, 0 if stop == 4 else 1, flag if row <= stop else 0]


@pytest.mark.parametrize("name", ["stochastic", "block"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_q_that_is_not_a_number_rejects_and_p_is_used_and_counted(name: str, kind: str) -> None:
    tokens = []
    for seed in range(300):
        draft, p = case(kind, 2)
        p = Distribution(mx.log(mx.array([[0.0, 0.9, 0.1] + [0.0] * (V - 3)] * 3)), p.flags)
        q = draft.proposal
        assert isinstance(q, Dense | Sparse)
        bad = mx.full(q.log_q.shape, math.nan)
        draft = Draft(draft.tokens, Dense(bad) if isinstance(q, Dense) else Sparse(q.ids, bad))
        accepted, token, flags, *_ = verify(name, draft, p, Keys(seed, 0, 3)).array.tolist()
        assert (accepted, flags) == (0, EMPTY_RESIDUAL)
        tokens.append(token)
    assert set(tokens) == {1, 2} and 250 <= tokens.count(1) <= 290  # 270 +- 4 sigma: p, and not uniform


def test_a_draft_that_its_own_candidates_exclude_is_rejected() -> None:
    p = Distribution(mx.log(mx.array([[0.5, 0.5, 0.0, 0.0]] * 2)), mx.zeros((2,), dtype=mx.int32))
    sparse = Sparse(mx.array([[2, 3]], dtype=mx.int32), mx.log(mx.array([[0.5, 0.5]])))
    draft = Draft(mx.array([0], dtype=mx.int32), sparse)
    for seed in range(50):
        assert verify("stochastic", draft, p, Keys(seed, 0, 1)).array.tolist()[0] == 0


def test_equal_p_and_q_accept_everything() -> None:
    for name in ("stochastic", "block"):
        for seed in range(50):
            draft, p = case("dense", 6)
            same = Draft(draft.tokens, Dense(p.log_p[:6]))
            assert verify(name, same, p, Keys(seed, 0, 3)).array.tolist()[0] == 6


def test_the_residual_is_float32_and_never_reaches_what_q_covers() -> None:
    """Called directly: the residual of p = (.5, .3, .2), q = (.2, .7, .1) is (.75, 0, .25)."""
    log_p, log_q = (mx.log(mx.array([row])) for row in ([0.5, 0.3, 0.2], [0.2, 0.7, 0.1]))
    rest = cores.excess(mx.exp(log_p), mx.array([1]), Dense(log_q))
    assert rest.dtype == mx.float32
    np.testing.assert_allclose(np.array(rest / rest.sum()), [[0.75, 0.0, 0.25]], atol=1e-6)
    sparse = cores.excess(mx.exp(log_p), mx.array([1]), Sparse(mx.array([[1, 0]]), log_q[:, :2][:, ::-1]))
    np.testing.assert_allclose(np.array(sparse), [[0.3, 0.0, 0.2]], atol=1e-6)
    np.testing.assert_allclose(
        np.array(cores.excess(mx.exp(log_p), mx.array([1]), PointMass())), [[0.5, 0, 0.2]], atol=1e-6
    )


@pytest.mark.parametrize("kind", ["dense", "sparse", "point"])
def test_block_probabilities_with_one_draft_are_token_wise_rejection(kind: str) -> None:
    for _ in range(20):
        draft, p = case(kind, 1)
        _, h = cores.block_probabilities(draft.tokens, draft.proposal, p.log_p)
        ratio = cores.ratios(draft.tokens, draft.proposal, p.log_p)
        assert mx.allclose(h, mx.minimum(ratio, 1.0))


def test_facts_say_what_each_rule_needs() -> None:
    facts = {
        m.__name__.rpartition(".")[2]: m.describe(NoOptions(), Site()) for m in (greedy, stochastic, block, coupled)
    }
    assert {name: f.promise for name, f in facts.items()} == {
        "greedy": "identity-up-to-ties",
        "stochastic": "law",
        "block": "law",
        "coupled": "identity-up-to-ties",
    }
    assert {name for name, f in facts.items() if f.causal} == {"stochastic", "block"}
    assert {name for name, f in facts.items() if f.noise == "target"} == {"coupled"}
    assert {name for name, f in facts.items() if f.deterministic_only} == {"greedy"}


def test_a_plain_draw_is_a_verdict_without_drafts() -> None:
    _, p = case("point", 1)
    one = Distribution(p.log_p[:1], mx.array([INCOMPLETE], dtype=mx.int32))
    accepted, token, flags = ints(draw(one, Keys(3, 0, 8)))
    assert (accepted, flags) == (0, INCOMPLETE) and 0 <= token < V
    sure = Distribution(p.log_p[:1], mx.zeros((1,), dtype=mx.int32), mx.array([6], dtype=mx.int32))
    assert draw(sure, Keys(3, 0, 8)).tolist() == [0, 6, 0]
    with pytest.raises(ValueError, match="one row, not of 2"):
        draw(p, Keys(3, 0, 8))
