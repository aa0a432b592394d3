"""The sampler chain's arithmetic: penalties, bias, temperature and filters as functions of logits [..., r, V].

Each row is a function of its own logits and its own counts alone; leading axes are batches. Nothing here knows options,
states or requests. Every filter is a threshold on the row, so ties at a threshold are all kept.

On the CPU a full sort of a vocabulary costs more than the rest of a round together. Top-p therefore sorts the
CANDIDATES largest values only; a row whose nucleus is wider comes back marked, and the caller repeats it with
`full=True`. Rows that were complete keep their threshold then, so that a row does not depend on its neighbours. On
Metal and CUDA the selection is a sort anyway, and the shortcut costs nothing.
"""

from __future__ import annotations

import math

import attrs
import mlx.core as mx

from sparkwright.core.contracts import INCOMPLETE, NON_FINITE

CANDIDATES = 1024
"""How many of a row's largest values top-p looks at before it asks for the whole row."""

# --------------------------------------------------------------------------------------------------------------
# What a row has seen
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Counts:
    """What each of r rows has seen, as weighted token ids; the drafts among them are still on the device.

    ids:  [..., m] int32
    seen: [r, m] float32, how often entry m counts in row r for the repetition penalty
    text: [r, m] float32, the same for the presence and frequency penalties
    """

    ids: mx.array
    seen: mx.array
    text: mx.array

    def dense(self, weights: mx.array, vocab: int) -> mx.array:
        """float32 [..., r, V]: the weights of `seen` or `text` summed by token."""
        lead, m, r = self.ids.shape[:-1], self.ids.shape[-1], weights.shape[0]
        batch = math.prod(lead)
        b = mx.arange(batch)[:, None, None]  # [B, 1, 1]
        row = mx.arange(r)[None, :, None]  # [1, r, 1]
        ids = self.ids.reshape(batch, 1, m)
        zeros = mx.zeros((batch, r, vocab), dtype=mx.float32)
        return zeros.at[b, row, ids].add(weights[None]).reshape(*lead, r, vocab)


def penalise(
    logits: mx.array, counts: Counts, repetition: float, presence: float, frequency: float
) -> mx.array:
    """Repetition (Keskar et al. 2019: positive logits divided, negative multiplied), then presence, then frequency."""
    vocab = logits.shape[-1]
    if repetition != 1.0:
        seen = counts.dense(counts.seen, vocab)
        logits = mx.where(seen > 0, mx.where(logits < 0, logits * repetition, logits / repetition), logits)
    if presence != 0.0 or frequency != 0.0:
        text = counts.dense(counts.text, vocab)
        if presence != 0.0:
            logits = logits - presence * (text > 0)
        if frequency != 0.0:
            logits = logits - frequency * text
    return logits


def add_bias(logits: mx.array, ids: mx.array, values: mx.array) -> mx.array:
    """Adds values [k] to the logits of the distinct ids [k] in every row."""
    return logits.at[..., ids].add(values)


# --------------------------------------------------------------------------------------------------------------
# Filters
# --------------------------------------------------------------------------------------------------------------


def normalise(x: mx.array) -> mx.array:
    """log-softmax over the last axis in float32."""
    return x - mx.logsumexp(x, axis=-1, keepdims=True)


def keep(x: mx.array, threshold: mx.array) -> mx.array:
    """x where it reaches the row's threshold [..., 1], -inf elsewhere."""
    return mx.where(x >= threshold, x, -mx.inf)


def largest(x: mx.array, k: int) -> mx.array:
    """The k largest values of each row, descending: [..., min(k, V)]."""
    k = min(k, x.shape[-1])
    return -mx.sort(-mx.topk(x, k, axis=-1), axis=-1)


def top_k(x: mx.array, k: int) -> mx.array:
    """Keeps the k largest values of a row and whatever ties with the smallest of them. k >= V keeps all."""
    if k >= x.shape[-1]:
        return x
    return keep(x, mx.min(mx.topk(x, k, axis=-1), axis=-1, keepdims=True))


def min_p(x: mx.array, share: float) -> mx.array:
    """Keeps what has at least `share` (> 0) of the probability of the row's largest value."""
    return keep(x, mx.max(x, axis=-1, keepdims=True) + math.log(share))


def top_p(log_p: mx.array, mass: float, full: bool) -> tuple[mx.array, mx.array]:
    """Keeps the smallest set of largest values whose mass reaches `mass`, and what ties with the smallest of them.

    log_p [..., V] is normalised. Returns it filtered (not normalised), and a bool [...]: the shortcut did not suffice,
    the row was cut to its CANDIDATES largest values instead. With `full` no row is marked.
    """
    vocab = log_p.shape[-1]

    def threshold(width: int) -> tuple[mx.array, mx.array]:
        head = largest(log_p, width)  # [..., width]
        reached = mx.cumsum(mx.exp(head), axis=-1)
        below = (reached < mass).sum(axis=-1, keepdims=True)  # entries before the one that reaches it
        at = mx.minimum(below, head.shape[-1] - 1)
        return mx.take_along_axis(head, at, axis=-1), reached[..., -1:] < mass

    cut, short = threshold(CANDIDATES)
    if vocab <= CANDIDATES:
        short = mx.zeros_like(short)  # the row is whole; the missing mass is rounding
    elif full:
        cut = mx.where(short, threshold(vocab)[0], cut)
        short = mx.zeros_like(short)
    return keep(log_p, cut), short[..., 0]


@attrs.frozen
class Filters:
    """Temperature and filters; `mlx_lm` is the order of mlx-lm's make_sampler. A value that is off does no work."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    mlx_lm: bool = False

    def __call__(self, logits: mx.array, full: bool) -> tuple[mx.array, mx.array]:
        """logits float32 [..., V] -> normalised log p [..., V], and bool [...]: rows to be repeated with `full`."""
        return self._mlx_lm(logits, full) if self.mlx_lm else self._default(logits, full)

    def _default(self, logits: mx.array, full: bool) -> tuple[mx.array, mx.array]:
        """Temperature, top-k, top-p, min-p; each sees the normalised result of the one before."""
        x = normalise(logits * (1.0 / self.temperature))
        short = mx.zeros(x.shape[:-1], dtype=mx.bool_)
        if 0 < self.top_k < x.shape[-1]:
            x = normalise(top_k(x, self.top_k))
        if self.top_p < 1.0:
            x, short = top_p(x, self.top_p, full)
            x = normalise(x)
        if self.min_p > 0.0:
            x = normalise(min_p(x, self.min_p))
        return x, short

    def _mlx_lm(self, logits: mx.array, full: bool) -> tuple[mx.array, mx.array]:
        """Top-p, min-p, top-k on the untempered log-probabilities without renormalising between; temperature last."""
        x = normalise(logits)
        short = mx.zeros(x.shape[:-1], dtype=mx.bool_)
        if self.top_p < 1.0:
            x, short = top_p(x, self.top_p, full)
        if self.min_p > 0.0:
            x = min_p(x, self.min_p)
        if 0 < self.top_k < x.shape[-1]:
            x = top_k(x, self.top_k)
        return normalise(x * (1.0 / self.temperature)), short


# --------------------------------------------------------------------------------------------------------------
# Rows as a whole
# --------------------------------------------------------------------------------------------------------------


def non_finite(logits: mx.array) -> mx.array:
    """bool [...]: the row holds a NaN or +inf, or nothing but -inf. Single -inf logits are a mask, and legal."""
    high = mx.max(logits, axis=-1)
    return mx.any(mx.isnan(logits), axis=-1) | (high == mx.inf) | (high == -mx.inf)


def flags(bad: mx.array, short: mx.array) -> mx.array:
    """int32 [...] of a Distribution. A row that is not finite has no truncation worth repeating."""
    short = mx.logical_and(short, mx.logical_not(bad))
    return (bad * NON_FINITE + short * INCOMPLETE).astype(mx.int32)


def first_largest(logits: mx.array) -> mx.array:
    """int32 [...]: the lowest id among a row's largest logits."""
    return mx.argmax(logits, axis=-1).astype(mx.int32)


def one_hot(mode: mx.array, vocab: int) -> mx.array:
    """log-probabilities [..., V] float32 of a certain token: 0 there and -inf elsewhere."""
    there = mx.arange(vocab) == mode[..., None]
    return mx.where(there, mx.array(0.0, dtype=mx.float32), mx.array(-mx.inf, dtype=mx.float32))
