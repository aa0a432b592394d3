"""Expected accepted lengths on Markov tables, exactly: what each verifier's rule promises, before any trial is run.

Float64 and by enumeration, written apart from the verifiers' own cores, so that one can be held against the other. All
functions take p and q as probabilities [V, V] by the token before, the anchor, and the number of drafts n, and give
[n + 1]: the probability that at least 0, 1, ..., n drafts are accepted. Their sum is the mean accepted length tau.
"""

from __future__ import annotations

import numpy as np

from sparkwright.core.audit.subjects import Array


def _chained(step: Array, anchor: int, n: int) -> Array:
    """Survival when a draft v after u is drawn and accepted with probability step[u, v], whatever happened before."""
    reach = np.zeros(step.shape[0])
    reach[anchor] = 1.0
    survival = [1.0]
    for _ in range(n):
        reach = reach @ step
        survival.append(float(reach.sum()))
    return np.array(survival)


def stochastic(p: Array, q: Array, anchor: int, n: int) -> Array:
    """Token-wise rejection: v is drawn and accepted with probability min(p, q)."""
    return _chained(np.minimum(p, q), anchor, n)


def coupled(p: Array, q: Array, anchor: int, n: int) -> Array:
    """Shared Gumbel noise: both maxima are v with probability 1 / sum_w max(p_w / p_v, q_w / q_v)."""
    ratio_p, ratio_q = (x[:, None, :] / x[:, :, None] for x in (p, q))  # [u, v, w]
    return _chained(1.0 / np.maximum(ratio_p, ratio_q).sum(axis=-1), anchor, n)


def block(p: Array, q: Array, anchor: int, n: int) -> Array:
    """Block verification: every path of drafts, with the probabilities h of docs/block-verification."""
    vocab = p.shape[0]
    paths = np.stack(np.meshgrid(*[np.arange(vocab)] * n, indexing="ij"), axis=-1).reshape(-1, n)
    before = np.concatenate([np.full((len(paths), 1), anchor), paths[:, :-1]], axis=1)
    weight, chance = np.ones(len(paths)), np.ones(len(paths))
    h = np.zeros((len(paths), n))
    for i in range(n):
        u, v = before[:, i], paths[:, i]
        chance = chance * q[u, v]
        weight = np.minimum(1.0, weight * p[u, v] / q[u, v])
        if i + 1 < n:
            rest = np.maximum(weight[:, None] * p[v] - q[v], 0.0).sum(axis=-1)
            whole = rest + 1.0 - weight
            h[:, i] = np.divide(rest, whole, out=np.zeros_like(rest), where=whole > 0)
        else:
            h[:, i] = weight
    none_longer = np.cumprod((1.0 - h)[:, ::-1], axis=1)[:, ::-1]
    survival: Array = np.concatenate([[1.0], chance @ (1.0 - none_longer)])
    return survival


RULES = {"stochastic": stochastic, "block": block, "coupled": coupled}
