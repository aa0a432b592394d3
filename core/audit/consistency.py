"""`audit_consistency`: are decode, verify and prefill one function? Logits of a text, in blocks of every width.

The text is decoded row by row; that is what everything is held against. Then, from the very states that decoding passed
through, blocks of 1..8 rows and prompt chunks are forwarded and taken back, around every position where the target says
that something turns, and the whole text is prefilled in chunks. A difference is

- *structural* if a row attended to other rows or went to other experts, and no near tie in the scores explains it;
- *numeric* if the choices agree and the logits still differ by more than rounding does to this model;
- *rounding* otherwise. What rounding does is measured: the text is decoded again with noise of a few units of their
  dtype on the results of all ops.

What every width makes wrong alike shows in none of this. A target may offer a *reference*, its definition computed
apart from it in float64: then decoding is held against that too, choices and logits (`reference`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from sparkwright.core.assembly import assemble
from sparkwright.core.audit.findings import ConsistencyResult, Finding, Kind, Width
from sparkwright.core.audit.identity import usual_rounding, without_drafter
from sparkwright.core.audit.reference import Follower, length_for
from sparkwright.core.audit.watch import Key, Row, Watch, calls_of, differences, shift
from sparkwright.core.config import Config
from sparkwright.core.contracts import WIDEST_VERIFY, Settle
from sparkwright.core.engine import Parts
from sparkwright.core.errors import PluginError, RequestError

Tell: TypeAlias = Callable[[str, int, int], None]
Reference: TypeAlias = Callable[[list[int], Settle], Any]

CHUNKS = (16, 64)
"""Rows of prompt chunks that are tried beside blocks."""
PREFILL = 24
"""Rows of the chunks that the whole text is prefilled in, beside the configured ones; no divisor of anything usual."""
MARGIN = 8.0
"""How many times the measured effect of rounding a difference may have."""
NOISE_ROWS = 256
SPREAD = 6
"""Positions tried beside those around turns."""
SHOWN = 20
LONGEST = 2200
"""Tokens that are run unless more are asked for: past DeepSeek-V4 Flash's last turn, its indexer's 512 rows."""


def audit_consistency(
    config: Config,
    text: str | Sequence[int],
    *,
    limit: int | None = None,
    reference: int | None = None,
    progress: Tell | None = None,
) -> ConsistencyResult:
    """Audit the configured target over a text, or token ids. limit: no more than its first tokens; None goes past every
    turn of the target, but no further than LONGEST. reference: how many of them are held against the target's
    reference, where it offers one; None for all, unless the model is so large that this takes hours, 0 for none."""
    watch = Watch()
    with assemble(without_drafter(config), progress=progress, wrap_op=watch.wrap) as engine:
        tokens = engine.target.encode(text) if isinstance(text, str) else list(text)
        past = max((t for t in engine.target.facts.turns if t < LONGEST), default=LONGEST // 8) + 2 * WIDEST_VERIFY
        tokens = tokens[: min(limit or past, engine.target.facts.context)]

        def work(parts: Parts) -> ConsistencyResult:
            facts = parts.target.facts
            if facts.rollback is None:
                raise RequestError(
                    f"target '{parts.target.name}' does not take rows back, so it can verify no blocks; there is "
                    "nothing to compare"
                )
            count, why_none = length_for(parts.target, reference, len(tokens))
            result = compare_widths(
                parts.target, watch, tokens, turns=facts.turns, prefill=(PREFILL, config.engine.prefill_chunk),
                row_exact=config.engine.row_exact, progress=progress,
                unit=usual_rounding(parts.target), reference=_definition_of(parts.target), held=count,
            )  # fmt: skip
            return attrs.evolve(
                result,
                promise=parts.promise,
                config_sha256=parts.config_sha256,
                no_reference=why_none,
                all_turns=facts.turns,
            )

        result: ConsistencyResult = engine.run(work)
        return result


def _definition_of(target: Any) -> Reference | None:
    call = target.reference
    return None if call is None else lambda tokens, settle: call(tokens=tokens, settle=settle)


def compare_widths(
    target: Any,
    watch: Watch,
    tokens: Sequence[int],
    *,
    turns: Sequence[int] = (),
    prefill: Sequence[int] = (PREFILL,),
    row_exact: bool = False,
    unit: float = 0.0,
    progress: Tell | None = None,
    reference: Reference | None = None,
    held: int = 0,
) -> ConsistencyResult:
    """The audit itself, on anything with a target's `new_state` and `forward`, whose ops go through `watch.wrap`.

    turns: positions to go around, powers of two for none. unit: rounding of the logits relative to the largest one, for
    a target without ops that noise could be put on. reference: the model's definition, `held`: for how many tokens.
    """
    if len(tokens) < 2 * WIDEST_VERIFY:
        raise RequestError(f"the text has {len(tokens)} tokens; at least {2 * WIDEST_VERIFY} are needed")
    work = _Comparison(target, watch, list(tokens), turns, progress or (lambda what, done, total: None))
    return work.run(prefill, row_exact, unit, reference if held else None, held)


class _Comparison:
    def __init__(self, target: Any, watch: Watch, tokens: list[int], turns: Sequence[int], tell: Tell) -> None:
        self.target, self.watch, self.tokens, self.tell = target, watch, tokens, tell
        end = len(tokens)
        around = [t for t in turns if t < end + WIDEST_VERIFY] or [2**i for i in range(3, 12) if 2**i < end]
        self.turns = tuple(around)
        self.trials = self._trials()
        self.widths: dict[tuple[str, int], Width] = {}
        self.findings: dict[Kind, list[Finding]] = {"structural": [], "numeric": [], "reference": []}
        self.calls: dict[str, int] = {}
        self.decoded: list[Row] = []
        self.shifts: dict[Key, float] = {}
        self.uncompared = 0

    def _trials(self) -> dict[int, list[int]]:
        """Where blocks start, and their rows: every way for a block to hold a turn or to end before it, and all widths
        and chunks at a few more places."""
        end = len(self.tokens)
        trials: dict[int, set[int]] = {}
        for t in self.turns:
            for at in range(max(0, t - WIDEST_VERIFY), t + 1):
                trials.setdefault(at, set()).update(range(max(2, t - at), WIDEST_VERIFY + 1))
            for chunk in CHUNKS:
                trials.setdefault(max(0, t - chunk // 2), set()).add(chunk)
        for at in range(1, end, max(1, end // SPREAD)):
            trials.setdefault(at, set()).update(range(2, WIDEST_VERIFY + 1))
        return {at: sorted(count for count in counts if at + count <= end) for at, counts in trials.items()}

    def run(
        self, prefill: Sequence[int], row_exact: bool, unit: float, reference: Reference | None, held: int
    ) -> ConsistencyResult:
        self.logits = self._decode(len(self.tokens), "decode")
        scale = float(np.abs(self.logits).max())
        if not math.isfinite(scale):
            raise RequestError("the target's logits are not finite; there is nothing to compare")
        rounding = max(16 * 2.0**-23 * scale, self._noise() if self.watch.wrapped else unit * scale)
        self.bound = rounding
        if reference is not None:
            self._against(reference, held)
        self._blocks()
        for chunk in dict.fromkeys(prefill):
            self._prefill(chunk)
        return ConsistencyResult(
            "identity", "", row_exact, len(self.tokens), self.turns, tuple(self.widths.values()), scale, rounding,
            tuple(sorted(self.watch.watched)), self.uncompared,
            tuple(finding for kind in self.findings.values() for finding in kind), held if reference else 0,
        )  # fmt: skip

    # ----------------------------------------------------------------------------------------------- forwards

    def _forward(self, state: Any, at: int, count: int) -> tuple[Any, list[Row] | None]:
        """float32 [count, V] of the rows from `at` on, and what they took."""
        import mlx.core as mx

        self.watch.begin(at, count)
        logits = self.target.forward(mx.array(self.tokens[at : at + count], dtype=mx.int32), state, "all").logits
        assert logits is not None
        mx.eval(logits)
        return np.array(logits.astype(mx.float32)), self.watch.rows(self.calls)

    def _decode(self, count: int, what: str, into: list[Row] | None = None) -> Any:
        """float32 [count, V], row by row; `into` takes the rows' choices, self.decoded if it is None."""
        state, out = self.target.new_state(), []
        rows = self.decoded if into is None else into
        for at in range(count):
            logits, taken = self._forward(state, at, 1)
            rows.append(taken[0] if taken else {})
            out.append(logits)
            self.tell(what, at + 1, count)
        if into is None:
            for row in rows:
                for name, calls in calls_of(row).items():
                    self.calls[name] = max(calls, self.calls.get(name, 0))
        return np.concatenate(out)

    def _noise(self) -> float:
        """Bound of what rounding does to the logits; that of each choice's scores goes into `shifts`. Rows count up to
        the choice that noise turns over, since what comes after it differs by more than rounding."""
        count = min(len(self.tokens), NOISE_ROWS)
        rows: list[Row] = []
        self.watch.noisy = True
        try:
            noisy = self._decode(count, "decode with noise", rows)
        finally:
            self.watch.noisy = False
        size = np.abs(noisy - self.logits[:count]).max(axis=1)
        calm = []
        for row, mine in zip(rows, self.decoded, strict=False):
            turned = {one.key for one in differences(mine, row)}
            for key in mine:
                if key in row:
                    self.shifts[key] = max(self.shifts.get(key, 0.0), MARGIN * shift(mine[key], row[key]))
                if key in turned:
                    break
            calm.append(not turned)
        kept = size[np.array(calm)] if any(calm) else size
        return MARGIN * float(kept.max())

    def _blocks(self) -> None:
        state = self.target.new_state()
        end = len(self.tokens)
        for at in range(end):
            for count in self.trials.get(at, ()):
                transaction = state.begin()
                try:
                    logits, rows = self._forward(state, at, count)
                finally:
                    transaction.abort()
                self._compare(("block" if count <= WIDEST_VERIFY else "prompt chunk", count), at, logits, rows)
            logits, rows = self._forward(state, at, 1)
            self._compare(("block", 1), at, logits, rows)
            self.tell("blocks", at + 1, end)

    def _prefill(self, chunk: int) -> None:
        state, loose = self.target.new_state(), False
        for at in range(0, len(self.tokens), chunk):
            logits, rows = self._forward(state, at, min(chunk, len(self.tokens) - at))
            loose = self._compare(("prefill", chunk), at, logits, rows, loose)
            self.tell("prefill", at + len(logits), len(self.tokens))

    def _against(self, reference: Reference, count: int) -> None:
        """Holds decoding against the model's definition."""
        self.tell("reference", 0, count)
        follower = Follower(self.decoded[:count], self.shifts, self.watch.watched)
        logits = np.asarray(reference(self.tokens[:count], follower.settle), dtype=np.float64)
        mine = self.logits[:count]
        if logits.shape != mine.shape:
            raise PluginError(
                f"the target's reference gave logits of shape {logits.shape} for {count} tokens, expected {mine.shape}"
            )
        width = self.widths.setdefault(("reference", count), Width("reference", count, 1, count))
        width.ties = len(follower.ties)
        sizes = np.abs(logits - mine).max(axis=1)
        for position, size in enumerate(map(float, np.where(np.isnan(sizes), np.inf, sizes))):
            if size > width.largest:
                width.largest, width.position = size, position
            found = Finding("reference", "reference", count, 0, position, size)
            if parted := follower.parted.get(position):
                name, call, what = parted.key
                width.structural += 1
                self._keep(attrs.evolve(
                    found, op=name, call=call, what=what, decoded=tuple(map(int, parted.target)),
                    other=tuple(map(int, parted.reference)),
                ))  # fmt: skip
            elif size > self.bound:
                width.numeric += 1
                self._keep(found)
        self.tell("reference", count, count)

    # ---------------------------------------------------------------------------------------------- comparing

    def _compare(
        self, mode: tuple[str, int], at: int, logits: Any, rows: list[Row] | None, loose: bool = False
    ) -> bool:
        """Holds a forward's rows against decoding. loose: a tie has already turned over in rows that these read, so
        the size of a difference says nothing. Returns whether that is so afterwards."""
        width = self.widths.setdefault(mode, Width(*mode))
        width.forwards += 1
        self.uncompared += rows is None and bool(self.watch.watched)
        sizes = np.abs(logits - self.logits[at : at + len(logits)]).max(axis=1)
        sizes = np.where(np.isnan(sizes), np.inf, sizes)
        for i, size in enumerate(map(float, sizes)):
            position = at + i
            width.compared += 1
            if size > width.largest:
                width.largest, width.position = size, position
            parted = differences(self.decoded[position], rows[i]) if rows is not None else []
            found = Finding("numeric", mode[0], len(logits), at, position, size)
            for one in parted:
                name, call, what = one.key
                told = attrs.evolve(
                    found, op=name, call=call, what=what, decoded=tuple(map(int, one.ours)),
                    other=tuple(map(int, one.theirs)),
                )  # fmt: skip
                if not one.tie:
                    width.structural += 1
                    self._keep(attrs.evolve(told, kind="structural"))
                    loose = True
                    break
                if not loose and one.shift > self.shifts.get(one.key, math.inf):
                    width.numeric += 1
                    self._keep(found)
                    loose = True
                    break
                width.ties += one is parted[0]
                loose = True
            if not loose and size > self.bound:
                width.numeric += 1
                self._keep(found)
        return loose

    def _keep(self, finding: Finding) -> None:
        """The first ones of each kind; structural ones come first, since they name a cause."""
        kept = self.findings[finding.kind]
        if len(kept) < SHOWN:
            kept.append(finding)
