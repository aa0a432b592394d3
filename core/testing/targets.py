"""Checks of targets: prefill, decode and verify are one function, and rows that are taken back leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sparkwright.core.contracts import WIDEST_VERIFY, TargetState, Transaction
from sparkwright.core.roles import Target
from sparkwright.core.testing.check import CheckFailed, Skipped
from sparkwright.core.testing.ground import PLAIN, SAMPLED, Entry, Ground, same_text, text

Array = np.ndarray[Any, Any]
LENGTH, PREFIX = 40, 13


class Driver:
    """A target of an engine, driven by hand in the engine's thread."""

    def __init__(self, target: Target) -> None:
        self.target, self.vocab = target, target.facts.vocab_size
        if target.facts.context < LENGTH + WIDEST_VERIFY:
            raise Skipped(f"its context of {target.facts.context} tokens is shorter than the {LENGTH} of this check")
        self.tokens = [int(t) for t in np.random.default_rng(8).integers(0, self.vocab, LENGTH)]
        self.garbage = [int(t) for t in np.random.default_rng(9).integers(0, self.vocab, LENGTH)]
        self._clean: Array | None = None

    def forward(self, state: Any, ids: Sequence[int], logits: Any = "all") -> Array:
        import mlx.core as mx

        given = self.target.forward(mx.array(list(ids), dtype=mx.int32), state, logits).logits
        if given is None:
            return np.zeros((0, self.vocab), dtype=np.float32)
        if given.dtype != mx.float32:
            raise CheckFailed(f"logits are {given.dtype}, expected float32")
        return np.array(given)

    @property
    def clean(self) -> Array:
        """float32 [LENGTH, V]: each row decoded by itself."""
        if self._clean is None:
            state = self.target.new_state()
            self._clean = np.concatenate([self.forward(state, [t]) for t in self.tokens])
        return self._clean

    @property
    def bound(self) -> float:
        """What rounding may do to logits (an estimate, generous by 16)."""
        from sparkwright.core.audit.identity import usual_rounding

        return 16 * usual_rounding(self.target) * float(np.abs(self.clean).max()) + 1e-6

    def close(self, got: Array, at: int, what: str) -> None:
        """Rows got [n, V] against the clean rows from position `at` on."""
        wanted = self.clean[at : at + len(got)]
        off = np.abs(got.astype(np.float64) - wanted).max(axis=-1)
        off = np.where(np.isnan(off), np.inf, off)
        for i, value in enumerate(off):
            if value > self.bound:
                raise CheckFailed(
                    f"position {at + i}: logits differ by {value:.3g} from those of the row decoded by itself, "
                    f"rounding allows {self.bound:.1g}: {what}"
                )


def driven(ground: Ground, work: Callable[[Driver], None]) -> None:
    with ground.engine(PLAIN) as engine:
        engine.run(lambda parts: work(Driver(parts.target)))


def _one_function(ground: Ground) -> None:
    def work(d: Driver) -> None:
        what = "one token or many, in one call or several, must be the same function of the tokens before"
        for size in (LENGTH, *range(WIDEST_VERIFY, 1, -1)):
            state, at = d.target.new_state(), 0
            while at < LENGTH:
                d.close(d.forward(state, d.tokens[at : at + size]), at, f"forwarded {size} at a time; {what}")
                at += size
        for size in range(1, WIDEST_VERIFY + 1):  # a verify after a prefill, its tail garbage
            for good in range(1, size + 1):
                state = d.target.new_state()
                d.forward(state, d.tokens[:PREFIX], "none")
                begun = state.begin()
                block = [*d.tokens[PREFIX : PREFIX + good], *d.garbage[: size - good]]
                rows = d.forward(state, block)[:good]
                d.close(rows, PREFIX, f"a verify of {size} rows, the last {size - good} of them wrong; {what}")
                begun.abort()

    driven(ground, work)


def _logits(ground: Ground) -> None:
    def work(d: Driver) -> None:
        for rows in (1, 5):
            made = []
            for kind in ("all", "last", "none"):
                state = d.target.new_state()
                d.forward(state, d.tokens[:PREFIX], "none")
                made.append(d.forward(state, d.tokens[PREFIX : PREFIX + rows], kind))
                d.close(d.forward(state, [d.tokens[PREFIX + rows]]), PREFIX + rows, f"after logits = {kind!r}")
            if len(made[0]) != rows or len(made[1]) != 1 or len(made[2]):
                raise CheckFailed(
                    f"logits 'all', 'last' and 'none' give {[len(m) for m in made]} rows for {rows} tokens"
                )
            d.close(made[1], PREFIX + rows - 1, "logits = 'last' is the last row of 'all'")

    driven(ground, work)


def _rollback(ground: Ground) -> None:
    def work(d: Driver) -> None:
        if d.target.facts.rollback is None:
            raise Skipped("its facts say that it takes no rows back, and drafters are refused")
        for rows in range(1, WIDEST_VERIFY + 1):
            for m in range(rows + 1):
                state = _prefixed(d)
                begun = state.begin()
                d.forward(state, [*d.tokens[PREFIX : PREFIX + m], *d.garbage[: rows - m]])
                begun.commit(m)
                _position(state, PREFIX + m, f"after commit({m}) of {rows} rows")
                what = f"after commit({m}) of {rows} rows the rest must be as if it had never been forwarded"
                d.close(d.forward(state, d.tokens[PREFIX + m : PREFIX + m + 9]), PREFIX + m, what)
        state = _prefixed(d)
        for _ in range(6):  # round after round on one state
            begun = state.begin()
            d.forward(state, d.garbage[:5])
            begun.commit(0)
        d.close(d.forward(state, d.tokens[PREFIX:]), PREFIX, "after six rounds of which nothing was kept")

    driven(ground, work)


def _abort(ground: Ground) -> None:
    def work(d: Driver) -> None:
        if d.target.facts.rollback is None:
            raise Skipped("its facts say that it takes no rows back, and drafters are refused")
        state = _prefixed(d)
        for rows in (1, 3, 8):
            begun = state.begin()
            d.forward(state, d.garbage[:rows])
            begun.abort()
            _position(state, PREFIX, "after an abort")
            d.close(d.forward(state, d.tokens[PREFIX : PREFIX + 4]), PREFIX, f"after an abort of {rows} rows")
            state = _prefixed(d)
        begun = state.begin()  # two forwards of one transaction
        d.forward(state, d.tokens[PREFIX : PREFIX + 2])
        d.forward(state, [*d.tokens[PREFIX + 2 : PREFIX + 4], *d.garbage[:3]])
        begun.commit(4)
        d.close(d.forward(state, d.tokens[PREFIX + 4 :]), PREFIX + 4, "after commit(4) of two forwards of 2 and 5 rows")

    driven(ground, work)


def _prefixed(d: Driver) -> TargetState:
    state = d.target.new_state()
    d.forward(state, d.tokens[:PREFIX], "none")
    _position(state, PREFIX, f"after {PREFIX} tokens")
    return state


def _position(state: TargetState, wanted: int, when: str) -> None:
    if state.position != wanted:
        raise CheckFailed(f"{when} the state's position is {state.position}, expected {wanted}")


def _states(ground: Ground) -> None:
    def work(d: Driver) -> None:
        first, second = d.target.new_state(), d.target.new_state()
        for at in range(0, LENGTH, 4):
            d.close(
                d.forward(first, d.tokens[at : at + 4]), at, "two states forwarded in turn; keep caches in the state"
            )
            d.forward(second, d.garbage[at : at + 4])

    driven(ground, work)


def _taps(ground: Ground) -> None:
    """Taps of a layer are the same however rows are cut, and only given out if asked for."""

    def work(d: Driver) -> None:
        if not d.target.facts.tappable:
            raise Skipped("its facts say that it gives out no layers")

    driven(ground, work)
    import mlx.core as mx

    from sparkwright.core.testing.ground import tapping_drafter

    with ground.engine(PLAIN) as engine:
        layers = engine.run(lambda parts: parts.target.facts.layers)
    wanted = tuple(dict.fromkeys((-1, 0, layers - 1)))
    drafter = {"use": "kit_taps", "model": None}
    with ground.engine({"drafter": drafter}, providers=[tapping_drafter(wanted)]) as engine:

        def tapped(parts: Any) -> None:
            d = Driver(parts.target)

            def taps(state: Any, ids: Sequence[int]) -> Array:
                given = d.target.forward(mx.array(list(ids), dtype=mx.int32), state, "none").taps
                if given is None:
                    raise CheckFailed(f"asked for layers {wanted} it gives no taps; build it with site.taps")
                return np.array(given.astype(mx.float32))

            whole = taps(d.target.new_state(), d.tokens)
            width = d.target.facts.hidden * len(wanted)
            if whole.shape != (LENGTH, width):
                raise CheckFailed(f"taps of layers {wanted} are {whole.shape}, expected {(LENGTH, width)}")
            state = d.target.new_state()
            pieces = np.concatenate([taps(state, d.tokens[at : at + 3]) for at in range(0, LENGTH, 3)])
            off, scale = np.abs(whole - pieces).max(), np.abs(whole).max()
            if not off <= 1e-3 * scale + 1e-6:
                raise CheckFailed(f"taps differ by {off:.3g} (largest {scale:.3g}) when rows come three at a time")
            embedded = np.array(d.target.resources.embed(mx.array(d.tokens, dtype=mx.int32)).astype(mx.float32))
            if np.abs(whole[:, : d.target.facts.hidden] - embedded).max() > 1e-3 * scale + 1e-6:
                raise CheckFailed("layer -1 is not the embedding that its resources lend")

        engine.run(tapped)


def _resources(ground: Ground) -> None:
    def work(d: Driver) -> None:
        import mlx.core as mx

        facts, lent = d.target.facts, d.target.resources
        hidden = lent.embed(mx.array(d.tokens[:3], dtype=mx.int32))
        if tuple(hidden.shape) != (3, facts.hidden):
            raise CheckFailed(f"resources.embed gives {tuple(hidden.shape)} for 3 tokens, expected {(3, facts.hidden)}")
        logits = lent.head(hidden)
        if tuple(logits.shape) != (3, d.vocab) or logits.dtype != mx.float32:
            raise CheckFailed(
                f"resources.head gives {logits.dtype} {tuple(logits.shape)}, expected float32 {(3, d.vocab)}"
            )
        ids = d.target.encode("ab")
        if not all(isinstance(i, int) and 0 <= i < d.vocab for i in ids):
            raise CheckFailed(f"its tokenizer encodes 'ab' as {ids}, expected ids from 0 to {d.vocab - 1}")
        part = getattr(d.target.text, "encode_part", None)
        if part is None:
            raise CheckFailed(
                "its tokenizer has no encode_part; expected a method that encodes words inside a text, without what "
                "`encode` puts before a prompt: plugins that look for words call it"
            )
        inside = part("ab")
        if ids[len(ids) - len(inside) :] != inside:
            raise CheckFailed(
                f"its tokenizer encodes 'ab' as {ids} and, inside a text, as {inside}; expected the same ids without "
                "what stands before a prompt"
            )
        for end in range(len(d.tokens)):
            if not isinstance(d.target.decode(d.tokens[:end]), str):
                raise CheckFailed("its tokenizer decodes ids to something that is no text")
        wrong = [t for t in facts.eos if not 0 <= t < d.vocab]
        if wrong:
            raise CheckFailed(f"its facts name the EOS id {wrong[0]}, outside its vocabulary of {d.vocab}")

    driven(ground, work)


def _text(ground: Ground) -> None:
    if ground.load().slots["drafter"].use == "none":
        raise Skipped("the configuration drafts nothing")
    with ground.engine(PLAIN) as plain:
        if plain.run(lambda parts: parts.target.facts.rollback) is None:
            raise Skipped("its facts say that it takes no rows back, and drafters are refused")
    for settings, what in (({}, "greedy text"), (SAMPLED, "text at temperature 1 under coupled verification")):
        with ground.engine(settings) as engine, ground.engine(settings, PLAIN) as plain:
            same_text(text(engine, 1), text(plain, 1), f"{what} with random drafts, against plain decoding")


def _strict(ground: Ground) -> None:
    def work(d: Driver) -> None:
        state = _prefixed(d)
        begun: Transaction = state.begin()
        for _ in range(2):
            try:
                state.begin()
            except Exception:
                break
        else:
            raise CheckFailed("a second begin inside a transaction is taken; expected an error")
        begun.abort()
        for m in (-1, 4):
            state = _prefixed(d)
            begun = state.begin()
            d.forward(state, d.tokens[PREFIX : PREFIX + 3])
            try:
                begun.commit(m)
            except Exception:
                continue
            raise CheckFailed(f"commit({m}) of 3 rows is taken; expected an error for what is outside 0..3")

    driven(ground, work)


CHECKS = (
    Entry("one function", "prefill, decode and verify of any width give the same logits, whatever follows in the block",
          _one_function),
    Entry("logits as asked", "'all', 'last' and 'none' differ in what is given out alone", _logits),
    Entry("rollback for every commit", "after commit(m) of r rows, for all m <= r <= 8, the rest was never there",
          _rollback),
    Entry("abort", "an aborted transaction, and one of several forwards, leave what they should", _abort),
    Entry("transactions are strict", "a nested begin and a commit out of range are errors", _strict),
    Entry("states are apart", "two states forwarded in turn do not reach each other", _states),
    Entry("taps", "layer outputs have their shape and do not depend on how rows are cut", _taps),
    Entry("resources and text", "embedding, head, tokenizer and EOS ids are as the contract says", _resources),
    Entry("text unchanged", "random drafts change no text, greedy or coupled", _text),
)  # fmt: skip
