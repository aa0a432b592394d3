"""Configurations of the bundled plugins on small exact models, for the law tests and for docs/benchmarks' script."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sparkwright.core.audit import Subject, subject
from sparkwright.core.contracts import CostCurves, DrafterFacts, NoOptions, SchedulerFacts, Site
from sparkwright.plugins.samplers import chain
from sparkwright.plugins.schedulers import cost_aware, fixed, threshold

FILTERS: dict[str, dict[str, Any]] = {
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.08},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3},
}
TEMPERATURES = (0.3, 1.0, 1.7)
VERIFIERS = ("stochastic", "block", "coupled")
KINDS = ("dense", "sparse", "point")
SCHEDULERS = ("threshold", "cost_aware", "fixed")

PAIRWISE = [
    ("top-k", 0.3, "stochastic", "dense", "cost_aware"),
    ("top-k", 1.0, "coupled", "sparse", "threshold"),
    ("top-k", 1.7, "block", "point", "fixed"),
    ("top-p", 0.3, "coupled", "sparse", "fixed"),
    ("top-p", 1.0, "block", "point", "cost_aware"),
    ("top-p", 1.7, "stochastic", "dense", "threshold"),
    ("min-p", 0.3, "coupled", "point", "threshold"),
    ("min-p", 1.0, "block", "dense", "fixed"),
    ("min-p", 1.7, "stochastic", "sparse", "cost_aware"),
    ("penalties", 0.3, "block", "sparse", "threshold"),
    ("penalties", 1.0, "stochastic", "point", "fixed"),
    ("penalties", 1.7, "coupled", "dense", "cost_aware"),
]
"""Every pair of values of any two of the five factors occurs in some cell."""

# Depths 0 to 4 all occur under these costs: the curve has a step, and a draft is not free.
CURVES = CostCurves(plain=1.0, verify=(1.0, 1.15, 1.3, 1.9, 2.0, 2.1, 2.2, 2.3), draft=0.1)


def scheduler(name: str) -> tuple[object, SchedulerFacts]:
    if name == "threshold":
        return threshold.Threshold(threshold.ThresholdOptions(confidence=0.5, survival=0.3)), SchedulerFacts(
            confidences=True
        )
    if name == "fixed":
        return fixed.Fixed(fixed.FixedOptions(depth=3)), SchedulerFacts()
    site = Site(costs=CURVES, drafter=DrafterFacts(block=4, confidence=True))
    provider = cost_aware.sparkwright_register_schedulers()[0]
    return provider.build(cost_aware.CostAwareOptions(), site), SchedulerFacts(confidences=True)


def cell(options: dict[str, Any], verifier: str, kind: Any, schedule: str, seed: int = 0, vocab: int = 8) -> Subject:
    """The chain with these options x verifier x drafter kind x scheduler on the model of a seed."""
    module = import_module(f"sparkwright.plugins.verifiers.{verifier}")
    settings = chain.ChainOptions(**options)
    scheduling, scheduler_facts = scheduler(schedule)
    return subject(
        kind,
        chain.build(settings, Site()),
        module.build(NoOptions(), Site()),
        scheduling,
        verifier_facts=module.describe(NoOptions(), Site()),
        scheduler_facts=scheduler_facts,
        deterministic=settings.greedy,
        seed=seed,
        vocab=vocab,
        name=f"{options} x {kind} x {schedule} x {verifier}",
    )
