"""What a round costs besides its arithmetic: the engine, the hook calls, and the one transfer.

Every plugin here hands out arrays that were computed beforehand, so a round holds no model, sampler or verifier
arithmetic; what is left is the loop, the keys, the hook calls, building the (never computed) block, reading the
verdict, stop rules, text, counting and the queue to the caller. `computed` adds the smallest possible computation to
the verdict, so that the read waits for the device once, as a real one does; a round without drafts always has one, the
engine's own plain draw. Both clocks are given: the caller's, which other work on the machine lengthens, and the
processor time of all threads, which is what the limit is about.

    python docs/benchmarks/round_overhead.py > docs/benchmarks/round_overhead.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any

import attrs
from environment import environment

from sparkwright.core.assembly import assemble
from sparkwright.core.config import load_config
from sparkwright.core.contracts import (
    Distribution,
    Draft,
    DrafterFacts,
    Forward,
    PointMass,
    Provider,
    Resources,
    RoundReport,
    SamplerFacts,
    SchedulerFacts,
    TargetFacts,
    Verdict,
    VerifierFacts,
)
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.plugins import Catalogue
from sparkwright.core.testing.toys import ToyText

LIMIT_US = 200.0
V = 26


@attrs.define(eq=False)
class State:
    position: int = 0
    rows: int = 0

    def begin(self) -> State:
        self.rows = 0
        return self

    def commit(self, m: int) -> None:
        self.position += m

    def abort(self) -> None:
        self.rows = 0


class Target:
    def __init__(self) -> None:
        import mlx.core as mx

        self.logits = {rows: mx.zeros((rows, V)) for rows in range(1, 9)}
        mx.eval(self.logits)
        self.prefilled = False

    @hookimpl
    def sparkwright_target_resources(self) -> Resources:
        return Resources(embed=lambda tokens: tokens, head=lambda hidden: hidden)

    @hookimpl
    def sparkwright_target_text(self) -> ToyText:
        return ToyText()

    @hookimpl
    def sparkwright_target_new_state(self) -> State:
        return State()

    @hookimpl
    def sparkwright_target_forward(self, tokens: Any, state: State, logits: str) -> Forward:
        if logits != "all":
            state.position += tokens.shape[0]
        return Forward(self.logits[1 if logits == "last" else tokens.shape[0]], None)


class Drafter:
    def __init__(self, n: int) -> None:
        import mlx.core as mx

        self.made = {k: mx.arange(1, k + 1, dtype=mx.int32) for k in range(1, 8)}
        self.confidence = {k: mx.full((k,), 0.9) for k in range(1, 8)}
        mx.eval(self.made, self.confidence)

    @hookimpl
    def sparkwright_drafter_start(self, prompt: Sequence[int], shape: Any) -> int:
        return 0

    @hookimpl
    def sparkwright_drafter_draft(self, state: int, anchor: int, limit: int, keys: Any) -> Draft:
        return Draft(self.made[limit], PointMass(), self.confidence[limit])

    @hookimpl
    def sparkwright_drafter_observe(self, state: int, tokens: Sequence[int], taps: Any) -> None:
        return None


@attrs.define(eq=False)
class Scheduler:
    n: int

    @hookimpl
    def sparkwright_scheduler_start(self) -> int:
        return 0

    @hookimpl
    def sparkwright_scheduler_plan(self, state: int, limit: int) -> int:
        return min(self.n, limit)

    @hookimpl
    def sparkwright_scheduler_more(self, state: int, depth: int, confidence: float) -> bool:
        return True

    @hookimpl
    def sparkwright_scheduler_learn(self, state: int, report: RoundReport) -> None:
        return None


class Sampler:
    def __init__(self) -> None:
        import mlx.core as mx

        self.p = {
            rows: Distribution(mx.zeros((rows, V)), mx.zeros((rows,), mx.int32), mx.ones((rows,), mx.int32))
            for rows in range(1, 9)
        }
        mx.eval([array for p in self.p.values() for array in (p.log_p, p.flags, p.mode)])

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Sequence[int]) -> int:
        return 0

    @hookimpl
    def sparkwright_sampler_rows(self, state: int, drafts: Any) -> int:
        return 0

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: Any, context: Any, full: bool) -> Distribution:
        return self.p[logits.shape[0]]

    @hookimpl
    def sparkwright_sampler_advance(self, state: int, tokens: Sequence[int]) -> int:
        return 0

    @hookimpl
    def sparkwright_sampler_shape(self, logits: Any) -> Any:
        return logits


class Verifier:
    def __init__(self, computed: bool) -> None:
        import mlx.core as mx

        self.computed = computed
        self.made = {n: mx.array([n, 3, 0, *range(1, n + 1)], dtype=mx.int32) for n in range(1, 8)}
        mx.eval(self.made)

    @hookimpl
    def sparkwright_verifier_verify(self, draft: Draft, p: Distribution, keys: Any) -> Verdict:
        made = self.made[len(draft)]
        return Verdict(made + 0 if self.computed else made)


def providers(n: int, confidences: bool, computed: bool) -> list[Provider]:
    def provider(kind: Any, build: Any, facts: Any) -> Provider:
        return Provider(
            kind=kind, name="mock", summary="arrays made beforehand", build=build, describe=lambda options, site: facts
        )

    return [
        provider("target", lambda options, site: Target(), TargetFacts(V, 1 << 30, 8, 1, (), "mock", "exact")),
        provider("drafter", lambda options, site: Drafter(n), DrafterFacts(block=7, confidence=True)),
        provider("scheduler", lambda options, site: Scheduler(n), SchedulerFacts(confidences=confidences)),
        provider("sampler", lambda options, site: Sampler(), SamplerFacts(deterministic=True)),
        provider("verifier", lambda options, site: Verifier(computed), VerifierFacts("identity")),
    ]


def measure(n: int, confidences: bool, computed: bool, rounds: int, repeats: int) -> dict[str, Any]:
    """Microseconds a round over `repeats` requests of `rounds` rounds, by the caller's clock, streamed."""
    slots = {slot: {"use": "mock"} for slot in ("target", "drafter", "scheduler", "sampler", "verifier")}
    catalogue = Catalogue().with_providers(*providers(n, confidences, computed))
    config = load_config({**slots, "engine": {"costs": "none"}}, environ={}, catalogue=catalogue)
    times: list[float] = []
    processor: list[float] = []
    with assemble(config) as engine:
        for repeat in range(repeats + 1):
            started, worked = perf_counter(), process_time()
            with engine.stream([1], max_tokens=1 + rounds * (n + 1)) as stream:
                for _ in stream:
                    pass
            seconds, work = perf_counter() - started, process_time() - worked
            assert stream.result.stats.rounds == rounds
            if repeat:  # the first is warm-up
                times.append(seconds / rounds * 1e6)
                processor.append(work / rounds * 1e6)
    return {
        "drafts": n, "confidences": confidences, "computed": computed,
        "wall_us": spread(times), "processor_us": spread(processor),
    }  # fmt: skip


def spread(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    named = {"least": min(values), "lower_quartile": low, "median": middle, "upper_quartile": high}
    return {name: round(value, 1) for name, value in named.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=300, help="rounds of a request")
    parser.add_argument("--repeats", type=int, default=40, help="requests a variant")
    given = parser.parse_args()
    variants = [(0, False, False), (1, False, False), (5, False, False), (7, False, False), (5, True, False)]
    variants += [(0, False, True), (5, False, True), (5, True, True)]
    results = [measure(*variant, given.rounds, given.repeats) for variant in variants]
    report = {
        "what": "microseconds a round of engine and hooks, without model, sampler and verifier arithmetic",
        "limit_us": LIMIT_US,
        "holds": all(result["processor_us"]["median"] <= LIMIT_US for result in results if not result["computed"]),
        "rounds": given.rounds,
        "repeats": given.repeats,
        "environment": environment(),
        "results": results,
    }
    json.dump(report, sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
