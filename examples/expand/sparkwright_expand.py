"""Kernel backend `expand`: one op of DeepSeek-V4, `hyper_expand`, as one small GPU kernel. It does not know any other.

The op spreads a branch's output over the residual streams, for r rows, n streams of d channels:

    y[r, k, d] = post[r, k] * branch[r, d] + sum_j comb[r, j, k] * streams[r, j, d]

One thread computes one channel of all streams, with the same body on Metal and on CUDA; only the thread's number has
another name. On a CPU the same sum is written in MLX operations and compiled, so that the package can be tried and
checked anywhere; with `cpu = false` it declines there, as it does whatever else it does not cover.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import attrs
from sparkwright.core.contracts import Op, OpSpec, Provider, option
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx

MEANING = "sparkwright.plugins.deepseek_v4.reference:hyper_expand"
MOST_STREAMS = 8
THREADS = 256

BODY = """
  const int row = ROW, channel = CHANNEL;
  if (channel < D) {  // the grid is whole groups of threads
    float sum[N];
    for (int k = 0; k < N; k++) sum[k] = float(post[row * N + k]) * float(branch[row * D + channel]);
    for (int j = 0; j < N; j++) {
      const float x = float(streams[(row * N + j) * D + channel]);
      for (int k = 0; k < N; k++) sum[k] += float(comb[(row * N + j) * N + k]) * x;
    }
    for (int k = 0; k < N; k++) y[(row * N + k) * D + channel] = static_cast<T>(sum[k]);
  }
"""
NAMES = {
    "metal": {"ROW": "int(thread_position_in_grid.y)", "CHANNEL": "int(thread_position_in_grid.x)"},
    "cuda": {"ROW": "int(blockIdx.y)", "CHANNEL": "int(blockIdx.x * blockDim.x + threadIdx.x)"},
}


@attrs.frozen
class Options:
    cpu: bool = option(
        True, "answer on a CPU too, with compiled MLX operations", attrs.validators.instance_of(bool)
    )


def source(device: str) -> str:
    """The kernel's body for "metal" or "cuda"."""
    text = BODY
    for name, meaning in NAMES[device].items():
        text = text.replace(name, meaning)
    return text


def on_gpu(device: str) -> Op:
    import mlx.core as mx

    @cache
    def kernel() -> Callable[..., Any]:
        """Made by the first call: being asked for a device that is not here is no error."""
        make: Any = mx.fast.metal_kernel if device == "metal" else mx.fast.cuda_kernel
        made: Callable[..., Any] = make(
            name=f"hyper_expand_{device}",
            input_names=["branch", "streams", "post", "comb"],
            output_names=["y"],
            source=source(device),
        )
        return made

    def run(branch: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
        """branch [r, d], streams [r, n, d], post [r, n], comb [r, n, n] -> [r, n, d] in the streams' dtype."""
        r, n, d = streams.shape
        made = kernel()(
            inputs=[branch, streams, post, comb],
            template=[("T", streams.dtype), ("N", n), ("D", d)],
            grid=(-(-d // THREADS) * THREADS, r, 1),
            threadgroup=(THREADS, 1, 1),
            output_shapes=[streams.shape],
            output_dtypes=[streams.dtype],
        )
        return made[0]  # type: ignore[no-any-return]

    return run


def on_cpu() -> Op:
    import mlx.core as mx

    def run(branch: mx.array, streams: mx.array, post: mx.array, comb: mx.array) -> mx.array:
        """As `on_gpu`. No matrix product: its rounding may depend on the number of rows, and a row must not."""
        y = post[:, :, None] * branch[:, None, :].astype(mx.float32)
        for j in range(streams.shape[1]):
            y = y + comb[:, j, :, None] * streams[:, j, None, :].astype(mx.float32)
        return y.astype(streams.dtype)

    return mx.compile(run)


@attrs.define(eq=False)
class Backend:
    options: Options

    @hookimpl
    def sparkwright_select_kernel(self, op: OpSpec, device: str, dtype: str, widths: tuple[int, ...]) -> Op | None:
        """None is "not mine". The op is known by its meaning too: other plugins may use its name for something else."""
        if (op.name, op.reference) != ("hyper_expand", MEANING) or not widths or widths[0] > MOST_STREAMS:
            return None
        if device == "cpu":
            return on_cpu() if self.options.cpu else None
        return on_gpu(device) if device in NAMES and dtype in ("float32", "float16", "bfloat16") else None


def cases() -> list[Any]:
    """Example calls, on which `sparkwright plugin check` compares kernels with the reference."""
    import mlx.core as mx
    from sparkwright.core.testing.kernels import OpCase

    def of(streams: int, width: int, dtype: mx.Dtype) -> OpCase:
        def make(rows: int, seed: int) -> list[mx.array]:
            keys = mx.random.split(mx.random.key(seed), 4)
            shapes = [(rows, width), (rows, streams, width), (rows, streams), (rows, streams, streams)]
            types = [dtype, dtype, mx.float32, mx.float32]
            return [mx.random.normal(s, key=k).astype(t) for s, k, t in zip(shapes, keys, types, strict=True)]

        name = str(dtype).removeprefix("mlx.core.")
        return OpCase(OpSpec("hyper_expand", MEANING, ""), make, name, "", (streams, width), (0, 1, 2, 3))

    return [of(4, 300, mx.bfloat16), of(4, 64, mx.float32), of(2, 8, mx.float16)]


@hookimpl
def sparkwright_register_kernels() -> list[Provider]:
    return [
        Provider(
            kind="kernels",
            name="expand",
            summary="hyper_expand in one small kernel on Metal and CUDA, compiled MLX on a CPU",
            build=lambda options, site: Backend(options),
            options=Options,
            tools={"cases": "sparkwright_expand:cases"},
        )
    ]
