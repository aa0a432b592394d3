"""Checks of samplers: each row a function of its own logits and past, and a state that is a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparkwright.core.contracts import INCOMPLETE, NON_FINITE, Distribution
from sparkwright.core.errors import PluginError
from sparkwright.core.roles import Sampler
from sparkwright.core.testing.check import CheckFailed, Skipped
from sparkwright.core.testing.common import facts_of, suits
from sparkwright.core.testing.ground import PLAIN, Entry, Ground, prompt_for, same_text, text

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-5
"""Probabilities that rounding may move between one row and several."""


class Driver:
    """A sampler of an engine, driven by hand in the engine's thread."""

    def __init__(self, sampler: Sampler, vocab: int, prompt: list[int]) -> None:
        self.sampler, self.vocab = sampler, vocab
        self.prompt = prompt

    def start(self) -> Any:
        return self.sampler.start(tuple(self.prompt))

    def logits(self, seed: int, rows: int) -> Array:
        drawn = np.random.default_rng([seed, rows]).normal(size=(rows, self.vocab)) * 2
        out: Array = drawn.astype(np.float32)
        return out

    def p(self, state: Any, logits: Array, drafts: Sequence[int] = (), full: bool = True) -> Distribution:
        import mlx.core as mx

        context = self.sampler.rows(state, mx.array(list(drafts), dtype=mx.int32))
        return self.sampler.distribution(mx.array(logits), context, full)

    def probabilities(self, state: Any, logits: Array, drafts: Sequence[int] = (), full: bool = True) -> Array:
        out: Array = np.exp(np.array(self.p(state, logits, drafts, full).log_p, dtype=np.float64))
        return out

    def walk(self, state: Any, logits: Array, seed: int) -> tuple[list[int], list[Array], list[Any]]:
        """Tokens drawn one after another, one for each row but the last; p of each row alone; the states."""
        rng = np.random.default_rng(seed)
        tokens: list[int] = []
        rows, states = [], [state]
        for i in range(len(logits)):
            row = self.probabilities(states[-1], logits[i : i + 1])[0]
            rows.append(row)
            if i + 1 < len(logits):
                tokens.append(int(rng.choice(len(row), p=row / row.sum())))
                states.append(self.sampler.advance(states[-1], (tokens[-1],)))
        return tokens, rows, states


def driven(ground: Ground, work: Callable[[Driver], None]) -> None:
    with ground.engine(suits(ground)) as engine:
        prompt = prompt_for(engine, 4)
        engine.run(lambda parts: work(Driver(parts.sampler, parts.target.facts.vocab_size, prompt)))


def _close(got: Array, wanted: Array, what: str) -> None:
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        off = float(np.abs(np.nan_to_num(a, nan=9.0) - np.nan_to_num(b, nan=9.0)).max())
        if off > TOLERANCE:
            token = int(np.abs(a - b).argmax())
            raise CheckFailed(
                f"row {i} gives token {token} probability {a[token]:.4g}, expected {b[token]:.4g}: {what}"
            )


# ------------------------------------------------------------------------------------------------------ one row


def _normalised(ground: Ground) -> None:
    def work(d: Driver) -> None:
        import mlx.core as mx

        for rows in (1, 2, 8):
            logits = d.logits(rows, rows)
            state = d.start()
            drafts, _, _ = d.walk(state, logits, rows)
            for full in (False, True):
                p = d.p(state, logits, drafts, full)
                if p.log_p.dtype != mx.float32 or tuple(p.log_p.shape) != (rows, d.vocab):
                    raise CheckFailed(
                        f"log_p is {p.log_p.dtype} {tuple(p.log_p.shape)}, expected float32 {(rows, d.vocab)}"
                    )
                if tuple(p.flags.shape) != (rows,) or not mx.issubdtype(p.flags.dtype, mx.integer):
                    raise CheckFailed(f"flags are {p.flags.dtype} {tuple(p.flags.shape)}, expected int32 [{rows}]")
                flags, values = np.array(p.flags), np.exp(np.array(p.log_p, dtype=np.float64))
                if (flags & NON_FINITE).any() or (full and flags.any()):
                    raise CheckFailed(
                        f"finite logits, asked for in full, come back with flags {flags.tolist()}; expected 0"
                    )
                good = (flags & INCOMPLETE) == 0
                sums = values.sum(axis=-1)
                if np.isnan(values).any() or (abs(sums[good] - 1) > 1e-4).any():
                    raise CheckFailed(f"the rows of p sum to {sums.round(5).tolist()}, expected 1 each")
                _mode(p, values, d.sampler.facts.deterministic)

    driven(ground, work)


def _mode(p: Distribution, values: Array, deterministic: bool) -> None:
    if deterministic and p.mode is None:
        raise CheckFailed("its facts say deterministic and a Distribution has no mode; expected int32 [rows]")
    if p.mode is not None:
        modes = np.array(p.mode)
        if not all(values[i, m] > 1 - 1e-6 for i, m in enumerate(modes)):
            raise CheckFailed("a row has a mode and log_p below 0 there; a mode is the only possible token of its row")


def _own_row(ground: Ground) -> None:
    """A block's row i is what a decode after the first i drafts would be."""

    def work(d: Driver) -> None:
        for seed in range(4):
            logits, state = d.logits(seed, 6), d.start()
            for _ in range(seed * 3):  # states with a past
                first = d.probabilities(state, logits[:1])[0]
                state = d.sampler.advance(state, (int(first.argmax()),))
            drafts, rows, _ = d.walk(state, logits, seed)
            what = (
                "a row of a block is the decode after its drafts; every row's context is the emitted tokens and d1..di"
            )
            for full in (True, False):
                p = d.p(state, logits, drafts, full)
                good = (np.array(p.flags) & INCOMPLETE) == 0
                got = np.exp(np.array(p.log_p, dtype=np.float64))
                _close(got[good], np.array(rows)[good], what)

    driven(ground, work)


def _later_rows(ground: Ground) -> None:
    def work(d: Driver) -> None:
        logits, state = d.logits(9, 6), d.start()
        drafts, _, _ = d.walk(state, logits, 9)
        base = d.probabilities(state, logits, drafts)
        for k in range(1, 6):
            changed = logits.copy()
            changed[k:] = d.logits(50 + k, 6)[k:]
            later = d.probabilities(state, changed, drafts)
            if not np.array_equal(later[:k], base[:k], equal_nan=True):
                raise CheckFailed(f"row {k - 1} changes with the logits of row {k}; expected rows apart")
            for other in (t for t in range(d.vocab) if t != drafts[k - 1]):
                swapped = [*drafts[: k - 1], other, *drafts[k:]]
                try:
                    moved = d.probabilities(state, logits, swapped)
                except Exception:
                    continue  # a draft that the sampler can refuse (a grammar)
                if not np.array_equal(moved[:k], base[:k], equal_nan=True):
                    raise CheckFailed(
                        f"row {k - 1} changes with draft {k}, which comes after it; expected its own past"
                    )
                break

    driven(ground, work)


def _pure(ground: Ground) -> None:
    def work(d: Driver) -> None:
        logits = d.logits(2, 7)
        state = d.start()
        tokens, rows, states = d.walk(state, logits, 2)
        what = "an old state answers as before; advance returns a new state and changes none, and hooks keep nothing"
        _close(np.array([d.probabilities(s, logits[i : i + 1])[0] for i, s in enumerate(states)]), np.array(rows), what)
        together = d.sampler.advance(state, tuple(tokens))
        what = "several tokens advance like one after another"
        _close(d.probabilities(together, logits[-1:]), rows[-1][None], what)
        _close(d.probabilities(d.sampler.advance(state, ()), logits[:1]), rows[0][None], "no tokens, no change")
        again, repeated, _ = d.walk(d.start(), logits, 2)
        _close(np.array(repeated), np.array(rows), "a second request begins like the first; keep nothing between them")
        if again != tokens:
            raise CheckFailed(f"the same walk gives {tokens} and {again}")

    driven(ground, work)


def _not_finite(ground: Ground) -> None:
    def work(d: Driver) -> None:
        logits, state = d.logits(3, 3), d.start()
        drafts, _, _ = d.walk(state, logits, 3)
        base = d.probabilities(state, logits, drafts)
        for value, name in ((np.nan, "NaN"), (np.inf, "+inf"), (-np.inf, "a row of -inf")):
            broken = logits.copy()
            if value == -np.inf:
                broken[1] = value
            else:
                broken[1, 3] = value
            p = d.p(state, broken, drafts)
            flags = np.array(p.flags)
            if not flags[1] & NON_FINITE:
                raise CheckFailed(f"logits with {name} come back with flag {flags[1]}, expected bit {NON_FINITE}")
            if (flags[[0, 2]] & NON_FINITE).any():
                raise CheckFailed(f"{name} in row 1 marks other rows: flags {flags.tolist()}; expected rows apart")
            _close(np.exp(np.array(p.log_p, dtype=np.float64))[[0, 2]], base[[0, 2]], f"{name} in row 1 alone")

    driven(ground, work)


def _shape(ground: Ground) -> None:
    def work(d: Driver) -> None:
        import mlx.core as mx

        logits = d.logits(5, 6)
        flat = np.array(d.sampler.shape(mx.array(logits)), dtype=np.float64)
        if flat.shape != logits.shape or (abs(np.exp(flat).sum(axis=-1) - 1) > 1e-4).any():
            raise CheckFailed(f"shape gives rows {flat.shape} that sum to {np.exp(flat).sum(axis=-1)}, expected 1 each")
        deep = np.array(d.sampler.shape(mx.array(logits.reshape(2, 3, d.vocab))), dtype=np.float64)
        _close(np.exp(deep.reshape(6, d.vocab)), np.exp(flat), "shape with leading axes, row for row")
        if d.sampler.facts.deterministic and (flat.argmax(axis=-1) != logits.argmax(axis=-1)).any():
            raise CheckFailed("shape of a deterministic sampler is not 0 at the first largest logit")

    driven(ground, work)


def _on_device(ground: Ground) -> None:
    def work(d: Driver) -> None:
        import mlx.core as mx

        if d.sampler.facts.host:
            raise Skipped("its facts declare that it needs drafts on the host")
        logits, state = d.logits(6, 4), d.start()
        drafts, _, _ = d.walk(state, logits, 6)

        def traced(given: Any, tokens: Any) -> Any:
            p = d.sampler.distribution(given, d.sampler.rows(state, tokens), True)
            return [p.log_p, p.flags]

        try:
            mx.compile(traced)(mx.array(logits), mx.array(drafts, dtype=mx.int32))  # traced, not run
        except Exception as error:
            if "attempting to eval" in str(error).lower():
                raise CheckFailed(
                    "rows or distribution reads an array to the host; expected one lazy graph, or facts with host=True"
                ) from None
            raise Skipped(f"it cannot be traced by mx.compile: {error}") from None

    driven(ground, work)


def _leading_axes(ground: Ground) -> None:
    """What an audit of the law does with one that says it takes leading axes: one state, many texts' drafts at once."""

    def work(d: Driver) -> None:
        import mlx.core as mx

        plugin = d.sampler._manager.get_plugin(f"sampler:{d.sampler.name}")
        if not getattr(plugin, "leading_axes", False):
            raise Skipped("it does not say leading_axes = True, so audits call it one text at a time")
        for count in (1, 4):  # rows of a block
            state = d.sampler.advance(d.start(), d.walk(d.start(), d.logits(7, 3), 7)[0])
            logits = [d.logits(20 + block, count) for block in range(3)]
            drafts = [d.walk(state, given, block)[0] for block, given in enumerate(logits)]
            tokens = mx.array(np.array(drafts, dtype=np.int32).reshape(3, count - 1))
            try:
                p = d.sampler.distribution(mx.array(np.stack(logits)), d.sampler.rows(state, tokens), True)
            except PluginError as error:
                raise CheckFailed(
                    f"drafts {[3, count - 1]} and logits {[3, count, d.vocab]} at once: {error}"
                ) from None
            if tuple(p.log_p.shape) != (3, count, d.vocab) or tuple(p.flags.shape) != (3, count):
                found = f"log_p {tuple(p.log_p.shape)} and flags {tuple(p.flags.shape)}"
                raise CheckFailed(f"three blocks at once give {found}, expected {(3, count, d.vocab)} and {(3, count)}")
            together = np.exp(np.array(p.log_p, dtype=np.float64))
            for block, given in enumerate(logits):
                alone = d.probabilities(state, given, drafts[block])
                _close(together[block], alone, f"block {block} of three at once, which is what it is alone")

    driven(ground, work)


def _text(ground: Ground) -> None:
    with ground.engine(suits(ground)) as engine, ground.engine(suits(ground), PLAIN) as plain:
        name = "greedy" if facts_of(ground).deterministic else "coupled"
        for seed in range(4):
            what = f"text with drafts under the verifier {name}, against plain decoding with the same seed"
            same_text(text(engine, seed), text(plain, seed), what)


CHECKS = (
    Entry("distributions are well formed", "shapes, dtypes, rows that sum to 1, all complete when asked in full",
          _normalised),
    Entry("a row is its own decode", "row i of a block is the decode after its first i drafts", _own_row),
    Entry("later rows do not matter", "a row changes neither with later logits nor with later drafts", _later_rows),
    Entry("states are values", "advance is pure, and nothing is kept between calls", _pure),
    Entry("not finite", "NaN, +inf and rows of -inf are marked, in their row alone", _not_finite),
    Entry("shape", "the drafter's view of the sampler is normalised and takes leading axes", _shape),
    Entry("nothing read to the host", "rows and distribution are one lazy graph, or facts say host", _on_device),
    Entry("leading axes", "many blocks at once come out as each alone", _leading_axes),
    Entry("text unchanged", "text with drafts under an identity verifier is that of plain decoding", _text),
)  # fmt: skip
