"""What the verifiers compute, as functions with leading batch axes: the engine gives one block, the audit many trials.

Letters: n >= 1 drafts, n + 1 rows of p, V tokens; `...` are batches, empty in the engine. Row i of p is the
distribution of draft i + 1; row n that of the bonus token. Nothing here makes keys, reads to the host, or knows a
sampler.

Every rule ends in the same three things: how many drafts are accepted, the token after them, and whether an empty
residual made p itself the source of that token. Noise over V is made for that one row only, under its gathered key.
"""

from __future__ import annotations

import attrs
import mlx.core as mx

from sparkwright.core.contracts import (
    EMPTY_RESIDUAL,
    INCOMPLETE,
    NON_FINITE,
    Dense,
    Distribution,
    Draft,
    Proposal,
    Sparse,
    Verdict,
)
from sparkwright.core.draw import gumbel_argmax
from sparkwright.core.randomness import uniform


@attrs.frozen(eq=False)
class Outcome:
    """accepted int32 [...] in 0..n; token int32 [...]; empty bool [...]; acceptance float32 [..., n]: the probability
    with which each draft was accepted, given that the ones before it were; read: bool [..., n + 1], the rows of p that
    the outcome depends on."""

    accepted: mx.array
    token: mx.array
    empty: mx.array
    acceptance: mx.array
    read: mx.array


def verdict(draft: Draft, p: Distribution, outcome: Outcome) -> Verdict:
    """The outcome in the engine's form; only rows that it depends on can raise a flag."""
    flags = mx.where(outcome.read, p.flags, 0)
    head = mx.stack(
        [
            outcome.accepted,
            outcome.token,
            mx.max(mx.bitwise_and(flags, INCOMPLETE), axis=-1)
            + mx.max(mx.bitwise_and(flags, NON_FINITE), axis=-1)
            + outcome.empty.astype(mx.int32) * EMPTY_RESIDUAL,
        ],
        axis=-1,
    )
    array = mx.concatenate([head.astype(mx.int32), draft.tokens.astype(mx.int32)], axis=-1)
    return Verdict(array, outcome.acceptance)


# --------------------------------------------------------------------------------------------------------------
# Pieces
# --------------------------------------------------------------------------------------------------------------


def at(x: mx.array, index: mx.array) -> mx.array:
    """x[..., index]: one entry [...] of each x [..., m] for an index [...]."""
    return mx.take_along_axis(x, index[..., None], axis=-1)[..., 0]


def row_at(x: mx.array, row: mx.array) -> mx.array:
    """x[..., row, :]: one row [..., m] of each x [..., r, m] for a row number [...]."""
    return mx.take_along_axis(x, row[..., None, None], axis=-2)[..., 0, :]


def leading(accept: mx.array) -> mx.array:
    """int32 [...]: how many entries of a bool [..., n] are true before the first false one."""
    return mx.cumprod(accept.astype(mx.int32), axis=-1).sum(axis=-1).astype(mx.int32)


def up_to(accepted: mx.array, rows: int) -> mx.array:
    """bool [..., rows]: rows 0..accepted."""
    return mx.arange(rows) <= accepted[..., None]


def log_q_of(tokens: mx.array, proposal: Proposal) -> mx.array:
    """log q of each draft, float32 [..., n]; -inf where a draft is not even among its own candidates."""
    if isinstance(proposal, Dense):
        return at(proposal.log_q, tokens)
    if isinstance(proposal, Sparse):
        return mx.max(mx.where(proposal.ids == tokens[..., None], proposal.log_q, -mx.inf), axis=-1)
    return mx.zeros(tokens.shape, dtype=mx.float32)


def ratios(tokens: mx.array, proposal: Proposal, log_p: mx.array) -> mx.array:
    """p / q of each draft, float32 [..., n]. NaN, and 0 where q is 0: a draft that its own q excludes says nothing."""
    n = tokens.shape[-1]
    log_q = log_q_of(tokens, proposal)
    ratio = mx.exp(at(log_p[..., :n, :], tokens) - log_q)
    return mx.where(log_q == -mx.inf, 0.0, ratio)


def excess(p: mx.array, tokens: mx.array, proposal: Proposal) -> mx.array:
    """max(p - q, 0) of the same rows: p [..., m, V] scaled as the caller likes, drafts [..., m] and their proposal."""
    if isinstance(proposal, Dense):
        return mx.maximum(p - mx.exp(proposal.log_q), 0.0)
    if isinstance(proposal, Sparse):
        ids = proposal.ids
        rest = mx.maximum(mx.take_along_axis(p, ids, axis=-1) - mx.exp(proposal.log_q), 0.0)
        return mx.put_along_axis(p, ids, rest, axis=-1)
    ids = tokens[..., None]
    return mx.put_along_axis(p, ids, mx.maximum(mx.take_along_axis(p, ids, axis=-1) - 1.0, 0.0), axis=-1)


def proposal_at(proposal: Proposal, row: mx.array) -> Proposal:
    """The proposal of one row [...] of each block, as a block of one."""
    if isinstance(proposal, Dense):
        return Dense(row_at(proposal.log_q, row)[..., None, :])
    if isinstance(proposal, Sparse):
        return Sparse(row_at(proposal.ids, row)[..., None, :], row_at(proposal.log_q, row)[..., None, :])
    return proposal


def correction(
    log_p: mx.array,
    scale: mx.array,
    tokens: mx.array,
    proposal: Proposal,
    accepted: mx.array,
    keys: mx.array,
) -> tuple[mx.array, mx.array]:
    """The token after `accepted` drafts, int32 [...], and whether its residual was empty, bool [...].

    From max(scale * p - q, 0), normalised, of row `accepted`; from p itself in row n, where nothing was proposed, and
    where the residual has no mass or is not finite. scale [...] is 1 but for block verification. keys uint32
    [..., n + 1, 2]: one for each row.
    """
    n = tokens.shape[-1]
    row = mx.minimum(accepted, n - 1)
    log_row = row_at(log_p, accepted)  # [..., V]
    p = mx.exp(log_row) * scale[..., None]
    rest = excess(p[..., None, :], at(tokens, row)[..., None], proposal_at(proposal, row))[..., 0, :]
    mass = rest.sum(axis=-1)
    bonus = accepted == n
    usable = mx.logical_and(mass > 0, mass < mx.inf)  # false for NaN
    empty = mx.logical_not(mx.logical_or(usable, bonus))
    # The argmax of log weight + Gumbel noise does not care for the weights' sum: no division is needed.
    source = mx.where(mx.logical_or(bonus, empty)[..., None], log_row, mx.log(rest))
    return gumbel_argmax(source, row_at(keys, accepted)), empty


# --------------------------------------------------------------------------------------------------------------
# The four rules
# --------------------------------------------------------------------------------------------------------------


def match(tokens: mx.array, mode: mx.array) -> Outcome:
    """Greedy: a draft is accepted while it is the only token its row allows. mode int32 [..., n + 1].

    What every rule below comes to when p is a point mass; it needs no noise and no vocabulary-sized array.
    """
    same = tokens == mode[..., : tokens.shape[-1]]
    accepted = leading(same)
    empty = mx.zeros(accepted.shape, dtype=mx.bool_)
    return Outcome(
        accepted, at(mode, accepted), empty, same.astype(mx.float32), up_to(accepted, mode.shape[-1])
    )


def rejection(
    tokens: mx.array, proposal: Proposal, log_p: mx.array, accept_keys: mx.array, residual_keys: mx.array
) -> Outcome:
    """Token-wise rejection (Leviathan et al. 2023, Chen et al. 2023): draft y is accepted with min(1, p(y) / q(y)); the
    token after them comes from the normalised max(p - q, 0) of the first rejected row, or from p in row n.

    tokens int32 [..., n], log_p [..., n + 1, V], accept_keys uint32 [..., n, 2], residual_keys uint32 [..., n + 1, 2].
    """
    ratio = ratios(tokens, proposal, log_p)
    accepted = leading(uniform(accept_keys, 1)[..., 0] < ratio)  # a NaN rejects
    one = mx.ones(accepted.shape, dtype=mx.float32)
    token, empty = correction(log_p, one, tokens, proposal, accepted, residual_keys)
    return Outcome(accepted, token, empty, _probability(ratio), up_to(accepted, log_p.shape[-2]))


def coupled(tokens: mx.array, log_p: mx.array, target_keys: mx.array) -> Outcome:
    """The target's own draw of every position, under its plain-decoding noise; accepted while it equals the draft.

    target_keys uint32 [..., n + 1, 2]. acceptance is p of the draft, which ignores what the noise has in common.
    """
    n = tokens.shape[-1]
    own = gumbel_argmax(log_p, target_keys)  # [..., n + 1]
    accepted = leading(tokens == own[..., :n])
    empty = mx.zeros(accepted.shape, dtype=mx.bool_)
    acceptance = _probability(mx.exp(at(log_p[..., :n, :], tokens)))
    return Outcome(accepted, at(own, accepted), empty, acceptance, up_to(accepted, n + 1))


def block_probabilities(tokens: mx.array, proposal: Proposal, log_p: mx.array) -> tuple[mx.array, mx.array]:
    """w [..., n + 1] and h [..., n] of block verification; docs/block-verification derives both.

    w_0 = 1 and w_i = min(1, w_{i-1} p(y_i) / q(y_i)): how much of the prefix y_1..y_i the target still wants. h_i, the
    probability of stopping at i when nothing longer was taken: S_i / (S_i + 1 - w_i) with S_i the sum of
    max(w_i p - q, 0) over row i, and h_n = w_n, because nothing was submitted after the last draft. That the draft
    might have gone on is no reason to use the first form there: its q belongs to no submitted draft.
    """
    n = tokens.shape[-1]
    ratio = ratios(tokens, proposal, log_p)
    w = [mx.ones(ratio.shape[:-1], dtype=mx.float32)]
    for i in range(n):
        w.append(mx.minimum(w[-1] * ratio[..., i], 1.0))
    weights = mx.stack(w, axis=-1)
    inner = weights[..., 1:n]  # [..., n - 1]: rows 1..n-1, which have a draft after them
    p = mx.exp(log_p[..., 1:n, :]) * inner[..., None]
    rest = excess(p, tokens[..., 1:], _after_first(proposal)).sum(axis=-1)
    share = rest / (rest + (1.0 - inner))
    share = mx.where(rest > 0, share, 0.0)  # 0 / 0 where p = q: the longer block decides; a NaN stops nowhere
    return weights, mx.concatenate([share, weights[..., n:]], axis=-1)


def block(
    tokens: mx.array, proposal: Proposal, log_p: mx.array, accept_keys: mx.array, residual_keys: mx.array
) -> Outcome:
    """Block verification (Sun et al. 2024, arXiv 2403.10444): the longest prefix i whose uniform is below h_i is
    accepted, then a token from the normalised max(w_i p - q, 0). Arguments as for `rejection`."""
    n = tokens.shape[-1]
    w, h = block_probabilities(tokens, proposal, log_p)
    stops = uniform(accept_keys, 1)[..., 0] < h  # [..., n]; a NaN does not stop
    accepted = mx.max(mx.where(stops, mx.arange(1, n + 1), 0), axis=-1).astype(mx.int32)
    token, empty = correction(log_p, at(w, accepted), tokens, proposal, accepted, residual_keys)
    # P(at least i) = 1 - prod_{j >= i} (1 - h_j); the report is conditional on i - 1.
    none_longer = mx.cumprod((1.0 - h)[..., ::-1], axis=-1)[..., ::-1]
    reach = 1.0 - none_longer
    before = mx.concatenate([mx.ones_like(reach[..., :1]), reach[..., :-1]], axis=-1)
    acceptance = _probability(mx.where(before > 0, reach / before, 0.0))
    # A row after a prefix the target excludes (w = 0) changes nothing; every other row can.
    return Outcome(accepted, token, empty, acceptance, mx.logical_not(w == 0))


def _after_first(proposal: Proposal) -> Proposal:
    if isinstance(proposal, Dense):
        return Dense(proposal.log_q[..., 1:, :])
    if isinstance(proposal, Sparse):
        return Sparse(proposal.ids[..., 1:, :], proposal.log_q[..., 1:, :])
    return proposal


def _probability(x: mx.array) -> mx.array:
    return mx.where(x > 0, mx.minimum(x, 1.0), 0.0)  # NaN to 0
