"""Small problems for every fused op: its arguments, the same in float64, and the bound that its dtype allows.

An answer in float64 is computed here from the op's meaning (plugins/deepseek_v4/reference.py says it in MLX), not by
MLX: its CPU products of 16-bit quantised weights are too coarse to be held against.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sparkwright.core.contracts import Op, OpSpec
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear, dtype_of
from sparkwright.plugins.kernels.fused.launcher import Backend, Launcher
from sparkwright.plugins.kernels.fused.table import find

F64 = NDArray[np.float64]

FORMATS = ("affine4", "affine8", "mxfp4", "mxfp8", "bfloat16", "float32", "float16")
DTYPES = ("float32", "bfloat16", "float16")
ROWS = (1, 2, 3, 4, 5, 6, 7, 8)
SIZES = ("small", "odd", "wide")
ROUND = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
"""Half of the distance from one to the next number."""

EPS = 1e-6
LIMIT = 1.5  # low enough that some values are clamped


@attrs.frozen
class Case:
    op: str
    format: str
    dtype: str
    rows: int
    size: str

    def __str__(self) -> str:
        return f"{self.op}-{self.format}-{self.dtype}-r{self.rows}-{self.size}"


@attrs.frozen(eq=False)
class Problem:
    """arguments of the op; expected and bound for each array it returns, flattened into one list."""

    spec: OpSpec
    arguments: tuple[Any, ...]
    expected: list[F64]
    bounds: list[F64]
    per_row: tuple[int, ...]  # which arguments have the rows as their first axis

    def kernel(self, backend: Backend = "metal", tiles: bool | None = None) -> Op:
        """tiles: products on matrix units; None: what the backend does by itself."""
        launcher = Launcher(backend) if tiles is None else Launcher(backend, tiles)
        formats = [a.format for a in self.arguments if isinstance(a, Linear | ExpertBank)]
        dtype = str(self.arguments[0].dtype).removeprefix("mlx.core.")
        found = find(launcher, self.spec, dtype, "+".join(formats), ())
        assert found is not None
        return found

    def rows(self, first: int, last: int) -> tuple[Any, ...]:
        """The arguments of rows first..last - 1 alone."""
        return tuple(a[first:last] if i in self.per_row else a for i, a in enumerate(self.arguments))


def flatten(result: Any) -> list[mx.array]:
    if isinstance(result, mx.array):
        return [result]
    return [array for part in result for array in flatten(part)]


def f64(a: mx.array) -> F64:
    return np.array(a.astype(mx.float32), np.float64)


class Make:
    """Arrays of one problem from one seed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rng = np.random.default_rng([len(case.op), len(case.format), case.rows, len(case.size)])

    def array(self, *shape: int, scale: float = 1.0, dtype: str | None = None) -> mx.array:
        values = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        return mx.array(values).astype(dtype_of(dtype or self.case.dtype))

    def matrix(self, *shape: int, format: str | None = None) -> tuple[Linear, F64]:
        name = format or self.case.format
        w = self.array(*shape, scale=shape[-1] ** -0.5, dtype="float32")
        if name in DTYPES:
            dense = Linear(w.astype(dtype_of(name)))
            return dense, f64(dense.weight)
        mode: Any = "affine" if name.startswith("affine") else name
        bits, group = (8 if name.endswith("8") else 4), (64 if mode == "affine" else 32)
        parts = mx.quantize(w, group, bits, mode=mode)
        biases = parts[2] if len(parts) > 2 else None
        full = mx.dequantize(*parts, group_size=group, bits=bits, mode=mode, dtype=mx.float32)
        return Linear(parts[0], parts[1], biases, mode, bits, group), f64(full)


def widths(case: Case, parts: int = 1) -> tuple[int, int]:
    """in, out. Dense matrices take any width; `wide` is shared by four warps, with a tail."""
    dense = case.format in DTYPES
    if case.size == "small":
        return (7, 1) if dense else (64, 3)
    if case.size == "odd":
        return (37, 13) if dense else (320, 13)
    return (1029 if dense else 1088, 6 * parts + 1)


def product(x: F64, w: F64) -> tuple[F64, F64]:
    """x w^T, and the size of its terms: what a rounding error is relative to."""
    return x @ w.swapaxes(-1, -2), np.abs(x) @ np.abs(w).swapaxes(-1, -2)


def bound(case: Case, value: F64, terms: F64) -> F64:
    """float32 sums of up to 1,100 terms in short chains, and one rounding to the dtype."""
    bounds: F64 = np.abs(value) * ROUND[case.dtype] * 1.01 + terms * 2.0**-20 + 1e-7
    return bounds


# ------------------------------------------------------------------------------------------------------------- the ops


def small_rows_matmul(case: Case) -> Problem:
    make = Make(case)
    k, n = widths(case)
    x, (linear, w) = make.array(case.rows, k), make.matrix(n, k)
    y, terms = product(f64(x), w)
    return Problem(ops.SMALL_ROWS_MATMUL, (x, linear), [y], [bound(case, y, terms)], (0,))


def grouped_rows_matmul(case: Case) -> Problem:
    make = Make(case)
    k, n = widths(case)
    x, (linear, w) = make.array(case.rows, 3, k), make.matrix(3, n, k)
    y, terms = product(f64(x).swapaxes(0, 1), w)
    y, terms = y.swapaxes(0, 1), terms.swapaxes(0, 1)
    return Problem(ops.GROUPED_ROWS_MATMUL, (x, linear), [y], [bound(case, y, terms)], (0,))


def swiglu(gate: F64, up: F64) -> F64:
    gate, up = np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT)
    hidden: F64 = gate / (1 + np.exp(-gate)) * up
    return hidden


def swiglu_matmul(case: Case) -> Problem:
    make = Make(case)
    k, n = widths(case)
    gate, up, (linear, w) = make.array(case.rows, k), make.array(case.rows, k), make.matrix(n, k)
    hidden = swiglu(f64(gate), f64(up))
    y, terms = product(hidden, w)
    limits = bound(case, y, terms) + terms * ROUND[case.dtype]  # hidden itself is rounded to the dtype
    return Problem(ops.SWIGLU_MATMUL, (gate, up, linear, LIMIT), [y], [limits], (0, 1))


def project_rows(case: Case) -> Problem:
    make = Make(case)
    k, n = widths(case)
    x, gain = make.array(case.rows, k), make.array(k, dtype="float32")
    other = "bfloat16" if case.format != "bfloat16" else "float32"
    matrices = [make.matrix(n, k), make.matrix(5, k, format=other), make.matrix(n + 2, k)]
    xs = f64(x)
    normed = xs / np.sqrt((xs**2).mean(1, keepdims=True) + EPS) * f64(gain)
    expected, bounds = [normed], [np.abs(normed) * (ROUND[case.dtype] * 1.01 + 2.0**-21) + 1e-7]
    for _, w in matrices:
        y, terms = product(normed, w)
        expected.append(y)
        bounds.append(bound(case, y, terms) + terms * ROUND[case.dtype])
    linears = tuple(linear for linear, _ in matrices)
    return Problem(ops.PROJECT_ROWS, (x, gain, EPS, linears), expected, bounds, (0,))


def grouped_experts(case: Case) -> Problem:
    make = Make(case)
    d, width = {"small": (64, 64), "odd": (320, 64), "wide": (1088, 64)}[case.size]
    if case.format in DTYPES:
        d, width = d - 5, width - 3
    count, k = 5, 2 if case.size == "small" else 3
    (w1, f1), (w3, f3), (w2, f2) = (
        make.matrix(count, width, d),
        make.matrix(count, width, d),
        make.matrix(count, d, width),
    )
    x = make.array(case.rows, d)
    index = np.stack([make.rng.permutation(count)[:k] for _ in range(case.rows)]).astype(np.int32)
    index[-1, 1] = index[-1, 0]  # hash tables may name an expert twice
    weight = make.rng.random((case.rows, k)).astype(np.float32)
    xs, unit = f64(x), ROUND[case.dtype]
    expected, bounds = np.zeros((case.rows, d)), np.zeros((case.rows, d))
    for i, j in itertools.product(range(case.rows), range(k)):
        e, share = index[i, j], float(weight[i, j])
        gate, gate_terms = product(xs[i], f1[e])
        up, up_terms = product(xs[i], f3[e])
        hidden = swiglu(gate, up)
        # swiglu's slope is below 1.2 |up| in gate and |gate| in up, both clamped
        loose = 1.2 * LIMIT * (np.abs(gate) + np.abs(up)) * unit + np.abs(hidden) * unit
        loose += 1.2 * LIMIT * (gate_terms + up_terms) * 2.0**-20
        y, terms = product(hidden, f2[e])
        expected[i] += share * y
        bounds[i] += share * (loose @ np.abs(f2[e]).T + terms * 2.0**-20 + np.abs(y) * unit)
    arguments = (x, mx.array(index), mx.array(weight), ExpertBank(w1, w3, w2), LIMIT)
    return Problem(ops.GROUPED_EXPERTS, arguments, [expected], [bounds * 1.01 + 1e-7], (0, 1, 2))


def attend_rows(case: Case) -> Problem:
    make = Make(case)
    heads, width, rotary, window, chosen = {
        "small": (1, 8, 4, 3, 0), "odd": (3, 24, 8, 12, 5), "wide": (2, 512, 64, 20, 30),
    }[case.size]  # fmt: skip
    r = case.rows
    query = make.array(r, heads, width)
    ring = make.array(40, width)
    slots = np.stack([np.sort(make.rng.permutation(40)[:window]) for _ in range(r)]).astype(np.int32)
    slots[0, : window // 2] = -1
    sink = make.array(heads, dtype="float32")
    angle = make.rng.standard_normal((r, rotary // 2))
    cos, sin = (mx.array(a.astype(np.float32)) for a in (np.cos(angle), np.sin(angle)))
    rows = select = None
    kept = np.full((r, 0), -1, np.int32)
    if chosen:
        rows = make.array(chosen + 4, width)
        kept = np.stack([np.sort(make.rng.permutation(chosen + 4)[:chosen]) for _ in range(r)]).astype(np.int32)
        kept[-1, chosen - 2 :] = -1
        select = mx.array(kept)
    qs, cs, ss = f64(query), f64(cos), f64(sin)
    expected = np.zeros(qs.shape)
    biggest = np.zeros((r, 1, 1))
    for i in range(r):
        keys = f64(ring)[slots[i][slots[i] >= 0]]
        if rows is not None:
            keys = np.concatenate([keys, f64(rows)[kept[i][kept[i] >= 0]]])
        mass = np.exp(qs[i] @ keys.T * width**-0.5)
        mixed = (mass @ keys) / (mass.sum(1, keepdims=True) + np.exp(f64(sink))[:, None])
        a, b = mixed[:, width - rotary :: 2].copy(), mixed[:, width - rotary + 1 :: 2].copy()
        mixed[:, width - rotary :: 2] = a * cs[i] + b * ss[i]
        mixed[:, width - rotary + 1 :: 2] = b * cs[i] - a * ss[i]
        expected[i] = mixed
        biggest[i] = np.abs(keys).max()
    bounds = np.abs(expected) * ROUND[case.dtype] * 1.01 + biggest * 2.0**-18
    arguments = (query, ring, mx.array(slots), rows, select, sink, cos, sin)
    per_row = (0, 2, 6, 7) if select is None else (0, 2, 4, 6, 7)
    return Problem(ops.ATTEND_ROWS, arguments, [expected], [bounds], per_row)


def sigmoid(x: F64) -> F64:
    y: F64 = 1 / (1 + np.exp(-x))
    return y


def hyper_sizes(case: Case) -> tuple[int, int]:
    """Streams, hidden size."""
    return {"small": (2, 7), "odd": (3, 37), "wide": (4, 1032)}[case.size]


def stream_problem(case: Case, outputs: int, scales: int) -> tuple[tuple[mx.array, ...], F64, F64]:
    """streams, fn, base, scale; the normalised logits, and a bound of their errors."""
    make = Make(case)
    n, d = hyper_sizes(case)
    streams = make.array(case.rows, n, d)
    fn = make.array(outputs, n * d, scale=(n * d) ** -0.5, dtype="float32")
    base, scale = make.array(outputs, dtype="float32"), make.array(scales, dtype="float32")
    flat = f64(streams).reshape(case.rows, -1)
    y, terms = product(flat, f64(fn))
    inverse = 1 / np.sqrt((flat**2).mean(1, keepdims=True) + EPS)
    return (streams, fn, base, scale), y * inverse, terms * inverse * 2.0**-20 + 1e-7


def collapsed(case: Case, streams: mx.array, pre: F64, loose: F64, dtype: str) -> tuple[F64, F64]:
    x = f64(streams)
    mixed = (pre[:, :, None] * x).sum(1)
    spread = ((loose + np.abs(pre) * 2.0**-21)[:, :, None] * np.abs(x)).sum(1)
    return mixed, np.abs(mixed) * ROUND[dtype] * 1.01 + spread + 1e-7


def hyper_mix(case: Case) -> Problem:
    n, _ = hyper_sizes(case)
    arguments, m, loose = stream_problem(case, (2 + n) * n, 3)
    base, scale = f64(arguments[2]), f64(arguments[3])
    pre = sigmoid(m[:, :n] * scale[0] + base[:n]) + EPS
    post = 2 * sigmoid(m[:, n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = (m[:, 2 * n :] * scale[2] + base[2 * n :]).reshape(-1, n, n)
    comb = np.exp(comb - comb.max(2, keepdims=True))
    comb = comb / comb.sum(2, keepdims=True) + EPS
    comb = comb / (comb.sum(1, keepdims=True) + EPS)
    iters = 20 if case.size == "wide" else 3
    for _ in range(iters - 1):
        comb = comb / (comb.sum(2, keepdims=True) + EPS)
        comb = comb / (comb.sum(1, keepdims=True) + EPS)
    wide = loose * np.abs(np.repeat(scale, [n, n, n * n]))
    y, limit = collapsed(case, arguments[0], pre, wide[:, :n] / 4, case.dtype)
    limits = [limit, wide[:, n : 2 * n] + 2e-6, np.full(comb.shape, 4 * wide[:, 2 * n :].max() + 5e-6)]
    return Problem(ops.HYPER_MIX, (*arguments, EPS, EPS, iters), [y, post, comb], limits, (0,))


def hyper_head(case: Case) -> Problem:
    n, _ = hyper_sizes(case)
    arguments, m, loose = stream_problem(case, n, 1)
    base, scale = f64(arguments[2]), f64(arguments[3])
    pre = sigmoid(m * scale + base) + EPS
    y, limit = collapsed(case, arguments[0], pre, loose * np.abs(scale) / 4, "float32")
    return Problem(ops.HYPER_HEAD, (*arguments, EPS, EPS), [y], [limit], (0,))


def hyper_expand(case: Case) -> Problem:
    make = Make(case)
    n, d = hyper_sizes(case)
    branch, streams = make.array(case.rows, d), make.array(case.rows, n, d)
    post, comb = make.array(case.rows, n, dtype="float32"), make.array(case.rows, n, n, dtype="float32")
    spread, kept = f64(post)[:, :, None] * f64(branch)[:, None], np.einsum("rjk,rjd->rkd", f64(comb), f64(streams))
    terms = np.abs(spread) + np.einsum("rjk,rjd->rkd", np.abs(f64(comb)), np.abs(f64(streams)))
    y = spread + kept
    return Problem(ops.HYPER_EXPAND, (branch, streams, post, comb), [y], [bound(case, y, terms)], (0, 1, 2, 3))


def turned(x: F64, cos: F64, sin: F64) -> F64:
    y, width = x.copy(), 2 * cos.shape[-1]
    a, b = x[..., -width::2], x[..., 1 - width :: 2]
    y[..., -width::2], y[..., 1 - width :: 2] = a * cos - b * sin, a * sin + b * cos
    return y


def angles(make: Make, rows: int, width: int) -> tuple[mx.array, mx.array]:
    angle = make.rng.standard_normal((rows, width // 2))
    return mx.array(np.cos(angle).astype(np.float32)), mx.array(np.sin(angle).astype(np.float32))


def norm_rotate(case: Case) -> Problem:
    """small: no norm; odd: without a weight; wide: with one."""
    make = Make(case)
    heads, width, rotary = {"small": (1, 4, 2), "odd": (5, 24, 8), "wide": (2, 512, 64)}[case.size]
    x = make.array(case.rows, heads, width)
    cos, sin = angles(make, case.rows, rotary)
    gain = make.array(width, dtype="float32") if case.size == "wide" else None
    xs = f64(x)
    if case.size != "small":
        xs = xs / np.sqrt((xs**2).mean(-1, keepdims=True) + EPS) * (1 if gain is None else f64(gain))
    y = turned(xs, f64(cos)[:, None], f64(sin)[:, None])
    limits = np.abs(y) * ROUND[case.dtype] * 1.01 + np.abs(xs).max(-1, keepdims=True) * 2.0**-20
    arguments = (x, cos, sin, None if case.size == "small" else EPS, gain)
    return Problem(ops.NORM_ROTATE, arguments, [y], [limits], (0, 1, 2))


def pool_windows(case: Case) -> Problem:
    make = Make(case)
    slots, width, rotary = {"small": (2, 4, 2), "odd": (5, 26, 8), "wide": (8, 512, 64)}[case.size]
    kv, gate = (make.array(case.rows, slots, width, dtype="float32") for _ in range(2))
    gate = mx.where(
        (mx.arange(slots) < slots // 2)[None, :, None] & (mx.arange(case.rows) < 1)[:, None, None], -mx.inf, gate
    )
    cos, sin = angles(make, case.rows, rotary)
    gain = make.array(width, dtype="float32")
    share = np.exp(f64(gate))
    pooled = (share * f64(kv)).sum(1) / share.sum(1)
    normed = pooled / np.sqrt((pooled**2).mean(-1, keepdims=True) + EPS) * f64(gain)
    y = turned(normed, f64(cos), f64(sin))
    limits = np.full(y.shape, np.abs(normed).max() * np.abs(f64(kv)).max() * 2.0**-18)
    return Problem(ops.POOL_WINDOWS, (kv, gate, gain, EPS, cos, sin), [y], [limits], (0, 1, 4, 5))


def route_scores(case: Case) -> Problem:
    """Expert 1 has a twin (of another lane, of its own lane): the lower one wins where only one is taken."""
    make = Make(case)
    d, count, k, twin = {"small": (7, 5, 1, 3), "odd": (37, 40, 1, 33), "wide": (1032, 70, 6, 65)}[case.size]
    x = make.array(case.rows, d)
    gate, bias = np.array(make.array(count, d, scale=d**-0.5, dtype="float32")), make.rng.standard_normal(count)
    gate[twin], bias[1], bias[twin] = gate[1], 4.0, 4.0
    z, terms = product(f64(x), gate.astype(np.float64))
    score = np.sqrt(np.logaddexp(z, 0))
    by = score + bias.astype(np.float32)
    index = np.sort(np.argsort(-by, axis=1, kind="stable")[:, :k], axis=1)
    picked = np.take_along_axis(score, index, 1)
    weight = picked / picked.sum(1, keepdims=True) * 1.5
    loose = np.take_along_axis(terms, index, 1).max(1, keepdims=True) * 2.0**-18 + 1e-6
    arguments = (x, mx.array(gate), mx.array(bias.astype(np.float32)), k, 1.5)
    limits = [np.full(index.shape, 0.5), np.broadcast_to(loose, weight.shape)]
    return Problem(ops.ROUTE_SCORES, arguments, [index.astype(np.float64), weight], limits, (0,))


def indexer_select(case: Case) -> Problem:
    """Every third key is the one before it again: ties, the lower of which is taken where only one is."""
    make = Make(case)
    heads, width, span, k = {"small": (1, 16, 3, 2), "odd": (3, 48, 45, 6), "wide": (10, 128, 1100, 70)}[case.size]
    query, keys = make.array(case.rows, heads, width), np.array(make.array(span, width, dtype="float32"))
    keys[2::3] = keys[1::3][: len(keys[2::3])]
    kept = mx.array(keys).astype(dtype_of(case.dtype))
    weight = make.array(case.rows, heads, dtype="float32")
    visible = make.rng.integers(0, span + 1, case.rows).astype(np.int32)
    visible[-1] = span
    score = np.einsum("rh,rhs->rs", f64(weight), np.maximum(f64(query) @ f64(kept).T, 0))
    expected = np.full((case.rows, min(k, span)), -1.0)
    for i, seen in enumerate(visible):
        best = np.sort(np.argsort(-score[i, :seen], kind="stable")[:k])
        expected[i, : len(best)] = best
    arguments = (query, weight, kept, mx.array(visible), int(visible.max()), k)
    return Problem(ops.INDEXER_SELECT, arguments, [expected], [np.full(expected.shape, 0.5)], (0, 1, 3))


PROBLEMS: dict[str, Callable[[Case], Problem]] = {
    "small_rows_matmul": small_rows_matmul,
    "grouped_rows_matmul": grouped_rows_matmul,
    "swiglu_matmul": swiglu_matmul,
    "project_rows": project_rows,
    "grouped_experts": grouped_experts,
    "attend_rows": attend_rows,
}
PLAIN: dict[str, Callable[[Case], Problem]] = {
    "hyper_mix": hyper_mix,
    "hyper_head": hyper_head,
    "hyper_expand": hyper_expand,
    "norm_rotate": norm_rotate,
    "pool_windows": pool_windows,
    "route_scores": route_scores,
    "indexer_select": indexer_select,
}
"""Ops whose weights have one form."""
TILED = ("small_rows_matmul", "grouped_rows_matmul", "swiglu_matmul", "project_rows", "grouped_experts")
TILE_FORMATS = ("affine4", "affine8", "mxfp4", "mxfp8", "bfloat16")
FACTORS: tuple[tuple[Any, ...], ...] = (tuple(PROBLEMS), FORMATS, DTYPES, ROWS, SIZES)


def problem(case: Case) -> Problem:
    return (PROBLEMS | PLAIN)[case.op](case)


def every() -> Iterator[Case]:
    """The whole product."""
    yield from (Case(*levels) for levels in itertools.product(*FACTORS))
    yield from (Case(op, "float32", d, r, s) for op, d, r, s in itertools.product(PLAIN, DTYPES, ROWS, SIZES))


def every_tile() -> Iterator[Case]:
    return (Case(o, f, "bfloat16", r, s) for o, f, r, s in itertools.product(TILED, TILE_FORMATS, ROWS, SIZES))


SOME_ROWS = (1, 5, 8)  # all of 1..8 in the whole product
PLAIN_FACTORS: tuple[tuple[Any, ...], ...] = (tuple(PLAIN), ("float32",), DTYPES, SOME_ROWS, SIZES)
TILE_FACTORS: tuple[tuple[Any, ...], ...] = (TILED, TILE_FORMATS, ("bfloat16",), SOME_ROWS, SIZES)


def pairwise(seed: int = 0, factors: tuple[tuple[Any, ...], ...] = FACTORS) -> list[Case]:
    """A set of cases in which every two levels of two factors meet: greedy, the same for the same seed."""
    rng = np.random.default_rng(seed)
    columns = list(itertools.combinations(range(len(factors)), 2))
    missing = {(a, b, x, y) for a, b in columns for x in factors[a] for y in factors[b]}

    def pairs(levels: Sequence[Any]) -> set[tuple[int, int, Any, Any]]:
        return {(a, b, levels[a], levels[b]) for a, b in columns}

    chosen: list[Case] = []
    while missing:
        a, b, x, y = min(missing, key=str)
        best: list[Any] = []
        gain = -1
        for _ in range(60):
            levels = [factor[rng.integers(len(factor))] for factor in factors]
            levels[a], levels[b] = x, y
            worth = len(pairs(levels) & missing)
            if worth > gain:
                best, gain = levels, worth
        missing -= pairs(best)
        chosen.append(Case(*best))
    return chosen
