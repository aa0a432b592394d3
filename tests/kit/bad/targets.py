"""Targets with one thing wrong. The good twin is a table whose rows also depend on the sum of all tokens before."""

from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx
import numpy as np
from tests.kit.bad.twin import Twin, provider

from sparkwright.core.contracts import Forward, Logits, Provider, Resources, Site, TargetFacts
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing.ground import table
from sparkwright.core.testing.toys import ToyState, ToyText

V = 13


@attrs.define(eq=False)
class Sums:
    """Logits after tokens t1..ti: table[ti] + table[t1 + ... + ti mod V] / 2."""

    taps: tuple[int, ...]
    table: Any = attrs.field(factory=lambda: table(V, 5))

    @hookimpl
    def sparkwright_target_resources(self) -> Resources:
        rows = mx.array(self.table)
        return Resources(embed=lambda tokens: mx.eye(V)[tokens], head=lambda hidden: hidden @ rows)

    @hookimpl
    def sparkwright_target_text(self) -> ToyText:
        return ToyText()

    @hookimpl
    def sparkwright_target_new_state(self) -> ToyState:
        return ToyState()

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: ToyState, logits: Logits) -> Forward:
        ids = np.array(tokens)
        before = sum(state.tokens)
        state.tokens += ids.tolist()
        rows = self.logits(ids, (before + np.cumsum(ids)) % V)
        given = {"all": rows, "last": rows[-1:], "none": None}[logits]
        taps = mx.concatenate([mx.eye(V)[tokens]] * len(self.taps), axis=-1) if self.taps else None
        return Forward(None if given is None else mx.array(given.astype(np.float32)), taps)

    def logits(self, ids: Any, sums: Any) -> Any:
        return self.table[ids] + 0.5 * self.table[sums]


class Approximate(Sums):
    """Several rows at once are computed from the first one's past."""

    def logits(self, ids: Any, sums: Any) -> Any:
        return self.table[ids] + 0.5 * self.table[np.broadcast_to(sums[:1], sums.shape)]


class SeesTheBlock(Sums):
    """Rows of a block see the tokens after them."""

    def logits(self, ids: Any, sums: Any) -> Any:
        return self.table[ids] + 0.5 * self.table[np.broadcast_to(sums[-1:], sums.shape)]


class Keeps(ToyState):
    """Takes tokens back and their sum not: one more is left than was committed."""

    def commit(self, m: int) -> None:
        super().commit(min(m + 1, len(self.tokens) - self.start))


class KeepsRows(Sums):
    @hookimpl
    def sparkwright_target_new_state(self) -> ToyState:
        return Keeps()


class Deaf(ToyState):
    def abort(self) -> None:
        self.open = False


class NeverAborts(Sums):
    @hookimpl
    def sparkwright_target_new_state(self) -> ToyState:
        return Deaf()


class OneCache(Sums):
    """The cache is the model's, emptied for each new state."""

    tokens: Any = None

    @hookimpl
    def sparkwright_target_new_state(self) -> ToyState:
        OneCache.tokens = []
        return ToyState(tokens=OneCache.tokens)

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: ToyState, logits: Logits) -> Forward:
        state.tokens = OneCache.tokens
        return super().sparkwright_target_forward(tokens, state, logits)


class Half(Sums):
    def logits(self, ids: Any, sums: Any) -> Any:
        return super().logits(ids, sums)

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: ToyState, logits: Logits) -> Forward:
        made = super().sparkwright_target_forward(tokens, state, "all" if logits == "last" else logits)
        return Forward(made.logits if logits != "last" or made.logits is None else made.logits[:1], made.taps)


class BosInside(ToyText):
    def encode_part(self, text: str) -> list[int]:
        return [V - 1, *super().encode_part(text)]

    def encode(self, text: str) -> list[int]:
        return [V - 2, *super().encode_part(text)]


class WordsWithBos(Sums):
    """Words inside a text are encoded as prompts are, with something in front."""

    @hookimpl
    def sparkwright_target_text(self) -> ToyText:
        return BosInside()


FACTS = TargetFacts(V, 4096, V, 3, (), "sums", "exact", fingerprint="sums")


def make(kind: type[Sums]) -> Provider:
    def build(site: Site) -> Sums:
        return kind(site.taps)

    return provider("target", build, FACTS)


GOOD = make(Sums)
TWINS = [
    Twin("verify differs from decode", "one function", make(Approximate), GOOD),
    Twin("rows see the rest of the block", "one function", make(SeesTheBlock), GOOD),
    Twin("keeps a rejected row", "rollback for every commit", make(KeepsRows), GOOD),
    Twin("abort keeps all rows", "abort", make(NeverAborts), GOOD),
    Twin("one cache for all states", "states are apart", make(OneCache), GOOD),
    Twin("words with a BOS", "resources and text", make(WordsWithBos), GOOD),
    Twin("last gives the first row", "logits as asked", make(Half), GOOD),
]
