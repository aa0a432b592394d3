"""Checks of drafters: what they draft, what they draw it from, and what is left of a draft that was rejected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from sparkwright.core.audit.statistics import Test, goodness_of_fit, holm
from sparkwright.core.contracts import Dense, Draft, Sparse
from sparkwright.core.engine import Parts
from sparkwright.core.errors import PluginError
from sparkwright.core.randomness import Keys
from sparkwright.core.testing.check import CheckFailed, Skipped
from sparkwright.core.testing.ground import PLAIN, SAMPLED, SCHEDULER, Entry, Ground, same_text, text

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-3
"""Probabilities of q that rounding may move: a fresh start observes in other pieces than a round does."""

TRIALS, OWN_TRIALS, BINS, ALPHA = 1200, 400, 16, 1e-6
"""Of the test of q: blocks drawn (fewer beside a target that is no toy), cells of a test, false alarms of all its tests
together (Holm's correction). A q that is off by a total variation of 6.1 % over the cells, in blocks of 5, is found
with probability 0.99 (10.6 % with the fewer blocks); a temperature, if it is off by a factor of 1.2."""


@attrs.frozen(eq=False)
class Shown:
    """A draft on the host. q: float64 probabilities [n, V], or None for a point mass."""

    tokens: list[int]
    q: Array | None
    confidence: list[float] | None
    draft: Draft


class Driver:
    """A drafter of an engine, driven by hand in the engine's thread."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.drafter, self.vocab = parts, parts.drafter, parts.target.facts.vocab_size
        self.block = self.drafter.facts.block

    def history(self, seed: int, length: int = 31) -> list[int]:
        """Random tokens, told again and again, so that drafters which look back have something to find."""
        low = 2 if self.vocab > 8 else 0
        words = np.random.default_rng(500 + seed).integers(low, self.vocab, min(11, length))
        return [int(t) for t in np.resize(words, length)]

    def taps(self, tokens: Sequence[int]) -> Any:
        """[len(tokens), taps * d] of a clean forward, or None."""
        if not self.drafter.facts.taps:
            return None
        import mlx.core as mx

        state = self.parts.target.new_state()
        return self.parts.target.forward(mx.array(list(tokens), dtype=mx.int32), state, "none").taps

    def fed(self, tokens: Sequence[int], pieces: Sequence[int] = (), taps: Any = None) -> Any:
        """A fresh state that has observed these tokens; pieces: lengths of its first observations."""
        state = self.drafter.start(tuple(tokens), self.parts.sampler.shape)
        self.feed(state, tokens, 0, pieces, self.taps(tokens) if taps is None else taps)
        return state

    def feed(self, state: Any, tokens: Sequence[int], start: int, pieces: Sequence[int], taps: Any) -> None:
        """Observe tokens[start:] in pieces; taps: those of all tokens."""
        at = start
        for piece in (*pieces, len(tokens)):
            rows = list(tokens[at : at + piece])
            if rows:
                self.drafter.observe(state, rows, None if taps is None else taps[at : at + len(rows)])
                at += len(rows)

    def keys(self, seed: int, anchor: int, limit: int) -> Any:
        return Keys(seed, 0, anchor).array(self.parts.noise, limit)

    def draft(self, state: Any, anchor: int, limit: int, keys: Any) -> Shown:
        return self.show(self.drafter.draft(state, anchor, limit, keys))

    def show(self, draft: Draft) -> Shown:
        proposal = draft.proposal
        q: Array | None = None
        if isinstance(proposal, Dense):
            q = np.exp(np.array(proposal.log_q, dtype=np.float64))
        elif isinstance(proposal, Sparse):
            q = np.zeros((len(draft), self.vocab))
            ids, log_q = np.array(proposal.ids), np.array(proposal.log_q, dtype=np.float64)
            if ids.size and (ids.min() < 0 or ids.max() >= self.vocab):
                raise CheckFailed(
                    f"q names the token {int(ids.max())}, outside the target's vocabulary of {self.vocab}"
                )
            for row, (i, p) in enumerate(zip(ids, log_q, strict=True)):
                q[row, i] = np.exp(p)
        confidence = None if draft.confidence is None else np.array(draft.confidence).tolist()
        return Shown([int(t) for t in np.array(draft.tokens)], q, confidence, draft)


def driven(ground: Ground, work: Any, *changes: dict[str, Any]) -> Any:
    """`work(driver)` in the thread of an engine with a sampler that draws. Skipped for a drafter that never drafts."""
    with ground.engine({"sampler": SAMPLED["sampler"], "verifier": {"use": "stochastic"}}, *changes) as engine:

        def run(parts: Parts) -> Any:
            if not parts.drafter.facts.block:
                raise Skipped("its facts say that it never drafts")
            return work(Driver(parts))

        return engine.run(run)


# ---------------------------------------------------------------------------------------------------- one draft


def _well_formed(ground: Ground) -> None:
    def work(d: Driver) -> None:
        import mlx.core as mx

        drafted = 0
        for seed in range(8):
            h = d.history(seed)
            shown = d.draft(d.fed(h), h[-11], d.block, d.keys(seed, len(h), d.block))
            drafted += len(shown.tokens)
            draft, n = shown.draft, len(shown.tokens)
            if draft.tokens.ndim != 1 or not mx.issubdtype(draft.tokens.dtype, mx.integer):
                raise CheckFailed(f"tokens are {draft.tokens.dtype} {tuple(draft.tokens.shape)}, expected int32 [n]")
            outside = [t for t in shown.tokens if not 0 <= t < d.vocab]
            if outside:
                raise CheckFailed(f"it drafts token {outside[0]}, outside the target's vocabulary of {d.vocab}")
            if isinstance(draft.proposal, (Dense, Sparse)):
                log_q = draft.proposal.log_q
                wide = d.vocab if isinstance(draft.proposal, Dense) else draft.proposal.ids.shape[-1]
                if log_q.dtype != mx.float32 or tuple(log_q.shape) != (n, wide):
                    raise CheckFailed(f"log_q is {log_q.dtype} {tuple(log_q.shape)}, expected float32 {(n, wide)}")
            if isinstance(draft.proposal, Sparse):
                for row in np.array(draft.proposal.ids):
                    if len(set(row.tolist())) != len(row):
                        raise CheckFailed("the ids of a row of its sparse q repeat; expected distinct ids in a row")
            if shown.q is not None:
                _normalised(shown.q, shown.tokens)
            if shown.confidence is not None and not all(0 <= c <= 1 for c in shown.confidence):
                raise CheckFailed(f"confidences are {shown.confidence}, expected numbers from 0 to 1")
            if d.drafter.facts.confidence and n and shown.confidence is None:
                raise CheckFailed("its facts promise confidences and a draft came without; expected float32 [n]")
        if not drafted:
            raise CheckFailed(
                "it drafted nothing after eight texts that repeat themselves (of a toy target: random letters c to k), "
                "so nothing of it can be checked; give options with which it drafts there, "
                "@parametrize_with_checks([(provider, {...})]) or --set, or a config with the target that it is made "
                "for (docs/plugin-checks.md). Words are encoded with site.text.encode_part: encode puts a BOS in front"
            )

    driven(ground, work)


def _normalised(q: Array, tokens: list[int]) -> None:
    if np.isnan(q).any() or (abs(q.sum(axis=-1) - 1) > 1e-3).any():
        sums = ", ".join(f"{s:.4g}" for s in q.sum(axis=-1))
        raise CheckFailed(f"the rows of q sum to {sums}, expected 1 each: give log_softmax of what is drawn from")
    for k, t in enumerate(tokens):
        if not q[k, t] > 0:
            raise CheckFailed(f"draft {k + 1} is token {t}, whose q is {q[k, t]:.3g}; expected a token that q can give")


def _limits(ground: Ground) -> None:
    def work(d: Driver) -> None:
        for limit in range(1, d.block + 1):
            for seed in range(3):
                h = d.history(seed)
                try:
                    d.draft(d.fed(h), h[-11], limit, d.keys(seed, len(h), limit))
                except PluginError as error:
                    raise CheckFailed(f"asked for at most {limit}: {error}") from None

    driven(ground, work)
    with ground.engine() as engine, ground.engine(PLAIN) as plain:
        wanted = text(plain, 1, max_tokens=12)
        for most in range(1, 12):
            try:
                got = text(engine, 1, max_tokens=most)
            except PluginError as error:
                raise CheckFailed(f"a request for {most} tokens: {error}") from None
            same_text(
                got, wanted[:most], f"a request for {most} tokens; the limit may be as low as 1, and 0 drafts none"
            )


def _same_keys(ground: Ground) -> None:
    def work(d: Driver) -> None:
        for seed in range(4):
            h = d.history(seed)
            keys = d.keys(seed, len(h), d.block)
            first = d.draft(d.fed(h), h[-11], d.block, keys)
            d.draft(d.fed(h[:7]), h[3], d.block, d.keys(99, 7, d.block))  # another request in between
            _same(first, d.draft(d.fed(h), h[-11], d.block, keys), 0.0, "twice with the same text and keys",
                  "draw with gumbel(keys[k]) and nothing else, and keep a request's own in its state")  # fmt: skip

    driven(ground, work)


def _same(got: Shown, wanted: Shown, tolerance: float, when: str, what: str) -> None:
    if got.tokens != wanted.tokens:
        raise CheckFailed(f"{when} it drafts {wanted.tokens} and {got.tokens}, expected the same: {what}")
    if (got.q is None) != (wanted.q is None) or (
        got.q is not None and wanted.q is not None and len(got.q) and _off(got.q, wanted.q) > tolerance
    ):
        raise CheckFailed(f"{when} its q differs, expected the same: {what}")
    a, b = got.confidence or [], wanted.confidence or []
    if len(a) != len(b) or any(abs(x - y) > max(tolerance, 1e-6) for x, y in zip(a, b, strict=True)):
        raise CheckFailed(f"{when} its confidences are {b} and {a}, expected the same: {what}")


def _off(a: Any, b: Any, rows: int | None = None) -> float:
    """The largest difference in the first rows that both have."""
    n = min(len(a), len(b)) if rows is None else min(len(a), len(b), rows)
    return float(np.abs(np.array(a[:n]) - np.array(b[:n])).max(initial=0.0))


def _backwards(ground: Ground) -> None:
    """Draft k, its q and its confidence do not change when the keys from k on do."""

    def work(d: Driver) -> None:
        import mlx.core as mx

        if d.block < 2:
            raise Skipped("it drafts one token at a time")
        for seed in range(4):
            h = d.history(seed)
            keys, other = d.keys(seed, len(h), d.block), d.keys(seed + 50, len(h), d.block)
            base = d.draft(d.fed(h), h[-11], d.block, keys)
            for k in range(len(base.tokens)):
                mixed = d.draft(d.fed(h), h[-11], d.block, mx.concatenate([keys[:k], other[k:]]))
                what = f"draft {k + 1} drawn with another key"
                if mixed.tokens[:k] != base.tokens[:k]:
                    raise CheckFailed(
                        f"with {what} the drafts before it change from {base.tokens[:k]} to {mixed.tokens[:k]}; "
                        "draw draft k with keys[k] alone"
                    )
                if base.q is not None and mixed.q is not None and _off(base.q, mixed.q, k + 1) > TOLERANCE:
                    raise CheckFailed(f"with {what} its own q changes: q may depend on earlier drafts alone")
                if _off(base.confidence or (), mixed.confidence or (), k + 1) > TOLERANCE:
                    raise CheckFailed(
                        f"with {what} its confidences change from {base.confidence} to {mixed.confidence}: one "
                        "may depend on earlier drafts alone"
                    )

    driven(ground, work)


def _on_device(ground: Ground) -> None:
    def work(d: Driver) -> None:
        import mlx.core as mx

        h = d.history(0)
        state = d.fed(h)

        def traced(keys: Any) -> Any:
            draft = d.drafter.draft(state, h[-11], d.block, keys)
            extra = [] if draft.confidence is None else [draft.confidence]
            match draft.proposal:
                case Dense(log_q=log_q):
                    extra.append(log_q)
                case Sparse(log_q=log_q):
                    extra.append(log_q)
            return [draft.tokens, *extra]

        try:
            mx.compile(traced)(d.keys(0, len(h), d.block))  # traced, not run
        except Exception as error:
            if "attempting to eval" in str(error).lower():
                raise CheckFailed(
                    "its draft reads an array to the host (item, tolist, NumPy, an `if` on an array); expected the "
                    "block to be one lazy graph"
                ) from None
            raise Skipped(f"its draft cannot be traced by mx.compile: {error}") from None

    driven(ground, work)


# ------------------------------------------------------------------------------------------------------ the law of q


def _true_q(ground: Ground) -> None:
    def work(d: Driver) -> None:
        if d.drafter.facts.proposal == "point":
            raise Skipped("a deterministic draft is true whatever it was drawn from")
        values, excluded = drawn(d, OWN_TRIALS if ground.own_target else TRIALS)
        tests = holm(tests_of(values))
        if excluded or min(t.adjusted for t in tests) < ALPHA:
            worst = min(tests, key=lambda t: t.adjusted)
            found = f"{excluded} drafts had a q of zero" if excluded else f"{worst.name}: p = {worst.adjusted:.2g}"
            raise CheckFailed(
                f"its drafts are not drawn from the q that it says ({found}, of {values.size} drafts); expected "
                "log_q to be what gumbel(keys[k]) was added to, float32, after temperature and filters"
            )

    driven(ground, work)


def drawn(d: Driver, trials: int) -> tuple[Array, int]:
    """(u [trials, block, 2] in (0, 1), NaN where nothing was drafted; drafts whose q was zero).

    u is the probability integral transform of each draft under its q, made continuous by a uniform number: once with
    tokens by id and once by falling q. It is uniform, and independent from draft to draft, exactly if q is true.
    """
    rng = np.random.default_rng(17)
    values = np.full((trials, d.block, 2), np.nan)
    excluded = 0
    histories = [d.history(seed) for seed in range(4)]
    taps = [d.taps(h) for h in histories]
    for trial in range(trials):
        h = histories[trial % 4]
        shown = d.draft(d.fed(h, taps=taps[trial % 4]), h[-11], d.block, d.keys(trial, len(h), d.block))
        if shown.q is None:
            continue
        for k, t in enumerate(shown.tokens):
            q = shown.q[k]
            if not q[t] > 0:
                excluded += 1
                continue
            above = q[(q > q[t]) | ((q == q[t]) & (np.arange(len(q)) < t))].sum()
            values[trial, k] = (q[:t].sum() + rng.random() * q[t], above + rng.random() * q[t])
    return np.clip(values, 0.0, 1.0), excluded


def tests_of(values: Array) -> list[Test]:
    """Each transform against uniform, over the whole block and per position; neighbours against independence."""
    cells = np.minimum(np.floor(values * BINS), BINS - 1)
    flat = np.full(BINS, 1.0 / BINS)
    out: list[Test | None] = []
    for i, order in enumerate(("by token id", "by probability")):
        for k in (None, *range(values.shape[1])):
            seen = cells[:, :, i].ravel() if k is None else cells[:, k, i]
            counts = np.bincount(seen[~np.isnan(seen)].astype(int), minlength=BINS)
            where = "all drafts" if k is None else f"draft {k + 1}"
            out.append(goodness_of_fit(f"{where}, {order}", counts, flat))
        pairs = np.floor(values[:, :-1, i] * 4) * 4 + np.floor(values[:, 1:, i] * 4)
        pairs = pairs[~np.isnan(pairs)]
        counts = np.bincount(np.minimum(pairs, 15).astype(int), minlength=16)
        out.append(goodness_of_fit(f"neighbouring drafts, {order}", counts, np.full(16, 1 / 16)))
    kept = [test for test in out if test is not None]
    if not kept:
        raise Skipped("it drafted too rarely for a test of q; give options or a config with which it drafts")
    return kept


# --------------------------------------------------------------------------------------------- what rounds leave


def _rollback(ground: Ground) -> None:
    def work(d: Driver) -> None:
        drafted = 0
        for seed in range(2):
            h = d.history(seed)
            anchor, keys = h[-11], d.keys(seed, len(h), d.block)
            n = len(d.draft(d.fed(h), anchor, d.block, keys).tokens)
            drafted += n
            for m in range(n + 1):
                state = d.fed(h)
                shown = d.draft(state, anchor, d.block, keys)
                told = [*h, anchor, *shown.tokens[:m]]
                taps = d.taps(told)
                d.feed(state, told, len(h), (), taps)
                after, again = 3 % d.vocab, d.keys(seed + 7, len(told), d.block)
                fresh = d.draft(d.fed(told, taps=taps), after, d.block, again)
                when = f"after {m} of {n} drafts were accepted, against a fresh start on the same text,"
                what = "drop what was drafted when the next tokens are observed: only those are the text"
                _same(d.draft(state, after, d.block, again), fresh, TOLERANCE, when, what)
        if not drafted:
            raise Skipped("it drafted nothing, so nothing was taken back")

    driven(ground, work)


def _depth_zero(ground: Ground) -> None:
    def work(d: Driver) -> None:
        for seed in range(3):
            h = d.history(seed)
            taps = d.taps(h)
            piecewise = d.fed(h, (12, *([1] * len(h))), taps)
            keys = d.keys(seed, len(h), d.block)
            _same(d.draft(piecewise, h[-11], d.block, keys), d.draft(d.fed(h, taps=taps), h[-11], d.block, keys),
                  TOLERANCE, "after rounds without drafts, against a fresh start on the same text,",
                  "observe is called in every round, also in those that drafted nothing")  # fmt: skip

    driven(ground, work)
    with ground.engine({"scheduler": {"use": SCHEDULER}}) as engine, ground.engine(PLAIN) as plain:
        same_text(text(engine, 1), text(plain, 1), "greedy text with rounds of 3, 0, 1, 0, 0, 7, 2 drafts in turn")


def _greedy(ground: Ground) -> None:
    with ground.engine() as engine, ground.engine(PLAIN) as plain:
        for seed in range(2):
            same_text(text(engine, seed), text(plain, seed), "greedy text with this drafter, against plain decoding")


def _coupled(ground: Ground) -> None:
    with ground.engine(SAMPLED) as engine, ground.engine(SAMPLED, PLAIN) as plain:
        for seed in range(2):
            what = "text at temperature 1 under coupled verification, against plain decoding with the same seed"
            same_text(text(engine, seed), text(plain, seed), what)


CHECKS = (
    Entry("drafts are well formed", "token ids, shapes, dtypes, a normalised q that can give the drafts, confidences",
          _well_formed),
    Entry("limits", "never more drafts than asked for, down to requests of one token", _limits),
    Entry("same keys, same drafts", "a draft is a function of the text and its keys", _same_keys),
    Entry("nothing looks ahead", "q and confidence of a draft depend on earlier drafts alone", _backwards),
    Entry("nothing read to the host", "a draft is one lazy graph", _on_device),
    Entry("q is what is drawn from", "drafts have the distribution that the proposal says (statistical)",
          _true_q, True),
    Entry("rollback equals a fresh start", "after every partial acceptance nothing of the rejected drafts is left",
          _rollback),
    Entry("rounds without drafts", "they are observed like any other", _depth_zero),
    Entry("greedy text unchanged", "greedy text is that of plain decoding", _greedy),
    Entry("coupled text unchanged", "text at temperature 1 under coupled verification is that of plain decoding",
          _coupled),
)  # fmt: skip
