"""`markov_chain` on a GPU: the bias of a slot by the token before it in one dispatch (lookup, product, sum).

How a slot is drawn is the caller's `pick`, in MLX operations; the chain between two draws never visits the host.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.kernels.fused.launcher import WARP, Launcher, Plans, Prepared, ceil_div, source
from sparkwright.plugins.kernels.fused.matmul import OUTS, split_of
from sparkwright.plugins.kernels.fused.weights import stored

Pick = Callable[[int, mx.array], mx.array]


def markov_chain(launcher: Launcher) -> Op:
    plans = Plans(launcher)

    def plan(dtype: mx.Dtype, w1: Linear, w2: Linear) -> Prepared:
        matrix, table = stored("a", w2), stored("b", w1)
        rank, vocabulary = w2.in_size, w2.out_size
        sizes = {"R": 1, "K": rank, "N": vocabulary, "G": 1, "OUTS": OUTS, "SPLIT": split_of(rank), "C": OUTS}
        return launcher.prepare(
            "small_rows_matmul",
            {"base": mx.zeros((vocabulary,), dtype), "token": mx.zeros((1,), mx.int32)},
            {"y": ((1, vocabulary), mx.float32)},
            {"T": mx.float32, "Y": mx.float32, **sizes},
            groups=(ceil_div(vocabulary, OUTS), 1),
            threads=WARP * split_of(rank),
            defines=matrix.defines + table.defines + source("rows_lookup.h"),
            fixed=matrix.inputs | table.inputs,
        )

    def biased(base: mx.array, token: mx.array, w1: Linear, w2: Linear) -> mx.array:
        """base [V], token int32 [1] -> base + w2 w1[token], float32 [1, V]."""
        (y,) = plans.get(plan, base.dtype, w1, w2)(base, token)
        return y

    def run(
        base: mx.array,
        hidden: mx.array,
        anchor: mx.array,
        w1: Linear,
        w2: Linear,
        confidence: mx.array | None,
        pick: Pick,
    ) -> tuple[mx.array, mx.array, mx.array | None]:
        """base [n, V], hidden [n, d], anchor [1], confidence [d + rank] -> tokens [n], logits [n, V], claims [n]."""
        d = hidden.shape[-1]
        own = None if confidence is None else (hidden.astype(mx.float32) @ confidence[:d, None])[:, 0]  # [n]
        tokens, logits, claims = [], [], []
        previous = anchor
        for slot in range(base.shape[0]):
            if own is not None and confidence is not None:
                e = w1.lookup(previous, "float32")
                claims.append(own[slot : slot + 1] + (e @ confidence[d:, None])[:, 0])
            logits.append(biased(base[slot], previous, w1, w2))
            previous = pick(slot, logits[-1])
            tokens.append(previous)
        return mx.concatenate(tokens), mx.concatenate(logits), mx.concatenate(claims) if claims else None

    return run
