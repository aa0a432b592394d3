"""One full-width DeepSeek-V4-Flash layer with random weights: time and bytes of each op, against the floor.

    python docs/benchmarks/flash_layer.py --out docs/benchmarks/flash_layer_cpu.json

The layer is a ratio-4 one (window, compressor, indexer, routed experts) with experts in mxfp4 and dense matrices in
mxfp8, as the released checkpoint is kept in memory: about 3.6 GB. A state at `--context` tokens is made up, not
computed. Every op's arguments are recorded in a real forward of `--rows` rows and the op is then run on them again and
again; "bytes" is what an op must at least move (weights once, of experts those that are used, its rows in and out) and
"floor_ms" that number over the bandwidth measured by copying. It prints JSON. It is not a test: nothing is asserted.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.metadata
import json
import math
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
from gpu_busy import busy

from sparkwright.core.assembly import device_name
from sparkwright.core.check import LiveCheck
from sparkwright.core.config import load_config
from sparkwright.core.contracts import Op, OpSpec, SelectKernel, Site
from sparkwright.core.kernels import Kernels
from sparkwright.plugins.deepseek_v4.config import ModelConfig, Yarn
from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear, Mode, dtype_of
from sparkwright.plugins.deepseek_v4.model import Model
from sparkwright.plugins.deepseek_v4.state import State
from sparkwright.plugins.targets.deepseek_v4 import sparkwright_register_targets

FLASH = ModelConfig(
    vocab_size=129280, hidden=4096, layers=1, heads=64, head_dim=512, rope_dim=64, q_rank=1024, o_groups=8, o_rank=1024,
    window=128, ratios=(4,), rope_theta=10000.0, compress_rope_theta=160000.0, yarn=Yarn(16, 65536), context=1048576,
    index_heads=64, index_dim=128, index_topk=512, experts=256, shared_experts=1, experts_per_token=6,
    expert_width=2048, hash_layers=0, routed_scale=1.5, swiglu_limit=10.0, hc_mult=4, hc_iters=20, hc_eps=1e-6,
    rms_eps=1e-6, eos=(1,), bos=0, expert_dtype="fp4", dspark=None,
)  # fmt: skip
"""Spec section 1, one layer of it. The embedding and the head are cut to `VOCABULARY`: they are not the subject."""
VOCABULARY = 1024
MX: dict[str, tuple[Mode, int]] = {"mxfp4": ("mxfp4", 4), "mxfp8": ("mxfp8", 8)}


class RandomWeights:
    """`Weights` out of a random number generator, in the forms that a release is kept in."""

    def __init__(self, config: ModelConfig, activation: str, dense: str) -> None:
        self._c, self._activation, self._dense = config, activation, dense
        self._key = mx.random.key(0)

    @property
    def activation(self) -> str:
        return self._activation

    def _matrix(self, form: str, *shape: int) -> Linear:
        if form == "affine4":
            self._key, use = mx.random.split(self._key)
            packed = (*shape[:-1], shape[-1] // 8)
            weight = mx.random.split(use, math.prod(packed) // 2).reshape(packed)
            scales = mx.full((*shape[:-1], shape[-1] // 64), 2.0**-8, dtype=mx.bfloat16)
            mx.eval(weight, scales)
            return Linear(weight, scales, -7.5 * scales, "affine", 4, 64)
        if form not in MX:
            weight = mx.random.normal(shape, scale=shape[-1] ** -0.5, dtype=dtype_of(form))
            mx.eval(weight)
            return Linear(weight)
        mode, bits = MX[form]
        packed = (*shape[:-1], shape[-1] * bits // 32)
        self._key, use = mx.random.split(self._key)
        weight = mx.random.split(use, math.prod(packed) // 2).reshape(packed)  # raw bits, without temporaries
        if bits == 8:  # no NaN, and values of moderate size
            weight = (weight & 0x8F8F8F8F) | 0x30303030
        scales = mx.full((*shape[:-1], shape[-1] // 32), 121, dtype=mx.uint8)
        mx.eval(weight, scales)
        return Linear(weight, scales, None, mode, bits, 32)

    def linear(self, name: str) -> Linear:
        c, leaf = self._c, name.split(".", 2)[-1]
        heads = c.heads * c.head_dim
        shapes = {
            "attn.wq_a": (c.q_rank, c.hidden),
            "attn.wq_b": (heads, c.q_rank),
            "attn.wkv": (c.head_dim, c.hidden),
            "attn.wo_a": (c.o_groups * c.o_rank, heads // c.o_groups),
            "attn.wo_b": (c.hidden, c.o_groups * c.o_rank),
            "attn.indexer.wq_b": (c.index_heads * c.index_dim, c.q_rank),
            "ffn.shared_experts.w1": (c.expert_width, c.hidden),
            "ffn.shared_experts.w3": (c.expert_width, c.hidden),
            "ffn.shared_experts.w2": (c.hidden, c.expert_width),
        }
        lapping = 2 if c.ratios[0] == 4 else 1
        plain = {
            "attn.compressor.wkv": (lapping * c.head_dim, c.hidden),
            "attn.compressor.wgate": (lapping * c.head_dim, c.hidden),
            "attn.indexer.weights_proj": (c.index_heads, c.hidden),
            "attn.indexer.compressor.wkv": (2 * c.index_dim, c.hidden),
            "attn.indexer.compressor.wgate": (2 * c.index_dim, c.hidden),
        }
        if leaf in shapes:
            return self._matrix(self._dense, *shapes[leaf])
        return self._matrix(self._activation, *plain.get(leaf, (c.vocab_size, c.hidden)))

    def array(self, name: str, dtype: str) -> mx.array:
        c, n, leaf = self._c, self._c.hc_mult, name.split(".", 2)[-1]
        shapes: dict[str, tuple[int, ...]] = {
            "attn.q_norm.weight": (c.q_rank,),
            "attn.kv_norm.weight": (c.head_dim,),
            "attn.attn_sink": (c.heads,),
            "attn.compressor.ape": (c.ratios[0], (2 if c.ratios[0] == 4 else 1) * c.head_dim),
            "attn.compressor.norm.weight": (c.head_dim,),
            "attn.indexer.compressor.ape": (4, 2 * c.index_dim),
            "attn.indexer.compressor.norm.weight": (c.index_dim,),
            "ffn.gate.weight": (c.experts, c.hidden),
            "ffn.gate.bias": (c.experts,),
            "hc_head_fn": (n, n * c.hidden),
            "hc_head_base": (n,),
            "hc_head_scale": (1,),
        }
        for branch in ("attn", "ffn"):
            shapes |= {f"hc_{branch}_fn": ((2 + n) * n, n * c.hidden), f"hc_{branch}_base": ((2 + n) * n,)}
            shapes[f"hc_{branch}_scale"] = (3,)
        shape = shapes.get(leaf, (c.hidden,))
        made = 1 + 0.1 * mx.random.normal(shape) if "norm" in name else 0.02 * mx.random.normal(shape)
        made = made.astype(dtype_of(dtype))
        mx.eval(made)
        return made

    def experts(self, prefix: str) -> ExpertBank:
        c = self._c
        up, down = (c.experts, c.expert_width, c.hidden), (c.experts, c.hidden, c.expert_width)
        form = "affine4" if self._dense == "affine4" else "mxfp4"
        return ExpertBank(w1=self._matrix(form, *up), w3=self._matrix(form, *up), w2=self._matrix(form, *down))


@attrs.define(eq=False)
class Call:
    """One call of an op in a forward."""

    op: str
    format: str
    widths: tuple[int, ...]
    run: Op
    arguments: tuple[Any, ...]


@attrs.define(eq=False)
class Recorder:
    """Wraps kernel selection; notes the calls of a forward while `on`. It lets go of them soon: arguments that are held
    turn the next update of a cache into a copy."""

    select: SelectKernel
    on: bool = False
    calls: list[Call] = attrs.field(factory=list)

    def __call__(self, op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        run = self.select(op, dtype=dtype, format=format, widths=widths)

        def call(*arguments: Any) -> Any:
            if self.on:
                self.calls.append(Call(op.name, format, widths, run, arguments))
            return run(*arguments)

        return call


def arrays(value: Any) -> Iterator[mx.array]:
    """Every array in arguments or results, weights not included."""
    if isinstance(value, mx.array):
        yield value
    elif isinstance(value, tuple | list):
        for one in value:
            yield from arrays(one)


def least_bytes(call: Call, result: Any) -> int:
    """What the op must move once: weights that are used, rows in, rows out."""
    moved: int = sum(a.nbytes for a in arrays(result))
    if call.op == "attend_rows":
        query, ring, slots, rows, select, *_ = call.arguments
        moved += query.nbytes
        for keys, index in ((ring, slots), (rows, select)):
            if keys is not None and index is not None:
                used = {int(i) for row in index.tolist() for i in row if i >= 0}
                moved += index.nbytes + len(used) * keys.shape[1] * keys.itemsize
        return moved
    for argument in call.arguments:
        linears = argument if isinstance(argument, tuple) else (argument,)
        for linear in linears:
            if isinstance(linear, Linear | mx.array):
                moved += linear.nbytes
            elif isinstance(linear, ExpertBank):
                used = {int(i) for row in call.arguments[1].tolist() for i in row}
                whole = sum(w.nbytes for w in (linear.w1, linear.w3, linear.w2))
                moved += whole * len(used) // linear.count
    return moved


def seconds(work: Callable[[], Any], repeats: int, inner: int) -> float:
    """Median over `repeats` of the time of `inner` runs evaluated together, divided by them."""
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        mx.eval([list(arrays(work())) for _ in range(inner)])
        taken.append((time.perf_counter() - start) / inner)
    return statistics.median(taken[1:])  # the first compiles kernels


def again(call: Call, _: int) -> None:
    mx.eval(list(arrays(call.run(*call.arguments))))


def bandwidth(megabytes: int) -> float:
    """Bytes a second of x + 1, read and written: the best of a few runs."""
    x = mx.zeros((megabytes << 18,), dtype=mx.float32)
    mx.eval(x)
    return 2 * x.nbytes / min(seconds(lambda: x + 1, 1, 1) for _ in range(8))


def made_up(state: State, position: int) -> None:
    """A state as after `position` tokens, of random numbers."""
    state.end = position
    for layer in state.layers:
        for ring in (layer.window, *(c.raw for c in layer.compressors)):
            ring.array = mx.random.normal(ring.array.shape).astype(ring.array.dtype)
            ring.end = ring.high = position
        for c in layer.compressors:
            c.rows.reserve(position // c.ratio + 64)
            c.rows.array = mx.random.normal(c.rows.array.shape).astype(c.rows.array.dtype)
            c.rows.count = position // c.ratio
    mx.eval(state.arrays)


def measured(
    model: Model, state: State, recorder: Recorder, tokens: mx.array, options: argparse.Namespace, speed: float
) -> dict[str, Any]:
    """A forward of these tokens as a whole, then each of its ops alone."""

    def layer() -> Any:
        work = state.begin()
        out = model.forward(tokens, state, "last")
        mx.eval(out.logits, state.arrays)
        work.abort()
        return (out.logits,)

    total = seconds(layer, options.repeats, 1)
    device = busy(lambda _: layer(), options.repeats)
    recorder.on = True
    layer()
    recorder.on, calls, recorder.calls = False, recorder.calls, []
    ops: dict[tuple[str, str, tuple[int, ...]], dict[str, Any]] = {}
    for call in calls:
        mx.eval(list(arrays(call.arguments)))
        result = call.run(*call.arguments)
        mx.eval(list(arrays(result)))
        empty = {"op": call.op, "format": call.format, "widths": list(call.widths), "calls": 0, "ms": 0.0, "bytes": 0}
        row = ops.setdefault((call.op, call.format, call.widths), empty)
        row["calls"] += 1
        row["ms"] += 1e3 * seconds(partial(call.run, *call.arguments), options.repeats, options.inner)
        row["bytes"] += least_bytes(call, result)
        spent = busy(partial(again, call), options.repeats)
        if spent is not None:
            row["busy_us"] = round(row.get("busy_us", 0.0) + spent["us"], 2)
            row["kernels"] = row.get("kernels", 0) + round(spent["kernels"])
    for row in ops.values():
        row["floor_ms"] = row["bytes"] / speed * 1e3
        row["times_floor"] = round(row["ms"] / row["floor_ms"], 2)
        row["ms"], row["floor_ms"] = round(row["ms"], 4), round(row["floor_ms"], 4)
    moved = sum(r["bytes"] for r in ops.values())
    return {
        "rows": int(tokens.shape[0]),
        "layer_ms": round(total * 1e3, 3),
        "busy_ms": None if device is None else round(device["us"] / 1e3, 4),
        "kernels": None if device is None else round(device["kernels"]),
        "sum_of_ops_ms": round(sum(r["ms"] for r in ops.values()), 3),
        "bytes": moved,
        "floor_ms": round(moved / speed * 1e3, 3),
        "ops": sorted(ops.values(), key=lambda r: -float(r["ms"])),
    }


def compared(config: ModelConfig, weights: RandomWeights, kernels: Kernels, options: argparse.Namespace) -> int:
    """The live check of `audit kernels` on this layer; 1 if anything left its bound."""
    check = LiveCheck(fatal=False)

    def select(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        called = kernels.select(op, dtype=dtype, format=format, widths=widths)
        return check.wrap(op, kernels.taken[op.name], called)

    model = Model.build(config, weights, select)
    state = model.new_state()
    made_up(state, options.context)
    for rows in (int(r) for r in options.rows.split(",")):
        for same in (False, True):
            tokens = mx.full((rows,), 7) if same else mx.random.randint(0, VOCABULARY, (rows,))
            work = state.begin()
            mx.eval(model.forward(tokens.astype(mx.int32), state, "all").logits, state.arrays)
            work.abort()
    seen = [attrs.asdict(tally) | {"rows": sorted(tally.rows)} for tally in check.tallies.values()]
    passed = check.first is None and bool(seen)
    report = {"ratio": options.ratio, "passed": passed, "first": str(check.first), "ops": seen}
    print(json.dumps(report | {"references": sorted(check.references)}, default=sorted))
    return 0 if passed else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", default="1,2,4,6,8", help="rows of a forward, comma-separated")
    parser.add_argument("--context", type=int, default=8190, help="tokens before it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--inner", type=int, default=1, help="runs evaluated together (more on a GPU)")
    parser.add_argument("--kernels", default="auto", help="kernels.use, comma-separated")
    parser.add_argument("--activation", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument(
        "--dense", default="mxfp8", choices=["mxfp8", "affine4", "float32", "bfloat16"], help="affine4: the experts too"
    )
    parser.add_argument("--same-tokens", action="store_true", help="all rows are one token: the best expert overlap")
    parser.add_argument("--check", action="store_true", help="no times: every kernel beside its op's reference")
    parser.add_argument("--ratio", type=int, default=4, choices=[0, 4, 128], help="which kind of layer")
    parser.add_argument("--lock", help="a file; of processes that name the same one, one measures at a time")
    parser.add_argument("--note", default="", help="what a reader should know about the machine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = device_name()
    activation = options.activation
    if activation == "auto":
        activation = "float32" if device == "cpu" else "bfloat16"
    mx.random.seed(0)

    kernels = Kernels(
        load_config({"kernels": {"use": options.kernels.split(",")}}),
        Site(device=device),
        list(sparkwright_register_targets()),
    )
    config = attrs.evolve(FLASH, vocab_size=VOCABULARY, ratios=(options.ratio,))
    weights = RandomWeights(config, activation, options.dense)
    if options.check:
        return compared(config, weights, kernels, options)
    recorder = Recorder(kernels.select)
    model = Model.build(config, weights, recorder)
    speed = bandwidth(64 if device == "cpu" else 1024)
    state = model.new_state()
    made_up(state, options.context)

    runs = []
    if options.lock:  # everything is compiled, then one process measures at a time
        for rows in (int(r) for r in options.rows.split(",")):
            work = state.begin()
            mx.eval(model.forward(mx.arange(rows, dtype=mx.int32), state, "last").logits, state.arrays)
            work.abort()
        fcntl.flock(os.open(options.lock, os.O_WRONLY | os.O_CREAT), fcntl.LOCK_EX)
    for rows in (int(r) for r in options.rows.split(",")):
        tokens = mx.full((rows,), 7) if options.same_tokens else mx.random.randint(0, VOCABULARY, (rows,))
        runs.append(measured(model, state, recorder, tokens.astype(mx.int32), options, speed))
        print(f"{rows} rows: layer {runs[-1]['layer_ms']} ms, floor {runs[-1]['floor_ms']} ms", file=sys.stderr)

    report = {
        "command": "python docs/benchmarks/flash_layer.py " + shlex.join(sys.argv[1:]),
        "device": device,
        "device_info": {k: mx.device_info()[k] for k in ("device_name", "architecture", "total_memory")}
        if device != "cpu"
        else {},
        "machine": platform.machine(),
        "mlx": importlib.metadata.version("mlx"),
        "kernels": kernels.taken,
        "activation": activation,
        "dense": options.dense,
        "experts": "affine4" if options.dense == "affine4" else "mxfp4",
        "context": options.context,
        "note": options.note,
        "bandwidth_gb_s": round(speed / 1e9, 2),
        "peak_memory_gb": round(mx.get_peak_memory() / 1e9, 2),
        "over_one_row": [round(r["layer_ms"] / runs[0]["layer_ms"], 3) for r in runs],
        "runs": runs,
    }
    text = json.dumps(report, indent=1)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
