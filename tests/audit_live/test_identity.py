"""The audit of identity: a verifier that accepts a wrong token fails, a tie passes, and other rows are no tie."""

from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from tests.core.engines import SAMPLED, V, near, table, toy_config

from sparkwright.core.audit.identity import Divergence, audit_identity
from sparkwright.core.config import Config
from sparkwright.core.contracts import Distribution, Draft, Provider, Verdict, VerifierFacts
from sparkwright.core.errors import RequestError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing import toys

PROMPTS = ["abc", "e", "ghijk"]


@attrs.define(eq=False)
class Gullible:
    """Takes the first draft whatever the target says."""

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution) -> Verdict:
        token = mx.argmax(p.log_p[1:2], axis=-1).astype(mx.int32)
        return Verdict(mx.concatenate([mx.array([1]), token, mx.array([0]), draft.tokens]).astype(mx.int32))


def gullible() -> Provider:
    return Provider(
        kind="verifier", name="gullible", summary="toy: accepts everything", build=lambda options, site: Gullible(),
        describe=lambda options, site: VerifierFacts("identity-up-to-ties"),
    )  # fmt: skip


def with_drafts(*providers: Provider, base: Any = None, **settings: Any) -> Config:
    settings = {"drafter": {"use": "table"}} | settings
    return toy_config(settings, *providers, **({} if base is None else {"base": base}))


@pytest.mark.parametrize("base", [None, SAMPLED])
def test_right_verifiers_change_nothing(base: Any) -> None:
    result = audit_identity(with_drafts(base=base), PROMPTS, seeds=range(3), max_tokens=24)
    assert result.passed and result.identical == result.texts == 9 and result.submitted > 50
    assert result.tokens == result.matching_tokens == 9 * 24
    assert "not run" in result.meaning and len(result.config_sha256) == 64


@pytest.mark.parametrize("base", [None, SAMPLED])
def test_a_verifier_that_accepts_a_wrong_token_fails(base: Any) -> None:
    result = audit_identity(with_drafts(gullible(), base=base, verifier={"use": "gullible"}), PROMPTS, max_tokens=24)
    assert not result.passed and result.divergences and "broken" in result.meaning
    for one in result.divergences:
        assert one.margin > 1e-3 and one.rounding == 0 and not one.tie
        assert "NOT a tie" in str(one)


def blocks_differ(by: float, gap: float) -> Provider:
    """Greedily d always follows c, ahead of e by `gap`; in blocks e gets `by` more."""
    logits = table()
    logits[2] = -2.0
    logits[2, 3], logits[2, 4] = 3.0, np.float32(3.0) - np.float32(gap)

    @attrs.define(eq=False)
    class Rough(toys.MarkovTarget):
        @hookimpl
        def sparkwright_target_forward(self, tokens: mx.array, state: toys.ToyState, logits: Any) -> Any:
            forward = super().sparkwright_target_forward(tokens, state, logits)
            if forward.logits is None or tokens.shape[0] == 1:
                return forward
            return attrs.evolve(forward, logits=forward.logits + by * (mx.arange(V) == 4))

    return toys.markov_target(logits, build=lambda made: Rough(made.table))


def audited(target: Provider) -> Any:
    """One prompt that ends where c is the anchor of a block."""
    drafter = toys.table_drafter(near(table()), proposal="point", block=7)
    return audit_identity(with_drafts(target, drafter), ["abkjihgf", "cb", "ikcah"], max_tokens=30)


def test_a_tie_passes() -> None:
    result = audited(blocks_differ(by=1.4e-6, gap=9e-7))
    assert result.divergences and result.passed and result.identical < result.texts
    one = result.divergences[0]
    assert {one.plain, one.speculative} == {3, 4}
    assert 0 < one.margin <= 2 * one.rounding and one.rounding <= one.usual


def test_a_margin_that_rounding_does_not_explain_fails() -> None:
    """Blocks whose logits are off by far more than rounding excuse nothing, though their own margin is small."""
    result = audited(blocks_differ(by=0.2, gap=0.1))
    assert result.divergences and not result.passed
    one = result.divergences[0]
    assert one.margin <= 2 * one.rounding and one.rounding > one.usual


def divergence(**more: Any) -> Divergence:
    base: dict[str, Any] = {
        "prompt": 0, "seed": 0, "index": 1, "position": 4, "plain": 2, "speculative": 3, "margin": 0.5,
        "rounding": 0.4, "usual": 1e-6,
    }  # fmt: skip
    return Divergence(**(base | more))


def test_a_near_tie_of_a_choice_explains_more_than_rounding_and_other_rows_explain_nothing() -> None:
    assert not divergence().tie
    assert divergence(choice="route_scores, call 3", tied=True).tie
    assert not divergence(choice="indexer_select, call 0", tied=False).tie
    assert not divergence(choice="route_scores, call 3", tied=True, margin=0.9).tie
    assert not divergence(rounding=1e-7, margin=-0.5).tie, "plain decoding's own choice must be reproduced"


def test_nothing_drafted_is_no_pass() -> None:
    result = audit_identity(toy_config({}), PROMPTS[:1], max_tokens=8)
    assert not result.passed and "nothing was compared" in result.meaning


def test_a_verifier_that_promises_the_law_is_sent_elsewhere() -> None:
    config = with_drafts(base=SAMPLED, verifier={"use": "stochastic"})
    with pytest.raises(RequestError, match="audit law"):
        audit_identity(config, PROMPTS)


def test_one_token_prompts_and_first_tokens_are_explained() -> None:
    """A divergence at the very first drafted token of a prompt of one token."""
    config = with_drafts(gullible(), verifier={"use": "gullible"})
    result = audit_identity(config, [chr(ord("a") + i) for i in range(V)], max_tokens=3)
    assert any(one.index == 1 for one in result.divergences)
    assert all(one.position == 1 + one.index for one in result.divergences)
