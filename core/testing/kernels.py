"""Checks of kernel backends: each kernel beside its op's reference, on example calls.

Examples come from `checks_for(..., cases=...)`, or from the function that the Provider names in
`tools={"cases": "package.module:function"}`; a configuration with a target that has ops serves as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import attrs
import numpy as np

from sparkwright.core.check import LiveCheck
from sparkwright.core.contracts import WIDEST_VERIFY, Op, OpSpec, Site
from sparkwright.core.errors import NumericError, SparkwrightError
from sparkwright.core.kernels import reference, resolve
from sparkwright.core.roles import new_manager, register
from sparkwright.core.testing.check import CheckFailed, Skipped
from sparkwright.core.testing.ground import Entry, Ground, usable


@attrs.frozen(eq=False)
class OpCase:
    """An example call of an op: what a kernel is asked for, and arguments for any number of rows.

    make(rows, seed) -> the positional arguments. per_row: which of them have the rows as first axis.
    dtype, format, widths: what selection is asked (contracts.SelectKernel).
    """

    op: OpSpec
    make: Callable[[int, int], Sequence[Any]]
    dtype: str = "float32"
    format: str = ""
    widths: tuple[int, ...] = ()
    per_row: tuple[int, ...] = (0,)

    @property
    def what(self) -> str:
        return f"op '{self.op.name}' ({self.dtype}{', ' + self.format if self.format else ''}, widths {self.widths})"


def cases_of(ground: Ground) -> list[OpCase]:
    """Skipped where there are none."""
    made = list(ground.cases)
    path = ground.provider.tools.get("cases")
    if not made and path is not None:
        made = list(resolve(path, f"{ground.who}: its cases")())
    if not made:
        raise Skipped(
            "no example calls: give checks_for(provider, cases=[OpCase(...)]), or name a function that returns them in "
            'the Provider: tools={"cases": "package.module:function"}'
        )
    return made


def built(ground: Ground, device: str) -> Any:
    """The select hook of the backend, built for a device."""
    usable(ground.provider)
    manager = new_manager()
    options = ground.given
    register(manager, ground.provider.build(options, Site(device=device)), "kernels", ground.provider.name)
    return manager.hook.sparkwright_select_kernel


def kernels(ground: Ground, device: str) -> Iterator[tuple[OpCase, Op]]:
    """Each case and the kernel that the backend selects for it; Skipped if it covers none."""
    ask, any_taken = built(ground, device), False
    for case in cases_of(ground):
        kernel = ask(op=case.op, device=device, dtype=case.dtype, format=case.format, widths=case.widths)
        if kernel is not None:
            any_taken = True
            yield case, kernel
    if not any_taken:
        raise Skipped(f"it covers none of the example calls on the device '{device}'")


def here() -> str:
    from sparkwright.core.assembly import device_name

    return device_name()


def _flat(result: Any) -> list[Any]:
    return [part for item in result for part in _flat(item)] if isinstance(result, (tuple, list)) else [result]


def _numbers(result: Any) -> list[np.ndarray[Any, Any]]:
    import mlx.core as mx

    return [
        np.array(a.astype(mx.float32)) if mx.issubdtype(a.dtype, mx.floating) else np.array(a) for a in _flat(result)
    ]


def _compared(ground: Ground, device: str, rows: Sequence[int] = tuple(range(1, WIDEST_VERIFY + 1))) -> None:
    for case, kernel in kernels(ground, device):
        check = LiveCheck()
        run = check.wrap(case.op, ground.provider.name, kernel)
        if kernel is reference(case.op):
            continue
        for count in rows:
            for seed in range(2):
                try:
                    run(*case.make(count, seed))
                except NumericError as error:
                    raise CheckFailed(f"{case.what}: {error}") from None
                except SparkwrightError:
                    raise
                except Exception as error:
                    raise CheckFailed(
                        f"{case.what} with {count} rows raises {type(error).__name__}: {error}; expected a kernel for "
                        f"1 to {WIDEST_VERIFY} rows, or None from selection"
                    ) from None


def _reference(ground: Ground) -> None:
    _compared(ground, here())


def _rows(ground: Ground) -> None:
    """A row's bits do not change with what its neighbours hold, nor does NaN there reach it."""
    import mlx.core as mx

    def poisoned(array: Any, row: int) -> Any:
        keep = (mx.arange(array.shape[0]) == row).reshape(-1, *[1] * (array.ndim - 1))
        bad = mx.full(array.shape, float("nan"), dtype=array.dtype)
        return mx.where(keep, array, bad) if mx.issubdtype(array.dtype, mx.floating) else array

    for case, kernel in kernels(ground, here()):
        for count in (2, 3, WIDEST_VERIFY):
            arguments, other = list(case.make(count, 1)), list(case.make(count, 2))
            base = _numbers(kernel(*arguments))
            for row in range(count):
                for name, neighbours in (("other numbers", None), ("NaN", poisoned)):
                    changed = list(arguments)
                    for i in case.per_row:
                        keep = (mx.arange(count) == row).reshape(-1, *[1] * (arguments[i].ndim - 1))
                        mixed = mx.where(keep, arguments[i], other[i])
                        changed[i] = mixed if neighbours is None else neighbours(arguments[i], row)
                    for a, b in zip(base, _numbers(kernel(*changed)), strict=True):
                        if a.ndim and a.shape[0] == count and not np.array_equal(a[row], b[row], equal_nan=True):
                            raise CheckFailed(
                                f"{case.what}: row {row} of {count} changes when its neighbours hold {name}; expected "
                                "a row to be a function of itself and of what all rows share"
                            )


def _written(ground: Ground) -> None:
    """Every element is written: memory that held NaN a moment before does not shine through."""
    import mlx.core as mx

    for case, kernel in kernels(ground, here()):
        for count in range(1, WIDEST_VERIFY + 1):
            arguments = case.make(count, 3)
            wanted = _numbers(reference(case.op)(*arguments))
            for _ in range(3):
                for array in wanted:
                    mx.eval([mx.full(array.shape, float("nan")) for _ in range(4)])
                got = _numbers(kernel(*arguments))
                for a, b in zip(got, wanted, strict=True):
                    if a.shape == b.shape and (np.isnan(a) & ~np.isnan(b)).any():
                        raise CheckFailed(f"{case.what} with {count} rows leaves elements that nobody wrote (NaN)")


def _selection(ground: Ground) -> None:
    ask = built(ground, here())
    strange = OpSpec("kit_no_such_op", "sparkwright.core.testing.kernels:here", "an op that nobody has")
    try:
        answer = ask(op=strange, device=here(), dtype="float32", format="", widths=(7,))
    except Exception as error:
        raise CheckFailed(
            f"asked for an op that it cannot know it raises {type(error).__name__}: {error}; expected None: not mine"
        ) from None
    if answer is not None and answer is not reference(strange):
        raise CheckFailed("it answers for an op that it cannot know; expected None, or the op's reference")
    for case in cases_of(ground):
        for device in ("cpu", "metal", "cuda", "abacus"):
            for dtype in (case.dtype, "complex64"):
                for widths in (case.widths, ()):
                    try:
                        ask(op=case.op, device=device, dtype=dtype, format=case.format, widths=widths)
                        ask(op=case.op, device=device, dtype=dtype, format="of_a_later_version", widths=widths)
                    except Exception as error:
                        raise CheckFailed(
                            f"{case.what}, asked for {device}, {dtype}, widths {widths}, it raises "
                            f"{type(error).__name__}: {error}; expected a callable or None for what it does not cover"
                        ) from None


def _metal(ground: Ground) -> None:
    """The kernels' Metal text, executed on this machine's CPU."""
    try:
        from mslrun import mlx_hook
    except ImportError:
        raise Skipped("mslrun, which runs Metal source on a CPU, is not installed") from None
    asked: list[str] = []
    with mlx_hook.emulate(lint=True) if here() != "metal" else nullcontext():
        import mlx.core as mx

        right = mx.fast.metal_kernel

        def noted(*arguments: Any, **named: Any) -> Any:
            asked.append(str(named.get("name", "")))
            return right(*arguments, **named)

        mx.fast.metal_kernel = noted
        try:
            _compared(ground, "metal", (1, 3, 8))
        finally:
            mx.fast.metal_kernel = right
    if not asked:
        raise Skipped("none of its kernels is made by mx.fast.metal_kernel")


def _live(ground: Ground) -> None:
    """In a generation: every kernel beside its reference on live inputs."""
    from sparkwright.core.audit.kernels import audit_kernels

    if "target" not in ground.config:
        raise Skipped("the toy target has no ops; give config={'target': ...} to check kernels on live inputs")
    config = ground.load()
    result = audit_kernels(config, [list(range(2, 12))], max_tokens=12)
    if result.first is not None:
        raise CheckFailed(str(result.first))
    if not any(op.calls for op in result.ops):
        raise Skipped("no kernel of it covers an op of this target here: " + result.meaning)


CHECKS = (
    Entry("selection", "it answers None for what it does not cover, and never raises", _selection),
    Entry("agrees with the reference", "for 1 to 8 rows within rounding, repeatable, inputs untouched", _reference),
    Entry("rows are apart", "a row's bits do not depend on what its neighbours hold, NaN included", _rows),
    Entry("every element is written", "memory that held NaN before does not shine through", _written),
    Entry("Metal source", "its Metal text runs on the CPU runner and agrees (where mslrun is installed)", _metal, True),
    Entry("live inputs", "in a generation of a configured target every kernel keeps its bound", _live, True),
)
