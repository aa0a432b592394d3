"""Drafters with one thing wrong. The good twin drafts from a table, shifted by how many tokens it has observed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
from tests.kit.bad.twin import Twin, provider

from sparkwright.core.contracts import Dense, Draft, DrafterFacts, Provider, Site
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.randomness import gumbel

BLOCK = 4


@attrs.define(eq=False)
class Table:
    """log_q float32 [V, V]: row (token before + observed tokens) mod V is what a draft is drawn from."""

    log_q: mx.array

    @hookimpl
    def sparkwright_drafter_start(self) -> list[int]:
        return []

    @hookimpl
    def sparkwright_drafter_observe(self, state: list[int], tokens: Sequence[int]) -> None:
        state += tokens

    @hookimpl
    def sparkwright_drafter_draft(self, state: list[int], anchor: int, limit: int, keys: mx.array) -> Draft:
        return self.block(len(state), anchor, limit, keys)

    def block(self, shift: int, anchor: int, limit: int, keys: mx.array) -> Draft:
        size = self.log_q.shape[0]
        last, tokens, rows, confidences = mx.array(anchor), [], [], []
        for k in range(limit):
            row = self.log_q[(last + shift) % size]
            last = self.pick(row, keys, k, limit)
            tokens.append(last)
            rows.append(row)
            confidences.append(self.confidence(row, last))
        return Draft(mx.stack(tokens).astype(mx.int32), Dense(self.said(mx.stack(rows))), mx.stack(confidences))

    def pick(self, row: mx.array, keys: mx.array, k: int, limit: int) -> mx.array:
        return mx.argmax(row + gumbel(keys[k : k + 1], row.shape[-1])[0])

    def said(self, rows: mx.array) -> mx.array:
        return rows

    def confidence(self, row: mx.array, token: mx.array) -> mx.array:
        return mx.exp(mx.max(row))


class OtherTemperature(Table):
    def said(self, rows: mx.array) -> mx.array:
        warm = rows * 0.6
        return warm - mx.logsumexp(warm, axis=-1, keepdims=True)


class OneKey(Table):
    def pick(self, row: mx.array, keys: mx.array, k: int, limit: int) -> mx.array:
        return super().pick(row, keys, 0, limit)


class LastKeyFirst(Table):
    def pick(self, row: mx.array, keys: mx.array, k: int, limit: int) -> mx.array:
        return super().pick(row, keys, limit - 1 - k, limit)


class Argmax(Table):
    def pick(self, row: mx.array, keys: mx.array, k: int, limit: int) -> mx.array:
        return mx.argmax(row)


class NotNormalised(Table):
    def said(self, rows: mx.array) -> mx.array:
        return rows + 0.2


class OwnConfidence(Table):
    def confidence(self, row: mx.array, token: mx.array) -> mx.array:
        return mx.exp(row[token])


class ReadsTheHost(Table):
    def pick(self, row: mx.array, keys: mx.array, k: int, limit: int) -> mx.array:
        return mx.array(super().pick(row, keys, k, limit).tolist())


class NoLimit(Table):
    @hookimpl
    def sparkwright_drafter_draft(self, state: list[int], anchor: int, limit: int, keys: mx.array) -> Draft:
        more = mx.concatenate([keys, mx.zeros((BLOCK - limit, 2), dtype=mx.uint32)])
        return self.block(len(state), anchor, BLOCK, more)


class KeepsRejected(Table):
    @hookimpl
    def sparkwright_drafter_draft(self, state: list[int], anchor: int, limit: int, keys: mx.array) -> Draft:
        draft = self.block(len(state), anchor, limit, keys)
        state += [anchor] * limit
        return draft

    @hookimpl
    def sparkwright_drafter_observe(self, state: list[int], tokens: Sequence[int]) -> None:
        state += tokens if not state else tokens[:1]


class OnlyAfterDrafts(Table):
    """Takes one token alone for a round without drafts, which it thinks need not be observed."""

    @hookimpl
    def sparkwright_drafter_observe(self, state: list[int], tokens: Sequence[int]) -> None:
        if len(tokens) > 1 or not state:
            state += tokens


class HostNoise(Table):
    def pick(self, row: mx.array, keys: mx.array, k: int, limit: int) -> mx.array:
        noise = -np.log(-np.log(np.random.random(row.shape[-1])))
        return mx.argmax(row + mx.array(noise.astype(np.float32)))


class Reseeds(Table):
    def pick(self, row: mx.array, keys: mx.array, k: int, limit: int) -> mx.array:
        mx.random.seed(7)
        return super().pick(row, keys, k, limit)


class PythonRandom(Table):
    def confidence(self, row: mx.array, token: mx.array) -> mx.array:
        return mx.array(random.random())


class CommonState(Table):
    """Counts the tokens of all requests together."""

    seen = 0

    @hookimpl
    def sparkwright_drafter_observe(self, state: list[int], tokens: Sequence[int]) -> None:
        type(self).seen += len(tokens)
        state += [0] * (type(self).seen - len(state))


class SaysPoint(Table):
    """Says a deterministic draft in its facts and gives q."""


def make(kind: type[Table], **facts: Any) -> Provider:
    def build(site: Site) -> Table:
        assert site.target is not None
        size = site.target.vocab_size
        logits = mx.array(np.random.default_rng(3).normal(size=(size, size)).astype(np.float32) * 1.5)
        return kind(logits - mx.logsumexp(logits, axis=-1, keepdims=True))

    said: dict[str, Any] = {"block": BLOCK, "proposal": "dense", "confidence": True} | facts
    return provider("drafter", build, DrafterFacts(**said))


GOOD = make(Table)
TWINS = [
    Twin("claims another temperature", "q is what is drawn from", make(OtherTemperature), GOOD),
    Twin("argmax called dense", "q is what is drawn from", make(Argmax), GOOD),
    Twin("one key for the block", "q is what is drawn from", make(OneKey), GOOD),
    Twin("last key first", "nothing looks ahead", make(LastKeyFirst), GOOD),
    Twin("confidence of its own draft", "nothing looks ahead", make(OwnConfidence), GOOD),
    Twin("q is not normalised", "drafts are well formed", make(NotNormalised), GOOD),
    Twin("says point and gives q", "drafts are well formed", make(SaysPoint, proposal="point"), GOOD),
    Twin("reads the host", "nothing read to the host", make(ReadsTheHost), GOOD),
    Twin("ignores the limit", "limits", make(NoLimit), GOOD),
    Twin("keeps rejected tokens", "rollback equals a fresh start", make(KeepsRejected), GOOD),
    Twin("skips rounds without drafts", "rounds without drafts", make(OnlyAfterDrafts), GOOD),
    Twin("noise of the host", "same keys, same drafts", make(HostNoise), GOOD),
    Twin("random of Python", "no global random state", make(PythonRandom), GOOD),
    Twin("reseeds MLX", "no global random state", make(Reseeds), GOOD),
    Twin("state of the class", "same keys, same drafts", make(CommonState), GOOD),
]
