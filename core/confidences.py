"""Temperatures for a drafter's confidences, from rounds of its own that submitted whole blocks.

What the numbers come from is `core.calibrate`'s fit; here an engine is assembled and run for the rounds it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from sparkwright.core.assembly import assemble
from sparkwright.core.audit.identity import changed
from sparkwright.core.calibrate import fit_sts, whole_blocks
from sparkwright.core.compare.prompts import load_prompts
from sparkwright.core.config import Config
from sparkwright.core.contracts import Provider
from sparkwright.core.errors import RequestError
from sparkwright.core.generation import RoundTrace
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.store import WeightStore

ENOUGH = 400
"""Rounds with a whole block after which no more text is generated."""


@attrs.define(eq=False)
class _Rounds:
    """An observer that keeps every round."""

    seen: list[RoundTrace] = attrs.field(factory=list)

    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        self.seen.append(trace)


def fit_confidences(
    config: Config, store: WeightStore, prompts: str, tokens: int, block: int, tell: Callable[[str, int, int], None]
) -> dict[str, Any]:
    """`prompts`: sets of `compare`, or a file; `tokens` of each text.

    -> `{"fitted": True, ...}` with what `fit_sts` found, or `{"fitted": False, "why": ...}`.
    """
    rounds = _Rounds()
    watch = Provider(kind="observer", name="calibrate", summary="keeps rounds", build=lambda options, site: rounds)
    watched = attrs.evolve(config, catalogue=config.catalogue.with_providers(watch))
    whole = {
        "observers.use": ["calibrate"],
        "scheduler.use": "threshold",
        "scheduler.threshold.confidence": 0.0,
        "scheduler.threshold.survival": 0.0,
    }
    asked = load_prompts(prompts)
    logits, accepted = whole_blocks([], block)
    with assemble(changed(watched, whole), store=store, progress=tell) as engine:
        for seed, prompt in enumerate(asked):
            engine.complete(prompt.text, max_tokens=tokens, seed=seed, ignore_eos=True)
            logits, accepted = whole_blocks(rounds.seen, block)
            tell("rounds for the confidences", min(len(accepted), ENOUGH), ENOUGH)
            if len(accepted) >= ENOUGH:
                break
    try:
        found = fit_sts(logits, accepted)
    except RequestError as error:
        return {"fitted": False, "why": str(error)}
    return {"fitted": True, **attrs.asdict(found)}
