"""Kernel backend `my_plugin`: one op of DeepSeek-V4, `hyper_expand`, in its own way.

That is the template's; say here what yours is, and what it is not.

The contract: `sparkwright_select_kernel` in sparkwright.core.hookspecs, `OpSpec` in sparkwright.core.contracts. What an
op means is the function that its `reference` names; `sparkwright plugins show deepseek_v4` lists the ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from sparkwright.core.contracts import NoOptions, Op, OpSpec, Provider, Site
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx
    from sparkwright.core.testing.kernels import OpCase

OP = "hyper_expand"
MEANING = "sparkwright.plugins.deepseek_v4.reference:hyper_expand"


def hyper_expand(branch: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
    """y[r, k] = post[r, k] branch[r] + sum_j comb[r, j, k] streams[r, j], in the streams' dtype.

    branch [r, d], streams [r, n, d], post [r, n] and comb [r, n, n] float32 -> [r, n, d].

    A kernel is a pure function: it writes into nothing it was given, and row i of its result depends on row i of its
    arguments alone, bit for bit, for every number of rows from 1 to 8. Replace this by your own, for example with
    `mx.fast.metal_kernel` or `mx.fast.cuda_kernel`.
    """
    import mlx.core as mx

    y = post[:, :, None] * branch[:, None, :].astype(mx.float32)
    for j in range(streams.shape[1]):
        y = y + comb[:, j, :, None] * streams[:, j, None, :].astype(mx.float32)
    return y.astype(streams.dtype)


@attrs.define(eq=False)
class Backend:
    @hookimpl
    def sparkwright_select_kernel(
        self, op: OpSpec, device: str, dtype: str, format: str, widths: tuple[int, ...]
    ) -> Op | None:
        """The callable for an op on a device ("cpu", "metal", "cuda"), or None: "not mine", the next backend is asked.

        Decline whatever you do not cover. How many rows there will be is not asked, on purpose.
        """
        return hyper_expand if (op.name, op.reference) == (OP, MEANING) else None


def build(options: NoOptions, site: Site) -> Backend:
    return Backend()


def cases() -> list[OpCase]:
    """Example calls, on which the conformance checks compare the kernel with the op's reference."""
    import mlx.core as mx
    from sparkwright.core.testing.kernels import OpCase

    def make(rows: int, seed: int) -> list[mx.array]:
        shapes = [(rows, 96), (rows, 4, 96), (rows, 4), (rows, 4, 4)]
        keys = mx.random.split(mx.random.key(seed), 4)
        return [mx.random.normal(shape, key=key) for shape, key in zip(shapes, keys, strict=True)]

    return [OpCase(OpSpec(OP, MEANING, ""), make, dtype="float32", widths=(4, 96), per_row=(0, 1, 2, 3))]


@hookimpl
def sparkwright_register_kernels() -> list[Provider]:
    return [
        Provider(
            kind="kernels",
            name="my_plugin",
            summary="hyper_expand in its own way",
            build=build,
            tools={"cases": "sparkwright_my_plugin:cases"},
        )
    ]
