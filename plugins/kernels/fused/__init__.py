"""Kernel backend `fused`: each op's body written once in a small portable dialect, run on Metal and on CUDA.

A body (source/*.h) knows the names of source/prelude_metal.h and source/prelude_cuda.h and nothing else of a device.
Kernels are pure functions of immutable arrays, made lazily. A row's result depends neither on how many rows are in the
call nor on what they hold, bit for bit: every sum has one tree, chosen by the sizes of the weights alone.

On a device without a GPU, and for formats, dtypes or sizes that a kernel does not cover, the answer is None.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from sparkwright.core.contracts import NoOptions, Op, OpSpec, Provider, Site
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparkwright.plugins.kernels.fused.launcher import Launcher


@attrs.define(eq=False)
class Fused:
    """`launcher` is None where neither Metal nor CUDA is there."""

    launcher: Launcher | None

    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec, dtype: str, format: str, widths: tuple[int, ...]) -> Op | None:
        if self.launcher is None:
            return None
        from sparkwright.plugins.kernels.fused.table import find

        return find(self.launcher, op, dtype, format, widths)


def build(options: NoOptions, site: Site) -> Fused:
    from sparkwright.plugins.kernels.fused.launcher import here

    return Fused(here(site.device))


@hookimpl
def sparkwright_register_kernels() -> Iterable[Provider]:
    return [
        Provider(
            kind="kernels",
            name="fused",
            summary="fused kernels for up to 8 rows, weights read once, on Metal and CUDA",
            build=build,
        )
    ]
