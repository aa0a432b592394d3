"""What the audit runs in batches is what an engine runs: the same seeds give the same tokens, round after round."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from sparkwright.core.assembly import assemble
from sparkwright.core.audit import Subject, TableDrafter
from sparkwright.core.audit.models import draft_logits, target_logits
from sparkwright.core.audit.trials import Rounds
from sparkwright.core.config import load_config
from sparkwright.core.plugins import discover
from sparkwright.core.testing import toys

from . import cells

SEEDS, HORIZON, DEPTH = 24, 7, 3
OPTIONS = {"temperature": 0.9, "top_p": 0.95, "presence_penalty": 0.4, "repetition_penalty": 1.1}


@pytest.mark.parametrize("verifier", cells.VERIFIERS)
@pytest.mark.parametrize("kind", ["dense", "point"])
def test_a_trial_is_a_request(verifier: str, kind: Any) -> None:
    target = target_logits(4, 6)
    drafts = draft_logits(target, 4)
    catalogue = discover().with_providers(
        toys.markov_target(target), toys.table_drafter(drafts, proposal=kind, block=DEPTH, target_noise=True)
    )
    settings = {
        "target": {"use": "markov"},
        "drafter": {"use": "table"},
        "scheduler": {"use": "fixed"},
        "verifier": {"use": verifier},
        "sampler": {"use": "chain", "chain": OPTIONS},
        "engine": {"costs": "none"},
    }
    with assemble(load_config(settings, environ={}, catalogue=catalogue)) as engine:
        results = [engine.complete([0, 2], max_tokens=30, seed=seed) for seed in range(SEEDS)]
    assert all(result.stats.accepted > 0 for result in results)
    batch = cells.cell(OPTIONS, verifier, kind, "fixed")
    logits = mx.array(drafts)
    subject = Subject(
        name="as the engine",
        target=mx.array(target),
        sampler=batch.sampler,
        verifier=batch.verifier,
        scheduler=batch.scheduler,
        drafter=TableDrafter(kind, logits - mx.logsumexp(logits, axis=-1, keepdims=True)),
        block=DEPTH,
        noise=batch.noise,
    )
    texts = np.array([result.tokens[: HORIZON + 1] for result in results])
    for first in np.unique(texts[:, 0]):  # the first token is the anchor of the first round
        seeds = np.flatnonzero(texts[:, 0] == first).astype(np.uint64)
        sample = Rounds(subject, (0, 2, int(first)), HORIZON).run(seeds)
        assert sample.tokens.tolist() == texts[seeds.astype(np.int64), 1:].tolist()
