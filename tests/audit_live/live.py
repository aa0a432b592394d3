"""Tiny models behind the audits of live models: watched ops, planted faults, and a target role without an engine."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.deepseek_v4 import tiny
from tests.deepseek_v4.cases import Case, make

from sparkwright.core.audit.consistency import compare_widths
from sparkwright.core.audit.findings import ConsistencyResult
from sparkwright.core.audit.watch import Watch
from sparkwright.core.config import Config, load_config
from sparkwright.core.contracts import Op, OpSpec, Provider, Settle
from sparkwright.core.kernels import by_rows, reference
from sparkwright.core.plugins import discover
from sparkwright.plugins.deepseek_v4 import definition, ops
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.deepseek_v4.model import Model

Change = Callable[..., Any]

SMALL = tiny.TINY_A | {
    "num_hidden_layers": 3,
    "compress_ratios": [0, 4, 4],
    "num_hash_layers": 1,
    "sliding_window": 8,
    "index_topk": 4,
    "hc_sinkhorn_iters": 3,
}
"""Window, ratio and top-k all turn within 24 tokens: 5 rows against 4 from position 19 on."""


@cache
def small() -> Case:
    return make(SMALL, 0, 48, ())


def watched_model(c: Case, watch: Watch, name: str = "", change: Change | None = None, kernel: bool = False) -> Model:
    """The case's model with its ops watched; op `name` is change(reference, *arguments), as a kernel would be (8 rows
    at most, the reference above) or for all row counts."""

    def select(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        meaning = called = select_reference(op, dtype=dtype, format=format, widths=widths)
        if change is not None and op.name == name:
            called = lambda *a, **k: change(meaning, *a, **k)  # noqa: E731
            called = by_rows(called, reference(op)) if kernel else called
        return watch.wrap(op, "toy", called)

    return tiny.tiny_model(c.raw, c.weights, select)


def turns(raw: dict[str, Any]) -> tuple[int, ...]:
    return tuple(sorted({raw["sliding_window"], 4, 4 * (raw["index_topk"] + 1)}))


def audit(
    c: Case,
    count: int,
    name: str = "",
    change: Change | None = None,
    kernel: bool = False,
    held: int = 0,
    around: tuple[int, ...] | None = None,
) -> ConsistencyResult:
    """held: tokens that are held against the definition. around: where blocks are run, every turn if None."""
    watch = Watch()
    model = watched_model(c, watch, name, change, kernel)
    tokens = [int(t) for t in np.asarray(c.tokens)[:count]]

    def reference(tokens: list[int], settle: Settle) -> Any:
        return definition.forward(np.array(tokens), c.weights, tiny.sizes(c.raw), settle=settle)[0]

    around = turns(c.raw) if around is None else around
    return compare_widths(model, watch, tokens, turns=around, prefill=(24,), reference=reference, held=held)


def route() -> OpSpec:
    return ops.ROUTE_HASH


SPARK = SMALL | {
    "compress_ratios": [*SMALL["compress_ratios"], 0, 0],
    "dspark_block_size": 5,
    "dspark_noise_token_id": 256,
    "dspark_target_layer_ids": [1, 2],
    "dspark_markov_rank": 8,
}
"""SMALL with a drafter of two stages."""


def config(folder: Path, settings: dict[str, Any], *providers: Provider) -> Config:
    base: dict[str, Any] = {
        "target": {"use": "deepseek_v4", "model": str(folder)},
        "drafter": {"use": "dspark"},
        "scheduler": {"use": "fixed"},
        "sampler": {"use": "greedy"},
        "verifier": {"use": "greedy"},
        "generation": {"max_tokens": 16},
        "engine": {"costs": "none"},
    }
    catalogue = discover().with_providers(*providers)
    return load_config(base | settings, environ={}, catalogue=catalogue)
