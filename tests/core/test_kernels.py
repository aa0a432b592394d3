"""Kernel selection: the order backends are asked in, what the question is, overrides, and long forwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import mlx.core as mx
import pytest
from tests.core.engines import V, table, toy_engine

from sparkwright.core.contracts import WIDEST_VERIFY, OpSpec, Provider, Site
from sparkwright.core.errors import AssemblyError, ConfigError, PluginError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.kernels import by_rows
from sparkwright.core.testing import toys

CALLS: list[tuple[str, int]] = []


def lookup_rows(tokens: mx.array, logits: mx.array) -> mx.array:
    """The toy op's meaning: rows of a table."""
    CALLS.append(("reference", tokens.shape[0]))
    return logits[tokens]


def lookup_twice(tokens: mx.array, logits: mx.array) -> mx.array:
    return logits[tokens] * 2


OP = OpSpec("lookup_rows", f"{__name__}:lookup_rows", "rows of a table")


@attrs.define(eq=False)
class Backend:
    name: str
    covers: Callable[..., bool]
    asked: list[dict[str, Any]] = attrs.field(factory=list)

    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec, device: str, dtype: str, format: str, widths: Any) -> Any:
        question = {"op": op.name, "device": device, "dtype": dtype, "format": format, "widths": widths}
        self.asked.append(question)
        if not self.covers(**question):
            return None
        if self.name == "unfused":
            return lookup_rows

        def kernel(tokens: mx.array, logits: mx.array) -> mx.array:
            CALLS.append((self.name, tokens.shape[0]))
            assert tokens.shape[0] <= WIDEST_VERIFY
            return logits[tokens]

        return kernel


def backend(name: str, covers: Callable[..., bool] = lambda **question: True) -> tuple[Provider, Backend]:
    plugin = Backend(name, covers)
    return Provider(kind="kernels", name=name, summary="toy", build=lambda options, site: plugin), plugin


@attrs.define(eq=False)
class KernelTarget(toys.MarkovTarget):
    kernel: Any = None

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: toys.ToyState, logits: Any) -> Any:
        forward = super().sparkwright_target_forward(tokens, state, logits)
        rows = tokens[-1:] if logits == "last" else tokens
        return attrs.evolve(forward, logits=self.kernel(rows, self.table)) if logits != "none" else forward


def kernel_target(
    *questions: tuple[str, str, tuple[int, ...]], op: OpSpec = OP, declared: tuple[OpSpec, ...] = (OP,)
) -> Provider:
    """A target with one op, asked for under each (dtype, format, widths); the last answer is used."""

    def build(options: Any, site: Site) -> KernelTarget:
        assert site.select is not None
        for dtype, format, widths in questions or (("float32", "", (V,)),):
            kernel = site.select(op, dtype=dtype, format=format, widths=widths)
        return KernelTarget(mx.array(table()), kernel=kernel)

    return attrs.evolve(toys.markov_target(table()), build=build, ops=declared)


@pytest.fixture(autouse=True)
def _calls() -> None:
    CALLS.clear()


def engine(use: Any, *providers: Provider, ops: dict[str, str] | None = None, **how: Any) -> Any:
    settings = {"kernels": {"use": use, "ops": ops or {}}, "drafter": {"use": "random"}}
    return toy_engine(settings, *providers, **how)


def test_the_first_backend_in_use_that_covers_an_op_answers() -> None:
    one, first = backend("one", lambda **question: False)
    two, _ = backend("two")
    three, third = backend("three")
    with engine(["one", "two", "three"], kernel_target(), one, two, three) as made:
        result = made.complete("abc", max_tokens=5)
    assert result.kernels == {"lookup_rows": "two"} and not third.asked
    assert first.asked == [{"op": "lookup_rows", "device": "cpu", "dtype": "float32", "format": "", "widths": (V,)}]
    with engine(["three", "two"], kernel_target(), one, two, three) as made:
        assert made.complete("abc", max_tokens=5).kernels == {"lookup_rows": "three"}


def test_each_combination_is_asked_once_and_backends_are_listed() -> None:
    one, plugin = backend("one", lambda dtype, **question: dtype == "float32")
    two, _ = backend("two")
    wide, narrow = ("bfloat16", "mxfp4", (8,)), ("float32", "", (8,))
    with engine(["one", "two"], kernel_target(wide, narrow, narrow, wide, ("float32", "", (9,))), one, two) as made:
        kernels = made.complete("abc", max_tokens=2).kernels
    assert [(q["dtype"], q["widths"]) for q in plugin.asked] == [
        ("bfloat16", (8,)),
        ("float32", (8,)),
        ("float32", (9,)),
    ]
    assert kernels == {"lookup_rows": "two + one"}


def test_auto_is_fused_then_unfused_and_takes_what_is_installed() -> None:
    fused, _ = backend("fused")
    unfused, _ = backend("unfused")
    with engine(["auto"], kernel_target(), fused, unfused) as made:
        assert made.complete("abc", max_tokens=2).kernels == {"lookup_rows": "fused"}
    declining, _ = backend("fused", lambda **question: False)
    with engine(["auto"], kernel_target(), declining, unfused) as made:
        assert made.complete("abc", max_tokens=2).kernels == {"lookup_rows": "unfused"}
    third, _ = backend("third")
    with engine(["third", "auto"], kernel_target(), third, fused, unfused) as made:
        assert made.complete("abc", max_tokens=2).kernels == {"lookup_rows": "third"}


def test_an_override_is_the_only_backend_that_is_asked() -> None:
    one, plugin = backend("one")
    two, _ = backend("two")
    with engine(["one"], kernel_target(), one, two, ops={"lookup_rows": "two"}) as made:
        assert made.complete("abc", max_tokens=2).kernels == {"lookup_rows": "two"}
    assert not plugin.asked
    declining, _ = backend("two", lambda **question: False)
    with pytest.raises(AssemblyError, match=r"no kernel backend of \['two'\] covers the op 'lookup_rows' on cpu"):
        engine(["one"], kernel_target(), one, declining, ops={"lookup_rows": "two"})


def test_overrides_that_name_nothing_are_errors() -> None:
    one, _ = backend("one")
    with pytest.raises(AssemblyError, match=r"unknown ops: 'lookup_row'; did you mean 'lookup_rows'\?"):
        engine(["one"], kernel_target(), one, ops={"lookup_row": "one"})
    with pytest.raises(AssemblyError, match="none: this target has no ops"):
        engine(["one"], one, ops={"lookup_rows": "one"})
    with pytest.raises(ConfigError, match="expected one of"):
        engine(["one"], kernel_target(), one, ops={"lookup_rows": "onne"})


def test_an_op_that_nobody_covers_refuses_the_assembly_and_says_what_was_asked() -> None:
    one, _ = backend("one", lambda **question: False)
    with pytest.raises(
        AssemblyError, match=r"for bfloat16 activations, weights 'mxfp4' and widths .8, 9.; add 'unfused'"
    ):
        engine(["one"], kernel_target(("bfloat16", "mxfp4", (8, 9))), one)


def test_a_backend_that_raises_is_named() -> None:
    def covers(**question: Any) -> bool:
        raise ZeroDivisionError("on purpose")

    one, _ = backend("one", covers)
    with pytest.raises(PluginError, match="kernels plugin 'one' raised in sparkwright_select_kernel: ZeroDivision"):
        engine(["one"], kernel_target(), one)
    broken = attrs.evolve(one, build=lambda options, site: 1 / 0)
    with pytest.raises(PluginError, match="kernels plugin 'one' raised in build"):
        engine(["one"], kernel_target(), broken)


def test_ops_must_be_declared_and_mean_one_thing() -> None:
    one, _ = backend("one")
    with pytest.raises(PluginError, match="op 'lookup_rows', which no Provider of this engine declares"):
        engine(["one"], kernel_target(declared=()), one)
    other = attrs.evolve(OP, reference=f"{__name__}:lookup_twice")
    sampler = attrs.evolve(toys.plain_sampler(0), ops=(other,))
    with pytest.raises(AssemblyError, match=r"sampler 'plain' declares the op 'lookup_rows' as .*lookup_twice"):
        toy_engine({"kernels": {"use": ["one"]}, "sampler": {"use": "plain"}}, kernel_target(), one, sampler)
    lost = OpSpec("lookup_rows", "tests.nowhere:nothing", "lost")
    with pytest.raises(PluginError, match=r"its reference tests.nowhere:nothing cannot be found"):
        engine(["one"], kernel_target(op=lost, declared=(lost,)), one)


def test_a_backend_without_ops_to_compute_is_not_built() -> None:
    one, _ = backend("one")
    broken = attrs.evolve(one, build=lambda options, site: 1 / 0)
    engine(["one"], broken).close()


def test_more_rows_than_a_verify_run_the_reference() -> None:
    one, _ = backend("one")
    with engine(["one"], kernel_target(), one) as made:
        text = made.complete("abcdefghijkabcdefgh", max_tokens=12).text
        CALLS.clear()
        made.run(lambda parts: parts.target.forward(mx.zeros((9,), dtype=mx.int32), parts.target.new_state()))
        made.run(lambda parts: parts.target.forward(mx.zeros((8,), dtype=mx.int32), parts.target.new_state()))
    assert CALLS == [("reference", 9), ("one", 8)]
    with toy_engine({}) as plain:
        assert plain.complete("abcdefghijkabcdefgh", max_tokens=12).text == text
    assert by_rows(lookup_rows, lookup_rows) is lookup_rows


def test_ops_can_be_watched_by_wrapping_at_selection() -> None:
    one, _ = backend("one")
    seen: list[tuple[str, str]] = []

    def wrap(op: OpSpec, name: str, kernel: Any) -> Any:
        seen.append((op.name, name))
        return lambda *args: kernel(*args)

    with engine(["one"], kernel_target(), one, wrap_op=wrap) as made:
        made.complete("abc", max_tokens=3)
    assert seen == [("lookup_rows", "one")] and CALLS
