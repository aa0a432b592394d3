"""Kernel backend `unfused`: every op's own reference, in plain MLX operations, on every device.

It answers for any op of any plugin, so it stands last in `kernels.use`. What an op means is the function its
specification names (for the DeepSeek-V4 family: plugins/deepseek_v4/reference.py); this module only finds it.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from sparkwright.core.contracts import NoOptions, Op, OpSpec, Provider, Site
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.kernels import reference


@attrs.define(eq=False)
class Unfused:
    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec) -> Op | None:
        """Never None; device, dtype, format and widths do not matter."""
        return reference(op)


def build(options: NoOptions, site: Site) -> Unfused:
    return Unfused()


@hookimpl
def sparkwright_register_kernels() -> Iterable[Provider]:
    return [
        Provider(
            kind="kernels",
            name="unfused",
            summary="every op's reference in plain MLX, on any device",
            build=build,
        )
    ]
