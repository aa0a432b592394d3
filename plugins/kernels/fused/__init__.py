"""Kernel backend `fused`: each op's body written once in a small portable dialect, run on Metal and on CUDA.

A body (source/*.h) knows the names of source/prelude_metal.h and source/prelude_cuda.h and nothing else of a device.
Kernels are pure functions of immutable arrays, made lazily. A row's result depends neither on how many rows are in the
call nor on what they hold, bit for bit: every sum has one tree, chosen by the sizes of the weights alone.

On a device without a GPU, and for formats, dtypes or sizes that a kernel does not cover, the answer is None. On Metal
it is None too unless the option `metal` is set: the kernels' Metal text is executed by the tests, on a CPU, but no Mac
has run or timed it yet, while on CUDA it was checked and is faster (docs/benchmarks/kernels_h200.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from sparkwright.core.contracts import Op, OpSpec, Provider, Site, option
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparkwright.plugins.kernels.fused.launcher import Launcher


@attrs.frozen
class FusedOptions:
    metal: bool = option(
        False,
        "also on Metal, where these kernels have been emulated but never run on a Mac; on CUDA they are always on",
        validator=attrs.validators.instance_of(bool),
    )


@attrs.define(eq=False)
class Fused:
    """`launcher` is None where neither CUDA nor, if asked for, Metal is there; `idle` then says what is missing."""

    launcher: Launcher | None
    idle: str = ""

    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec, dtype: str, format: str, widths: tuple[int, ...]) -> Op | None:
        if self.launcher is None:
            return None
        from sparkwright.plugins.kernels.fused.table import find

        return find(self.launcher, op, dtype, format, widths)

    @hookimpl
    def sparkwright_decline_kernel(
        self, op: OpSpec, device: str, dtype: str, format: str, widths: tuple[int, ...]
    ) -> str:
        if self.launcher is None:
            return self.idle
        from sparkwright.plugins.kernels.fused.table import reason

        return reason(self.launcher, op, dtype, format, widths)


def build(options: FusedOptions, site: Site) -> Fused:
    from sparkwright.plugins.kernels.fused.launcher import here

    launcher = here(site.device)
    if launcher is None:
        return Fused(None, f"needs CUDA or Metal; this is {site.device.replace('cpu', 'CPU')}")
    if launcher.backend == "metal" and not options.metal:
        return Fused(None, "no Mac has run these kernels yet; kernels.fused.metal = true asks for them")
    return Fused(launcher)


@hookimpl
def sparkwright_register_kernels() -> Iterable[Provider]:
    return [
        Provider(
            kind="kernels",
            name="fused",
            summary="fused kernels for up to 8 rows, weights read once: on CUDA, and with the option metal on Metal",
            build=build,
            options=FusedOptions,
        )
    ]
