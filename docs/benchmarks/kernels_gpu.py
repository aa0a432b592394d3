"""The fused kernels on a real GPU: right, bit-equal for any number of rows, and how fast beside the stock operations.

    python docs/benchmarks/kernels_gpu.py --part check   # the pairwise set of tests/kernels against float64
    python docs/benchmarks/kernels_gpu.py --part bits    # a row alone and among others, bit for bit
    python docs/benchmarks/kernels_gpu.py --part time    # V4-Flash shapes, rows 1..8, fused, stock and roofline

Run it from the repository with MLX's CUDA (or Metal) backend; JSON goes to standard output, one line an item, the last
one a summary. `--ops`, `--formats`, `--rows` and `--dtype` narrow a run: on CUDA every kernel costs seconds to compile
(set MLX_PTX_CACHE_DIR to keep them).

`busy_us` is the time in which the device computed, kernel by kernel, of calls that follow each other (gpu_busy.py); it
is what the floors are held against. Wall times are slopes: the time of many calls in one graph, minus that of fewer,
over the difference, the median of several pairs. Weights rotate over copies that exceed the cache. `host_us` is
the same slope for an operation that does nothing: what is near to it is bound by the host, and no statement about the
kernel.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("MLX_ENABLE_TF32", "0")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "benchmarks")]

import attrs  # noqa: E402
import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from gpu_busy import busy  # noqa: E402
from tests.kernels import cases  # noqa: E402

from sparkwright.core.contracts import Op, OpSpec  # noqa: E402
from sparkwright.plugins.deepseek_v4 import ops, reference  # noqa: E402
from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear, dtype_of  # noqa: E402
from sparkwright.plugins.kernels.fused.launcher import Launcher, here  # noqa: E402
from sparkwright.plugins.kernels.fused.table import find  # noqa: E402

CACHE = 64 << 20
"""Weights are rotated until they exceed this many bytes."""


def say(**item: Any) -> None:
    print(json.dumps(item), flush=True)


# ---------------------------------------------------------------------------------------------------------- right, bits


def covered(made: cases.Problem, launcher: Launcher) -> Op | None:
    try:
        return made.kernel(launcher.backend)
    except AssertionError:
        return None


def check(launcher: Launcher, wanted: argparse.Namespace) -> int:
    wrong = 0
    chosen = [
        *cases.pairwise(factors=cases.PLAIN_FACTORS),
        *cases.pairwise(factors=cases.TILE_FACTORS),
        *cases.pairwise(),
    ]
    for case in dict.fromkeys(chosen):  # matrix units take what they take: bfloat16 on CUDA
        if case.op not in wanted.ops or (case.format not in wanted.formats and case.op not in cases.PLAIN):
            continue
        made = cases.problem(case)
        kernel = covered(made, launcher)
        if kernel is None:
            say(part="check", case=str(case), what="not covered on this device")
            continue
        try:
            got = cases.flatten(kernel(*made.arguments))
            mx.eval(got)
            excess = [
                float(np.max(np.abs(cases.f64(a) - e) / b, initial=0.0))
                for a, e, b in zip(got, made.expected, made.bounds, strict=True)
            ]
            fine = all(x <= 1 for x in excess)  # NaN is not fine
            say(part="check", case=str(case), times_the_bound=[round(x, 4) for x in excess], ok=fine)
        except Exception as error:
            traceback.print_exc()
            fine = False
            say(part="check", case=str(case), error=str(error)[:2000], ok=False)
        wrong += not fine
    return wrong


def raw(a: mx.array) -> Any:
    return np.array(a.view(mx.uint16) if a.dtype.size == 2 else a.view(mx.uint32))


SPANS = ((0, 1), (7, 8), (2, 4), (1, 4), (1, 5), (0, 5), (2, 8), (0, 7))


def bits(launcher: Launcher, wanted: argparse.Namespace) -> int:
    wrong = 0
    for name in wanted.ops:
        for format in ["-"] if name in cases.PLAIN else wanted.formats:
            wrong += bits_of(cases.Case(name, format, wanted.dtype, 8, "wide"), launcher)
    return wrong


def bits_of(case: cases.Case, launcher: Launcher) -> int:
    made, wrong = cases.problem(case), 0
    known = {"part": "bits", "op": case.op, "format": case.format, "dtype": case.dtype}
    kernel = covered(made, launcher)
    if kernel is None:
        say(**known, what="not covered on this device")
        return 0
    whole = [raw(a) for a in cases.flatten(kernel(*made.arguments))]
    for first, last in SPANS:
        part = [raw(a) for a in cases.flatten(kernel(*made.rows(first, last)))]
        equal = all(np.array_equal(a, b[first:last]) for a, b in zip(part, whole, strict=True))
        wrong += not equal
        say(**known, rows=[first, last], ok=bool(equal))
    others = mx.full(made.arguments[0].shape, float("nan"), made.arguments[0].dtype)
    keep = (mx.arange(8) == 2).reshape(8, *[1] * (others.ndim - 1))
    alone = kernel(mx.where(keep, made.arguments[0], others), *made.arguments[1:])
    equal = all(np.array_equal(raw(a)[2], b[2]) for a, b in zip(cases.flatten(alone), whole, strict=True))
    wrong += not equal
    say(**known, what="row 2 among rows of NaN", ok=bool(equal))
    return wrong


# ---------------------------------------------------------------------------------------------------------------- times


@attrs.frozen(eq=False)
class Timed:
    """One op at V4-Flash width. sets: copies of the weights; arguments: (rows, weights) -> the op's arguments."""

    name: str
    spec: OpSpec
    stock: Callable[..., Any]
    sets: list[Any]
    arguments: Callable[[int, Any], tuple[Any, ...]]
    bytes: Callable[[int], float]
    multiplications: Callable[[int], float]


def matrix(format: str, *shape: int, seed: int = 0) -> Linear:
    """Random codes and scales near one over the root of the width: nothing is quantised, big matrices are cheap."""
    key = mx.random.key(seed)
    *lead, n, k = shape
    if format in cases.DTYPES:
        return Linear((mx.random.normal((*lead, n, k), key=key) * k**-0.5).astype(dtype_of(format)))
    bits, group = (8 if format.endswith("8") else 4), (64 if format.startswith("affine") else 32)
    packed = (*lead, n, k * bits // 32)
    count = math.prod(packed)
    codes = mx.random.split(key, (count + 1) // 2).reshape(-1)[:count].reshape(packed)  # raw bits
    if format == "mxfp8":
        codes = codes & 0x77777777  # no NaN codes
    if format.startswith("affine"):
        scales = mx.full((*lead, n, k // group), k**-0.5 * 2.0 ** (3 - bits), mx.bfloat16)
        return Linear(codes, scales, -scales * (1 << (bits - 1)), "affine", bits, group)
    scale = 127 - round(math.log2(k) / 2) - (1 if format == "mxfp4" else 6)
    mode: Any = format
    return Linear(codes, mx.full((*lead, n, k // group), scale, mx.uint8), None, mode, bits, group)


def copies(make: Callable[[int], Any], size: Callable[[Any], int]) -> list[Any]:
    sets = [make(0)]
    mx.eval([a for a in arrays(sets[0])])
    for seed in range(1, min(16, 1 + CACHE // max(1, size(sets[0])))):
        sets.append(make(seed))
        mx.eval([a for a in arrays(sets[-1])])
    return sets


def arrays(weights: Any) -> Iterator[mx.array]:
    if isinstance(weights, Linear):
        yield from (a for a in (weights.weight, weights.scales, weights.biases) if a is not None)
    elif isinstance(weights, ExpertBank):
        for linear in (weights.w1, weights.w3, weights.w2):
            yield from arrays(linear)
    elif isinstance(weights, tuple | list):
        for one in weights:
            yield from arrays(one)
    elif isinstance(weights, mx.array):
        yield weights


def nbytes(weights: Any) -> int:
    return sum(a.nbytes for a in arrays(weights))


def activations(dtype: str, *shape: int, seed: int = 1) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype_of(dtype))


def routes_of_text(rows: int, k: int) -> list[list[int]]:
    """As rows of real text share experts: of 256 experts, uniform routing times what the bundled model's text needs
    of its own uniform (demo_route_overlap.json); seven and eight rows as six."""
    measured = json.loads((ROOT / "docs" / "benchmarks" / "demo_route_overlap.json").read_text())["rows"]
    routes, distinct = [], 0
    for row in range(1, rows + 1):
        seen = measured[min(row, len(measured)) - 1]
        needed = round(256 * (1 - (1 - k / 256) ** row) * seen["mean"] / seen["uniform"])
        new = min(k, max(0, needed - distinct))
        routes.append([*range(distinct, distinct + new), *range(k - new)])
        distinct += new
    return routes


def multiply(name: str, format: str, dtype: str, n: int, k: int) -> Timed:
    sets = copies(lambda seed: matrix(format, n, k, seed=seed), nbytes)
    return Timed(
        f"{name} [{n}, {k}]", ops.SMALL_ROWS_MATMUL, reference.small_rows_matmul, sets,
        lambda r, w: (activations(dtype, r, k), w), lambda r: nbytes(sets[0]), lambda r: r * n * k,
    )  # fmt: skip


def timed(format: str, dtype: str, wanted: Sequence[str]) -> Iterator[Callable[[], Timed]]:
    d, width, heads, channels = 4096, 2048, 64, 512
    if "small_rows_matmul" in wanted:
        yield lambda: multiply("q_b", format, dtype, heads * channels, 1024)
        yield lambda: multiply("o_b", format, dtype, d, 8192)
        yield lambda: multiply("head", format, dtype, 129280, d)

    def project(names: str, sizes: Sequence[tuple[int, str]]) -> Timed:
        gain = mx.ones((d,))
        sets = copies(lambda seed: tuple(matrix(f, n, d, seed=seed + i) for i, (n, f) in enumerate(sizes)), nbytes)
        total = sum(n for n, _ in sizes)
        return Timed(
            f"project {names}", ops.PROJECT_ROWS, reference.project_rows, sets,
            lambda r, w: (activations(dtype, r, d), gain, 1e-6, w), lambda r: nbytes(sets[0]), lambda r: r * total * d,
        )  # fmt: skip

    if "project_rows" in wanted:
        yield lambda: project("q_a kv", [(1024, format), (512, format)])
        csa = [(1024, format), (512, format), (1024, "bfloat16"), (1024, "bfloat16"), (256, "bfloat16")]
        yield lambda: project("csa layer", [*csa, (256, "bfloat16"), (64, "bfloat16")])
        yield lambda: project("shared gate up", [(width, format), (width, format)])

    def down() -> Timed:
        sets = copies(lambda seed: matrix(format, d, width, seed=seed), nbytes)
        return Timed(
            "shared down", ops.SWIGLU_MATMUL, reference.swiglu_matmul, sets,
            lambda r, w: (activations(dtype, r, width), activations(dtype, r, width, seed=2), w, 10.0),
            lambda r: nbytes(sets[0]), lambda r: r * d * width,
        )  # fmt: skip

    if "swiglu_matmul" in wanted:
        yield down

    def grouped() -> Timed:
        sets = copies(lambda seed: matrix(format, 8, 1024, d, seed=seed), nbytes)
        return Timed(
            "o_a", ops.GROUPED_ROWS_MATMUL, reference.grouped_rows_matmul, sets,
            lambda r, w: (activations(dtype, r, 8, d), w), lambda r: nbytes(sets[0]), lambda r: r * 8 * 1024 * d,
        )  # fmt: skip

    if "grouped_rows_matmul" in wanted:
        yield grouped

    def experts(routes: str) -> Timed:
        count, k = 64, 6
        up = [matrix(format, count, width, d, seed=seed) for seed in (0, 1)]
        bank = ExpertBank(up[0], up[1], matrix(format, count, d, width, seed=2))
        mx.eval(list(arrays(bank)))

        def index(r: int) -> mx.array:
            if routes == "text":
                return mx.array(routes_of_text(r, k), dtype=mx.int32)
            step = {"disjoint": k, "shared": 0, "half": k // 2}[routes]
            return mx.array([[i * step + j for j in range(k)] for i in range(r)], dtype=mx.int32)

        def read(r: int) -> float:
            return nbytes(bank) / count * len(set(np.array(index(r)).reshape(-1).tolist()))

        return Timed(
            f"experts {routes}", ops.GROUPED_EXPERTS, reference.grouped_experts, [bank],
            lambda r, w: (activations(dtype, r, d), index(r), mx.full((r, k), 0.25), w, 10.0),
            read, lambda r: r * k * 3 * width * d,
        )  # fmt: skip

    if "grouped_experts" in wanted:
        for routes in ("disjoint", "text", "half", "shared"):
            yield partial(experts, routes)

    def attend() -> Timed:
        ring, rows = activations(dtype, 256, channels), activations(dtype, 4096, channels, seed=3)

        def arguments(r: int, w: Any) -> tuple[Any, ...]:
            slots = mx.broadcast_to(mx.arange(128, dtype=mx.int32), (r, 128)) + mx.arange(r, dtype=mx.int32)[:, None]
            select = mx.broadcast_to(mx.arange(0, 4096, 8, dtype=mx.int32), (r, 512))
            angle = activations("float32", r, 32)
            q = activations(dtype, r, heads, channels)
            return q, ring, slots, rows, select, mx.zeros((heads,)), mx.cos(angle), mx.sin(angle)

        return Timed(
            "attend 128 + 512", ops.ATTEND_ROWS, reference.attend_rows, [None], arguments,
            lambda r: (127 + r + 512) * channels * ring.dtype.size, lambda r: r * heads * 640 * channels * 2,
        )  # fmt: skip

    if "attend_rows" in wanted:
        yield attend
    plain = {
        "hyper_mix": lambda: plainly("mix", dtype, ops.HYPER_MIX, 24),
        "hyper_head": lambda: plainly("head", dtype, ops.HYPER_HEAD, 4),
        "hyper_expand": lambda: plainly("expand", dtype, ops.HYPER_EXPAND, 0),
        "norm_rotate": lambda: plainly("query", dtype, ops.NORM_ROTATE, 0),
        "pool_windows": lambda: plainly("pool", dtype, ops.POOL_WINDOWS, 0),
        "route_scores": lambda: plainly("route", dtype, ops.ROUTE_SCORES, 256),
        "indexer_select": lambda: plainly("index", dtype, ops.INDEXER_SELECT, 0),
    }
    yield from (make for name, make in plain.items() if name in wanted)


def plainly(name: str, dtype: str, spec: OpSpec, outputs: int) -> Timed:
    """Ops without stored matrices at V4-Flash width; indexer: a context of 32768 tokens."""
    d, n, span = 4096, 4, 8192
    f32 = partial(activations, "float32")
    make: dict[str, Callable[[int], tuple[Any, ...]]] = {
        "mix": lambda r: (activations(dtype, r, n, d), f32(24, n * d), f32(24), f32(3), 1e-6, 1e-6, 20),
        "head": lambda r: (activations(dtype, r, n, d), f32(n, n * d), f32(n), f32(1), 1e-6, 1e-6),
        "expand": lambda r: (activations(dtype, r, d), activations(dtype, r, n, d), f32(r, n), f32(r, n, n)),
        "query": lambda r: (activations(dtype, r, 64, 512), f32(r, 32), f32(r, 32), 1e-6),
        "pool": lambda r: (f32(r, 8, 512), f32(r, 8, 512), f32(512), 1e-6, f32(r, 32), f32(r, 32)),
        "route": lambda r: (activations(dtype, r, d), f32(256, d), f32(256), 6, 1.5),
        "index": lambda r: (
            activations(dtype, r, 64, 128), f32(r, 64), activations(dtype, span, 128, seed=5),
            mx.full((r,), span, dtype=mx.int32), span, 512,
        ),
    }  # fmt: skip
    reference_of = getattr(reference, spec.name)
    return Timed(
        name, spec, reference_of, [None], lambda r, w: make[name](r), lambda r: nbytes(list(make[name](r))),
        lambda r: r * {"index": 64 * 128 * span}.get(name, outputs * d * (n if name in ("mix", "head") else 1)),
    )  # fmt: skip


def slope(call: Callable[[int], Any], reps: int) -> float:
    """Seconds a call."""

    def run(n: int) -> float:
        began = time.perf_counter()
        mx.eval([call(i) for i in range(n)])
        mx.synchronize()
        return time.perf_counter() - began

    run(reps)
    return statistics.median((run(4 * reps) - run(reps)) / (3 * reps) for _ in range(7))


def rotate(run: Callable[..., Any], given: list[tuple[Any, ...]]) -> Callable[[int], list[mx.array]]:
    return lambda i: cases.flatten(run(*given[i % len(given)]))


def evaluated(call: Callable[[int], Any]) -> Callable[[int], None]:
    return lambda i: mx.eval(call(i))


def measure(launcher: Launcher, wanted: argparse.Namespace) -> int:
    tiny = mx.zeros((8,))
    waiting: list[tuple[Timed, Callable[..., Any], str, dict[str, float]]] = []
    for format in wanted.formats:
        for make in timed(format, wanted.dtype, wanted.ops):
            one = make()
            weights = [a.format for a in arrays_of_linears(one.sets[0])]
            kernel = find(launcher, one.spec, wanted.dtype, "+".join(dict.fromkeys(weights)), ())
            assert kernel is not None
            first: dict[str, float] = {}
            for r in wanted.rows:  # compiles
                for run in (kernel, one.stock):
                    mx.eval(cases.flatten(run(*one.arguments(r, one.sets[0]))))
            waiting.append((one, kernel, format, first))
    with open(wanted.lock or os.devnull, "w") as turn:  # one process measures at a time
        if wanted.lock:
            fcntl.flock(turn, fcntl.LOCK_EX)
        host = slope(lambda i: tiny + i, 100)
        say(part="time", what="host", host_us=round(host * 1e6, 2))
        for one, kernel, format, first in waiting:
            runs = {"fused": kernel, "stock": one.stock}
            for r in wanted.rows:
                given = [one.arguments(r, w) for w in one.sets]
                mx.eval([a for arguments in given for a in arrays(arguments)])
                reps = 10
                seconds = {which: slope(rotate(run, given), reps) for which, run in runs.items()}
                units = wanted.dtype == "bfloat16" and one.spec.name in (*cases.TILED, "indexer_select")
                speed = wanted.matrix_fma if units and launcher.tiles else wanted.fma
                device = {which: busy(evaluated(rotate(run, given))) for which, run in runs.items()}
                moved, floor = one.bytes(r), max(one.bytes(r) / wanted.bandwidth, one.multiplications(r) / speed)
                first = first or seconds
                say(
                    part="time", op=one.spec.name, what=one.name, format=format, dtype=wanted.dtype, rows=r,
                    fused_us=round(seconds["fused"] * 1e6, 2), stock_us=round(seconds["stock"] * 1e6, 2),
                    speedup=round(seconds["stock"] / seconds["fused"], 3), roofline_us=round(floor * 1e6, 2),
                    over_roofline=round(seconds["fused"] / floor, 3), gb_s=round(moved / seconds["fused"] / 1e9, 1),
                    busy_us={which: b and round(b["us"], 2) for which, b in device.items()},
                    kernels={which: b and round(b["kernels"], 2) for which, b in device.items()},
                    over_first={which: round(s / first[which], 3) for which, s in seconds.items()},
                )  # fmt: skip
    return 0


def arrays_of_linears(weights: Any) -> list[Linear | ExpertBank]:
    if isinstance(weights, Linear | ExpertBank):
        return [weights]
    return [w for w in weights if isinstance(w, Linear)] if isinstance(weights, Sequence) else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["check", "bits", "time"], required=True)
    parser.add_argument("--ops", nargs="+", default=[*cases.PROBLEMS, *cases.PLAIN])
    parser.add_argument("--formats", nargs="+", default=None)
    parser.add_argument("--rows", nargs="+", type=int, default=list(cases.ROWS))
    parser.add_argument(
        "--dtype", choices=cases.DTYPES, help="bits: float32 (16 bits hide differences); time: bfloat16"
    )
    parser.add_argument("--lock", help="time: a file; of processes that name the same one, one measures at a time")
    parser.add_argument("--bandwidth", type=float, default=4.8e12, help="device: bytes a second (H200)")
    parser.add_argument("--fma", type=float, default=33.5e12, help="device: multiply-adds a second (H200)")
    parser.add_argument("--matrix-fma", type=float, default=495e12, help="device: of matrix units in bfloat16 (H200)")
    wanted = parser.parse_args()
    defaults = {"time": ["mxfp4", "affine4"], "bits": ["mxfp4"], "check": list(cases.FORMATS)}
    wanted.formats = wanted.formats or defaults[wanted.part]
    wanted.dtype = wanted.dtype or ("bfloat16" if wanted.part == "time" else "float32")
    launcher = here("gpu")
    if launcher is None:
        print("kernels_gpu: MLX has neither CUDA nor Metal here; use a GPU and mlx[cuda13]", file=sys.stderr)
        return 2
    say(part=wanted.part, mlx=version("mlx"), device=str(mx.device_info()), backend=launcher.backend)
    began = time.time()
    wrong = {"check": check, "bits": bits, "time": measure}[wanted.part](launcher, wanted)
    say(part=wanted.part, summary=True, wrong=wrong, seconds=round(time.time() - began, 1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
