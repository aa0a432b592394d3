"""Watches the ops of a target from outside, by wrapping them at selection: what rows choose, and what rounding does.

`Watch.wrap` is a `wrap_op` of `assemble`. Rows are told apart by their absolute position, so that the same row can be
compared between a decode, a block and a prompt chunk. Ops say what they choose through `OpSpec.choices`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np

from sparkwright.core.contracts import Op, OpSpec
from sparkwright.core.kernels import resolve

if TYPE_CHECKING:
    import mlx.core as mx

Array: TypeAlias = np.ndarray[Any, Any]
Key: TypeAlias = tuple[str, int, str]
"""(op, which call of it in the forward, what was chosen)"""

NOISE = 4
"""Rounding put on an op's result to see what it does: so many units of its dtype, of the row's largest value."""


@attrs.frozen(eq=False)
class Taken:
    """What one row took in one call: sorted numbers, and the scores they were taken by, if any."""

    index: Array
    scores: Array | None


Row: TypeAlias = dict[Key, Taken]
"""All that one row took in one forward, in the order of execution."""

NOTHING = Taken(np.zeros(0, dtype=np.int64), None)


@attrs.define(eq=False)
class Watch:
    """Between `begin` and `rows` every watched op of a forward is recorded; between forwards nothing is held."""

    noisy: bool = False
    watched: set[str] = attrs.field(factory=set)
    wrapped: set[str] = attrs.field(factory=set)
    _position: int = 0
    _count: int = 0
    _recording: bool = False
    _split: bool = False
    _calls: dict[str, int] = attrs.field(factory=dict)
    _seen: list[tuple[Key, Any, Any]] = attrs.field(factory=list)
    _draws: int = 0

    def wrap(self, op: OpSpec, backend: str, called: Op) -> Op:
        choices: Callable[..., Any] | None = resolve(op.choices, f"op '{op.name}': its choices") if op.choices else None
        self.wrapped.add(op.name)
        if choices is not None:
            self.watched.add(op.name)

        def call(*arguments: Any, **named: Any) -> Any:
            result = called(*arguments, **named)
            if choices is not None and self._recording:
                self._record(op.name, choices, result, arguments, named)
            return self._with_noise(result) if self.noisy else result

        return call

    def _record(self, name: str, choices: Callable[..., Any], result: Any, arguments: Any, named: Any) -> None:
        call = self._calls[name] = self._calls.get(name, -1) + 1
        rows = arguments[0].shape[0]
        self._split |= rows < self._count
        if not self._split:
            for what, choice in choices(self._position, result, *arguments, **named).items():
                self._seen.append(((name, call, what), choice.index, choice.scores))

    # ------------------------------------------------------------------------------------------------ recording

    def begin(self, position: int, count: int) -> None:
        """A forward of `count` rows from `position` on comes next."""
        self._position, self._count, self._recording, self._split = position, count, True, False
        self._calls, self._seen = {}, []

    def rows(self, calls: dict[str, int]) -> list[Row] | None:
        """What each row of that forward took. None if the target cut the forward into pieces, which cannot be told
        apart: its ops saw fewer rows than were asked for, or more calls than `calls`, an uncut forward's."""
        import mlx.core as mx

        seen, self._seen, self._recording = self._seen, [], False
        mx.eval([a for _, index, scores in seen for a in (index, scores) if a is not None])
        if self._split or any(last + 1 > calls.get(name, last + 1) for name, last in self._calls.items()):
            return None
        out: list[Row] = [{} for _ in range(self._count)]
        for key, index, scores in seen:
            indices = np.array(index)
            numbers = None if scores is None else np.array(scores)
            for i, row in enumerate(out):
                taken = indices[i]
                row[key] = Taken(np.sort(taken[taken >= 0]), None if numbers is None else numbers[i])
        return out

    # ------------------------------------------------------------------------------------------------- rounding

    def _with_noise(self, result: Any) -> Any:
        import mlx.core as mx

        if isinstance(result, (tuple, list)):
            return type(result)(self._with_noise(part) for part in result)
        if not isinstance(result, mx.array) or not mx.issubdtype(result.dtype, mx.floating):
            return result
        self._draws += 1
        axes = tuple(range(1, result.ndim))
        largest = mx.max(mx.abs(mx.where(mx.isfinite(result), result, 0)), axis=axes, keepdims=True)
        coin = mx.random.uniform(-1, 1, result.shape, key=mx.random.key(self._draws))
        return (result + NOISE * unit(result.dtype) * largest * coin).astype(result.dtype)


def calls_of(row: Row) -> dict[str, int]:
    """How often each watched op was called in the row's forward."""
    out: dict[str, int] = {}
    for name, call, _ in row:
        out[name] = max(out.get(name, 0), call + 1)
    return out


def unit(dtype: mx.Dtype) -> float:
    """The unit roundoff of a floating dtype: half the distance between 1 and the next number."""
    import mlx.core as mx

    return float(mx.finfo(dtype).eps) / 2


# ------------------------------------------------------------------------------------------------------ comparing


@attrs.frozen(eq=False)
class Differs:
    """Where a row's choices part. gap: by how much the numbers that only one side took differ in score, inf where no
    score decided; shift: the largest difference of the two sides' scores. A tie is explained by its shift."""

    key: Key
    ours: Array
    theirs: Array
    gap: float
    shift: float

    @property
    def tie(self) -> bool:
        return self.gap <= 2 * self.shift


def differences(ours: Row, theirs: Row) -> list[Differs]:
    """In order of execution. A choice without scores is not looked at after a tie in the same row: it may follow it."""
    out: list[Differs] = []
    for key in dict.fromkeys([*ours, *theirs]):
        a, b = ours.get(key, NOTHING), theirs.get(key, NOTHING)
        if a.index.shape == b.index.shape and (a.index == b.index).all():
            continue
        scored = a.scores is not None and b.scores is not None
        if not scored and any(one.tie for one in out):
            continue
        gap, shift = _gap(a, b) if scored else (float("inf"), 0.0)
        out.append(Differs(key, a.index, b.index, gap, shift))
    return out


def shift(a: Taken, b: Taken) -> float:
    """The largest difference of two rows' scores, where both have one."""
    if a.scores is None or b.scores is None:
        return 0.0
    n = min(len(a.scores), len(b.scores))
    both = np.isfinite(a.scores[:n]) & np.isfinite(b.scores[:n])
    return float(np.abs(a.scores[:n][both] - b.scores[:n][both]).max(initial=0.0))


def _gap(a: Taken, b: Taken) -> tuple[float, float]:
    assert a.scores is not None and b.scores is not None
    scores = a.scores
    mine, yours = np.setdiff1d(a.index, b.index), np.setdiff1d(b.index, a.index)
    if len(mine) != len(yours) or yours.max(initial=0) >= len(scores) or not np.isfinite(scores[yours]).all():
        return float("inf"), shift(a, b)
    gap = float(scores[mine].max() - scores[yours].min())
    return (gap if np.isfinite(gap) else float("inf")), shift(a, b)
