"""The probe behind `row_exact`: does a row really come out the same whatever rows it is computed with?"""

from __future__ import annotations

import mlx.core as mx

from sparkwright.core.contracts import WIDEST_VERIFY
from sparkwright.core.errors import AssemblyError
from sparkwright.plugins.deepseek_v4.model import Model


def probe_rows(model: Model) -> None:
    """AssemblyError unless blocks and single tokens agree bit for bit on a short text that is run both ways.

    Two full chunks and a part of one are compared with one row at a time, so that every row meets every place in a
    chunk that its neighbours can take.
    """
    count = 2 * WIDEST_VERIFY + 3
    tokens = mx.array([(7919 * (i + 1)) % model.config.vocab_size for i in range(count)], dtype=mx.int32)
    state = model.new_state()
    singles = []
    for i in range(count):
        logits = model.forward(tokens[i : i + 1], state).logits
        mx.eval(logits)
        singles.append(logits)
    state = model.new_state()
    first = model.forward(tokens[:3], state).logits
    mx.eval(first)
    blocks = model.forward(tokens[3:], state).logits
    assert first is not None and blocks is not None
    together, alone = mx.concatenate([first, blocks]), mx.concatenate([s for s in singles if s is not None])
    differs = mx.any(together.view(mx.uint32) != alone.view(mx.uint32), axis=-1)
    if mx.any(differs).item():
        row = mx.argmax(differs).item()
        worst = mx.abs(together - alone).max().item()
        raise AssemblyError(
            f"engine.row_exact: the target's row {row} differs between a block and a single token (by up to "
            f"{worst:.1e}), so a kernel depends on its neighbours' rows; use kernels.use = ['unfused'], or switch "
            "engine.row_exact off"
        )
