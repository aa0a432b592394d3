"""What a round costs beside the layers: a DSpark block of Flash width, and sampling and acceptance over 129,280 tokens.

    python docs/benchmarks/device_round.py --part drafter --kernels fused,unfused  # random weights, about 13 GB
    python docs/benchmarks/device_round.py --part sample  # thresholds and verdict, MLX operations

Wall time and the time in which the device computed (gpu_busy.py, CUDA alone), one JSON line an item. `bytes` is what a
block must read, by the drafter's own weights: the experts that its slots took, everything else once, the Markov table
once a slot. It is not a test: nothing is asserted.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import attrs
import mlx.core as mx
from flash_layer import FLASH, RandomWeights
from gpu_busy import busy

from sparkwright.core.assembly import device_name
from sparkwright.core.config import load_config
from sparkwright.core.contracts import Dense, Draft, Op, OpSpec, Site
from sparkwright.core.kernels import Kernels
from sparkwright.core.randomness import Keys
from sparkwright.plugins.deepseek_v4.config import DSparkConfig, ModelConfig
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.deepseek_v4.ops import SMALL_ROWS_MATMUL as HEAD
from sparkwright.plugins.drafters.dspark import sparkwright_register_drafters
from sparkwright.plugins.drafters.dspark.v4 import V4Drafter
from sparkwright.plugins.samplers.chain import ChainOptions
from sparkwright.plugins.samplers.chain import build as build_sampler
from sparkwright.plugins.targets.deepseek_v4 import sparkwright_register_targets
from sparkwright.plugins.verifiers.stochastic import Stochastic

SPARK = DSparkConfig(block_size=5, noise_token_id=128799, target_layer_ids=(40, 41, 42), markov_rank=256, stages=3)


class DrafterWeights(RandomWeights):
    """`mtp.*` of Flash as well."""

    def linear(self, name: str) -> Linear:
        c, rank = self._c, SPARK.markov_rank
        own = {"mtp.0.main_proj": (c.hidden, 3 * c.hidden)}
        tables = {f"mtp.2.markov_head.markov_{w}": (c.vocab_size, rank) for w in ("w1", "w2")}
        if name in own:
            return self._matrix(self._dense, *own[name])
        return self._matrix("bfloat16", *tables[name]) if name in tables else super().linear(name)

    def array(self, name: str, dtype: str) -> mx.array:
        if "confidence_head" in name:
            return 0.01 * mx.random.normal((1, self._c.hidden + SPARK.markov_rank))
        return super().array(name, dtype)


def timed(work: Callable[[], Any], repeats: int) -> dict[str, Any]:
    """Wall milliseconds of one evaluation, the device's microseconds and its kernels."""
    mx.eval(work())
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        mx.eval(work())
        taken.append(time.perf_counter() - start)
    device = busy(lambda _: mx.eval(work()), repeats)
    wall = {"wall_ms": round(1e3 * statistics.median(taken), 3)}
    return wall | ({} if device is None else {k: round(v, 1) for k, v in device.items()})


def turn(options: argparse.Namespace) -> None:
    """Everything is compiled; from here on one process measures at a time."""
    if options.lock:
        fcntl.flock(os.open(options.lock, os.O_WRONLY | os.O_CREAT), fcntl.LOCK_EX)
        options.lock = None


def drafter(options: argparse.Namespace) -> None:
    device = device_name()
    config: ModelConfig = attrs.evolve(FLASH, ratios=(0,), dspark=SPARK)
    use = {"kernels": {"use": options.kernels.split(",")}}
    providers = [*sparkwright_register_targets(), *sparkwright_register_drafters()]
    kernels = Kernels(load_config(use), Site(device=device), providers)
    seen: list[tuple[Any, ...]] = []

    def select(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        run = kernels.select(op, dtype=dtype, format=format, widths=widths)

        def call(*arguments: Any) -> Any:
            if op.name == "grouped_experts" and options.note_experts:
                seen.append((arguments[1], arguments[3]))
            return run(*arguments)

        return call

    weights = DrafterWeights(config, "bfloat16" if device != "cpu" else "float32", "mxfp8")
    head = weights._matrix("bfloat16", config.vocab_size, config.hidden)
    table = weights._matrix("bfloat16", config.vocab_size, config.hidden)
    multiply = kernels.select(HEAD, dtype="bfloat16", format="bfloat16", widths=(config.hidden, config.vocab_size))
    made = V4Drafter.build(
        config, weights, lambda t: table.lookup(t, weights.activation),
        lambda x: multiply(x.astype(mx.bfloat16), head).astype(mx.float32), select,
    )  # fmt: skip
    keys = Keys(0, 0, 200).array("draft", 5)
    for drawn in (False, True):
        state = made.new_state(lambda x: x - mx.logsumexp(x, axis=-1, keepdims=True), drawn, drawn)
        made.observe(state, mx.random.normal((128, 3 * config.hidden)).astype(mx.bfloat16))

        def block(state: Any = state) -> list[mx.array]:
            draft = made.draft(state, 7, 5, keys)
            return [draft.tokens] + ([] if draft.confidence is None else [draft.confidence])

        options.note_experts = True
        seen.clear()
        mx.eval(block())
        options.note_experts = False
        expert = [b.w1.nbytes + b.w3.nbytes + b.w2.nbytes for _, b in seen]
        mx.eval(made.block(state, 7))
        turn(options)
        used = [len(set(i.reshape(-1).tolist())) for i, _ in seen]
        experts = sum(e // config.experts * n for e, n in zip(expert, used, strict=True))
        print(json.dumps({
            "what": "DSpark block of 5, Flash width", "kernels": kernels.taken, "drawn": drawn,
            **timed(block, options.repeats), "experts_used": used, "expert_bytes": experts,
            "head_bytes": head.nbytes, "markov_bytes": 5 * made.heads.w2.nbytes,
            "stages": timed(lambda: made.block(state, 7), options.repeats),  # noqa: B023
        }), flush=True)  # fmt: skip


def sample(options: argparse.Namespace) -> None:
    """A round of 5 drafts: the sampler's threshold over 6 rows, then the verdict; unfused, as a round runs them."""
    vocabulary, n = 129280, 5
    logits = 3 * mx.random.normal((n + 1, vocabulary), key=mx.random.key(1))
    log_q = mx.random.normal((n, vocabulary), key=mx.random.key(2))
    log_q = log_q - mx.logsumexp(log_q, axis=-1, keepdims=True)
    draft = Draft(mx.argmax(log_q, axis=-1).astype(mx.int32), Dense(log_q), None)
    keys, verifier = Keys(0, 0, 100), Stochastic()
    mx.eval(logits, log_q, draft.tokens)
    turn(options)
    for what in ({"temperature": 1.0}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.05}, {"temperature": 0.0}):
        sampler = build_sampler(ChainOptions(**what), Site())

        def shape(sampler: Any = sampler) -> Any:
            p = sampler.sparkwright_sampler_distribution(logits, None, False)
            return [a for a in (p.log_p, p.flags, p.mode) if a is not None], p

        p = shape()[1]
        mx.eval(p.log_p)

        def accept(p: Any = p) -> list[mx.array]:
            verdict = verifier.sparkwright_verifier_verify(draft, p, keys)
            return [a for a in attrs.asdict(verdict, recurse=False).values() if isinstance(a, mx.array)]

        def both(sampler: Any = sampler) -> list[mx.array]:
            p = sampler.sparkwright_sampler_distribution(logits, None, False)
            verdict = verifier.sparkwright_verifier_verify(draft, p, keys)
            return [a for a in attrs.asdict(verdict, recurse=False).values() if isinstance(a, mx.array)]

        print(json.dumps({
            "what": "sampling, 6 rows x 129280", "sampler": what,
            "threshold": timed(lambda: shape()[0], options.repeats),
            "accept": timed(accept, options.repeats), "both": timed(both, options.repeats),
        }), flush=True)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["drafter", "sample"], required=True)
    parser.add_argument("--kernels", default="auto", help="kernels.use, comma-separated")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--lock", help="a file; of processes that name the same one, one measures at a time")
    options = parser.parse_args()
    options.note_experts = False
    {"drafter": drafter, "sample": sample}[options.part](options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
