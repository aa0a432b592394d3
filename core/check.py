"""The live check of kernels: each selected kernel beside its op's reference, on the live inputs of a generation.

`kernels.check = true` raises at the first excess; `audit kernels` collects. A kernel is called twice, into memory that
held NaN a moment before, on inputs that are compared with themselves afterwards: it must be repeatable bit for bit,
write every element, and change nothing it was given. Every call waits for the device: this is for finding faults.

The bound of a row is (8 u + 2 n v) max |row|. u is the unit roundoff of the activations: each side rounds its result
once, and may round what it multiplies once more than the other, which for n terms of random sign comes to about u of a
typical result; 8 u leaves room for two such stages and for the largest of thousands of elements. v is float32's, for
sums of n products in another order; n is the longest row of an argument or weight. What was chosen (integers) must be
equal, except where the scores that decided lie as near to each other as that bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import numpy as np

from sparkwright.core.contracts import WIDEST_VERIFY, Op, OpSpec
from sparkwright.core.errors import NumericError
from sparkwright.core.kernels import reference, resolve
from sparkwright.core.roles import Target

if TYPE_CHECKING:
    import mlx.core as mx

Array: TypeAlias = np.ndarray[Any, Any]
FLOAT32 = 2.0**-24


@attrs.frozen
class Excess:
    """The first time an op left its bound. call: which call of the op since the forward began (with one call a layer,
    the layer); output: which of its results; fault: "differs", "not repeatable", "changed its inputs", ..."""

    op: str
    backend: str
    fault: str
    call: int
    row: int
    shape: tuple[int, ...]
    output: int = 0
    difference: float = 0.0
    bound: float = 0.0

    def __str__(self) -> str:
        size = f" by {self.difference:.3g}, allowed {self.bound:.3g}" if self.fault == "differs" else ""
        return (
            f"kernel backend '{self.backend}', op '{self.op}', call {self.call} of its forward, row {self.row} of "
            f"{self.shape[0] if self.shape else 1}, result {self.output} of shape {self.shape}: {self.fault}{size}"
        )


@attrs.define
class Tally:
    """What was seen of one op and backend. worst: the largest difference over its bound, in call `call`, row `row`."""

    op: str
    backend: str
    calls: int = 0
    rows: set[int] = attrs.field(factory=set)
    worst: float = 0.0
    call: int = 0
    row: int = 0
    ties: int = 0
    excess: Excess | None = None


@attrs.define(eq=False)
class LiveCheck:
    """`wrap` is a `wrap_op` of `assemble`; `watch` tells it where forwards begin. fatal: NumericError at an excess."""

    fatal: bool = True
    tallies: dict[tuple[str, str], Tally] = attrs.field(factory=dict)
    references: set[str] = attrs.field(factory=set)
    first: Excess | None = None
    _calls: dict[str, int] = attrs.field(factory=dict)

    def watch(self, target: Target) -> None:
        """Counts calls from the beginning of each of the target's forwards."""
        forward = target.forward

        def counted(*arguments: Any, **named: Any) -> Any:
            self._calls.clear()
            return forward(*arguments, **named)

        target.forward = counted  # type: ignore[method-assign]

    def wrap(self, op: OpSpec, backend: str, called: Op) -> Op:
        meaning = reference(op)
        if called is meaning:
            self.references.add(op.name)
            return called
        tally = self.tallies.setdefault((op.name, backend), Tally(op.name, backend))

        def call(*arguments: Any, **named: Any) -> Any:
            number = self._calls[op.name] = self._calls.get(op.name, -1) + 1
            if arguments[0].shape[0] > WIDEST_VERIFY:
                return called(*arguments, **named)  # the reference itself
            return self._compare(op, tally, number, called, meaning, arguments, named)

        return call

    # ---------------------------------------------------------------------------------------------- comparing

    def _compare(
        self, op: OpSpec, tally: Tally, number: int, called: Op, meaning: Op, arguments: Any, named: Any
    ) -> Any:
        """The kernel's result, or the reference's once it left its bound, so that later ops get sane inputs."""
        import mlx.core as mx

        rows = int(arguments[0].shape[0])
        tally.calls += 1
        tally.rows.add(rows)
        given = [a for a in arguments if isinstance(a, mx.array)]
        before = [_words(a) for a in given]
        wanted = meaning(*arguments, **named)
        want = list(_arrays(wanted))
        mx.eval(want)
        results = []
        for _ in range(2):
            _poison(want)
            results.append(called(*arguments, **named))
            mx.eval(list(_arrays(results[-1])))
        got, again = (list(_arrays(result)) for result in results)

        def excess(fault: str, row: int = 0, output: int = 0, difference: float = 0.0, bound: float = 0.0) -> Any:
            shape = tuple(got[output].shape) if output < len(got) else ()
            found = Excess(op.name, tally.backend, fault, number, row, shape, output, difference, bound)
            self.first = self.first or found
            tally.excess = tally.excess or found
            if self.fatal:
                raise NumericError(f"{found}. Use kernels.ops.{op.name} = 'unfused', and please report it")
            return wanted

        shapes = [(a.shape, a.dtype) for a in want]
        if [(a.shape, a.dtype) for a in got] != shapes:
            kinds = ", ".join(f"{a.dtype} {a.shape}" for a in got)
            return excess(f"gives {kinds}, the reference {', '.join(f'{d} {s}' for s, d in shapes)}")
        if not all(np.array_equal(_words(a), words) for a, words in zip(given, before, strict=True)):
            return excess("changed its inputs")
        for i, (a, b) in enumerate(zip(got, again, strict=True)):
            same = np.atleast_1d(_words(a) == _words(b))
            if not same.all():
                return excess("is not repeatable", int(np.argmin(same.reshape(len(same), -1).all(axis=1))), i)
        allowed = self._relative(arguments, want)
        tied = _ties(op, results[0], wanted, arguments, named, rows, allowed)
        tally.ties += len(tied)
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            per_row = bool(a.ndim) and a.shape[0] == rows
            shown, meant = (_by_row(x, rows if per_row else 1) for x in (a, b))
            if not mx.issubdtype(a.dtype, mx.floating):
                wrong = [r for r in np.flatnonzero((shown != meant).any(axis=1)) if r not in tied]
                if wrong:
                    return excess("chose other numbers than the reference", int(wrong[0]), i)
                continue
            finite = np.isfinite(meant)
            off = np.where(finite, np.abs(np.where(np.isnan(shown), np.inf, shown) - np.where(finite, meant, 0)), 0.0)
            bounds = allowed * np.where(finite, np.abs(meant), 0.0).max(axis=1, initial=0.0) + 2.0**-120
            ratio = off.max(axis=1, initial=0.0) / bounds
            ratio[[r for r in tied if per_row]] = 0.0
            worst = int(np.argmax(ratio)) if len(ratio) else 0
            if len(ratio) and ratio[worst] > tally.worst:
                tally.worst, tally.call, tally.row = float(ratio[worst]), number, worst
            if len(ratio) and ratio.max() > 1:
                row = int(np.flatnonzero(ratio > 1)[0])
                return excess("differs", row, i, float(off[row].max()), float(bounds[row]))
        return results[0]

    @staticmethod
    def _relative(arguments: Any, want: list[mx.array]) -> float:
        """The bound of a row relative to its largest value."""
        import mlx.core as mx

        floats = [a for a in (arguments[0], *want) if mx.issubdtype(a.dtype, mx.floating)]
        u = max((float(mx.finfo(a.dtype).eps) / 2 for a in floats), default=FLOAT32)
        return 8 * u + 2 * max(_lengths((*arguments, *want)), default=1) * FLOAT32


def _arrays(result: Any) -> Iterator[mx.array]:
    """The arrays of a result, in order."""
    import mlx.core as mx

    if isinstance(result, mx.array):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from _arrays(part)


def _lengths(value: Any) -> Iterator[int]:
    """How long the rows of arrays and weights are; a packed weight says so as `in_size`."""
    import mlx.core as mx

    if isinstance(value, mx.array):
        yield value.shape[-1] if value.ndim else 1
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _lengths(part)
    elif isinstance(getattr(value, "in_size", None), int):
        yield value.in_size
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from _lengths(getattr(value, field.name))


def _poison(like: list[mx.array]) -> None:
    """Leaves NaN in freed memory of these sizes, which MLX hands out again for results of the same size."""
    import mlx.core as mx

    for array in like:
        floating = mx.issubdtype(array.dtype, mx.floating)
        mx.eval(mx.full(array.shape, float("nan") if floating else -(1 << 20), dtype=array.dtype))


def _words(array: mx.array) -> Array:
    """Its bits, as unsigned integers."""
    import mlx.core as mx

    if array.dtype == mx.bool_ or not array.ndim:
        return np.array(array)
    return np.array(array.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[array.dtype.size]))


def _by_row(array: mx.array, rows: int) -> Array:
    """[rows, everything else], as float64 or integers."""
    import mlx.core as mx

    floating = mx.issubdtype(array.dtype, mx.floating)
    values: Array = np.array(array.astype(mx.float32)).astype(np.float64) if floating else np.array(array)
    return values.reshape(rows, -1)


def _ties(op: OpSpec, got: Any, wanted: Any, arguments: Any, named: Any, rows: int, allowed: float) -> frozenset[int]:
    """Rows whose choices differ where the scores that decided are nearer to each other than rounding."""
    if not op.choices:
        return frozenset()
    choices = resolve(op.choices, f"op '{op.name}': its choices")
    ours, theirs = (choices(0, result, *arguments, **named) for result in (got, wanted))
    tied = set()
    for name, choice in ours.items():
        if choice.scores is None or name not in theirs:
            continue
        scores = np.array(choice.scores)
        mine, yours = np.array(choice.index), np.array(theirs[name].index)
        for row in range(rows):
            finite = scores[row][np.isfinite(scores[row])]
            more, fewer = (np.setdiff1d(a[row], b[row]) for a, b in ((mine, yours), (yours, mine)))
            swapped = np.concatenate([more, fewer])
            if len(more) != len(fewer) or not len(more) or swapped.min() < 0 or swapped.max() >= scores.shape[1]:
                continue
            gap = scores[row][fewer].max() - scores[row][more].min()
            if np.isfinite(gap) and gap <= 2 * allowed * np.abs(finite).max():
                tied.add(row)
    return frozenset(tied)
