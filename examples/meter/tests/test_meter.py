"""The observer keeps its contract, counts by position of the block, and says nothing about drafts that were cut off."""

from __future__ import annotations

import io

import attrs
from rich.console import Console
from sparkwright import assemble
from sparkwright.core.config import load_config
from sparkwright.core.generation import RoundTrace
from sparkwright.core.plugins import discover
from sparkwright.core.testing import Check, parametrize_with_checks, toys
from sparkwright_meter import Meter, sparkwright_register_observers


@parametrize_with_checks(sparkwright_register_observers())
def test_conformance(check: Check) -> None:
    check.run()


def finished(submitted: int, accepted: int, cut: bool = False) -> RoundTrace:
    tokens = tuple(range(accepted + 1))
    return RoundTrace(0, 0, submitted, submitted, submitted, accepted, tokens, (), 0, False, cut, 1, 0.0, 0.0, 0.0)


def test_acceptance_is_counted_by_position() -> None:
    out = io.StringIO()
    meter = Meter(Console(file=out, width=80), live=False)
    for trace in (finished(3, 3), finished(3, 1), finished(1, 0), finished(3, 2, cut=True), finished(0, 0)):
        meter.sparkwright_round_finished(trace)
    assert meter.submitted == [3, 2, 2] and meter.accepted == [2, 1, 1]
    meter.console.print(meter.picture("10 tokens"))
    shown = out.getvalue().splitlines()
    assert "10 tokens" in shown[0] and shown[1].endswith("67% of 3") and shown[3].endswith("50% of 2")


def test_a_request_ends_in_one_picture() -> None:
    table = [[0.0, 5.0, 0.0], [0.0, 0.0, 5.0], [5.0, 0.0, 0.0]]
    out = io.StringIO()
    meters: list[Meter] = []

    def build(options: object, site: object) -> Meter:
        meters.append(Meter(Console(file=out, width=80), live=True))
        return meters[-1]

    provider = attrs.evolve(sparkwright_register_observers()[0], build=build)
    catalogue = discover().with_providers(toys.markov_target(table), toys.table_drafter(table), provider)
    settings = {
        "target": {"use": "markov"}, "drafter": {"use": "table"}, "scheduler": {"use": "fixed"},
        "observers": {"use": ["meter"]},
    }  # fmt: skip
    with assemble(load_config(settings, environ={}, catalogue=catalogue)) as engine:
        result = engine.complete([0, 1], max_tokens=30)
        assert not result.warnings and meters[0].display is None  # before the engine is closed
    assert out.getvalue().count("30 tokens, ") == 1 and "draft 1" in out.getvalue() and "promise law" in out.getvalue()
