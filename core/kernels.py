"""Kernel selection: which backend computes an op, asked once for each op, device, dtype, format and widths.

The number of rows is never part of the question. A backend's kernel covers 1..WIDEST_VERIFY rows; longer forwards
(prompt chunks) run the op's reference, which has the same structure and may only round differently.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import attrs
import pluggy

from sparkwright.core.config import Config
from sparkwright.core.contracts import WIDEST_VERIFY, Op, OpSpec, Provider, Site
from sparkwright.core.errors import AssemblyError, PluginError, did_you_mean
from sparkwright.core.roles import guarded, new_manager, register

AUTO = ("fused", "unfused")


def reference(op: OpSpec) -> Op:
    """The function that says what an op means."""
    return resolve(op.reference, f"op '{op.name}': its reference")


def resolve(path: str, what: str) -> Op:
    """The function at "package.module:function"."""
    module, _, name = path.partition(":")
    try:
        function: Op = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"{what} {path} cannot be found: {error}") from error
    return function


@attrs.frozen
class KernelChoice:
    """One question and its answer. declined: backends that were asked before and do not cover it; reasons: what each
    says about it, or "". override: whether `kernels.ops` named the backend. is_reference: whether the answer is the
    op's reference itself."""

    op: str
    dtype: str
    format: str
    widths: tuple[int, ...]
    backend: str
    declined: tuple[str, ...]
    reasons: tuple[str, ...]
    override: bool
    is_reference: bool


class Kernels:
    """The backends of one engine, in the order of `kernels.use`, and what they were chosen for (`taken`; `choices` has
    each question)."""

    def __init__(
        self,
        config: Config,
        site: Site,
        providers: Sequence[Provider],
        wrap: Callable[[OpSpec, str, Op], Op] | None = None,
    ) -> None:
        self._config, self._device, self._wrap = config, site.device, wrap
        self._ops: dict[str, OpSpec] = {}
        for provider in providers:
            for op in provider.ops:
                if self._ops.setdefault(op.name, op) != op:
                    raise AssemblyError(
                        f"{provider.kind} '{provider.name}' declares the op '{op.name}' as {op.reference}, another "
                        f"plugin of this engine as {self._ops[op.name].reference}; one name must have one meaning"
                    )
        self._order: list[str] = []
        self._backends: dict[str, pluggy.PluginManager] = {}
        self._cache: dict[Any, Op] = {}
        self.taken: dict[str, str] = {}
        self.choices: list[KernelChoice] = []
        if self._ops:
            self._build(site)

    def _build(self, site: Site) -> None:
        names = [n for name in self._config.kernels.use for n in (AUTO if name == "auto" else (name,))]
        wanted = dict.fromkeys([*names, *self._config.kernel_ops.values()])
        catalogue = self._config.catalogue
        for name in wanted:
            if name == "fused" and name not in self._config.kernels.use and catalogue.find("kernels", name) is None:
                continue  # `auto` takes what is installed
            provider = catalogue.get("kernels", name, "kernels.use").provider
            built = guarded(provider.build, "kernels", name, "build")(self._config.kernel_options[name], site)
            self._backends[name] = new_manager()
            register(self._backends[name], built, "kernels", name)
        self._order = [name for name in dict.fromkeys(names) if name in self._backends]

    def check_overrides(self) -> None:
        """After everything is built: a `kernels.ops` entry for an op nobody has is an error."""
        wrong = [name for name in self._config.kernel_ops if name not in self._ops]
        if wrong:
            hints = "; ".join(f"'{name}'{did_you_mean(name, self._ops)}" for name in wrong)
            known = ", ".join(sorted(self._ops)) or "none: this target has no ops"
            raise AssemblyError(f"kernels.ops names unknown ops: {hints}. Ops of this engine: {known}")

    def select(self, op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        """The callable for an op (see contracts.SelectKernel). AssemblyError if no backend answers."""
        if self._ops.get(op.name) != op:
            known = ", ".join(sorted(self._ops)) or "none"
            raise PluginError(
                f"a plugin asked for a kernel of the op '{op.name}', which no Provider of this engine declares in its "
                f"`ops` (declared: {known})"
            )
        question = (op.name, dtype, format, widths)
        if question not in self._cache:
            self._cache[question] = self._ask(op, dtype, format, widths)
        return self._cache[question]

    def _ask(self, op: OpSpec, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        override = self._config.kernel_ops.get(op.name)
        order = [override] if override else self._order
        question = {"op": op, "device": self._device, "dtype": dtype, "format": format, "widths": widths}
        reasons: list[str] = []
        for i, name in enumerate(order):
            hooks = self._backends[name].hook
            kernel = guarded(hooks.sparkwright_select_kernel, "kernels", name, "sparkwright_select_kernel")(**question)
            if kernel is not None:
                self._note(op.name, name)
                plain, before = kernel is reference(op), tuple(order[:i])
                self.choices.append(
                    KernelChoice(
                        op.name, dtype, format, widths, name, before, tuple(reasons), override is not None, plain
                    )
                )
                called = by_rows(kernel, reference(op))
                return called if self._wrap is None else self._wrap(op, name, called)
            why = guarded(hooks.sparkwright_decline_kernel, "kernels", name, "sparkwright_decline_kernel")(**question)
            reasons.append(why or "")
        said = "".join(f"; {name}: {why}" for name, why in zip(order, reasons, strict=True) if why)
        raise AssemblyError(
            f"no kernel backend of {order} covers the op '{op.name}' on {self._device} for {dtype} activations, "
            f"weights '{format}' and widths {widths}{said}; add 'unfused' to kernels.use"
        )

    def _note(self, op: str, backend: str) -> None:
        seen = dict.fromkeys([*filter(None, self.taken.get(op, "").split(" + ")), backend])
        self.taken[op] = " + ".join(seen)


def by_rows(kernel: Op, meaning: Op) -> Op:
    """`kernel` for up to WIDEST_VERIFY rows of its first argument, the reference above that."""
    if kernel is meaning:
        return kernel

    def call(first: Any, *rest: Any, **named: Any) -> Any:
        run = kernel if first.shape[0] <= WIDEST_VERIFY else meaning
        return run(first, *rest, **named)

    return call
