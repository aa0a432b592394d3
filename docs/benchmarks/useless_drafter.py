"""What a useless drafter costs under `cost_aware`: drafts uniform over the vocabulary against plain decoding.

    python docs/benchmarks/useless_drafter.py models/smollm2 > docs/benchmarks/useless_drafter.json

First the cost curves of this machine are measured, as `sparkwright calibrate` does; then, prompt by prompt, the two
arms run in ABBA order on shared weights, greedily and with the default BLAS. Prompts are the first of each kind of
core/compare/prompts. Prints the ratio (with drafter / plain) of each of the two pairs of every prompt, their geometric
mean and quartiles, plain against plain in the same pairs (what the machine's noise alone makes of a ratio of one), and
what the curves say that the rounds should have cost, which no noise is in.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from environment import environment

from sparkwright import assemble, load_config
from sparkwright.core import costs
from sparkwright.core.calibrate import measure_curves
from sparkwright.core.contracts import CostCurves, Provider
from sparkwright.core.engine import Engine
from sparkwright.core.generation import RoundTrace
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.plugins import discover
from sparkwright.core.store import WeightStore
from sparkwright.core.testing.toys import random_drafter

TOKENS = 120
EACH = 2
PROMPT_FILES = ("code", "prose", "chat")


class Rounds:
    """An observer that keeps how many drafts each round submitted."""

    def __init__(self) -> None:
        self.submitted: list[int] = []

    @hookimpl
    def sparkwright_round_finished(self, trace: RoundTrace) -> None:
        self.submitted.append(trace.submitted)


def prompts() -> list[dict[str, Any]]:
    folder = Path(__file__).parents[2] / "core" / "compare" / "prompts"
    kinds = [(folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:EACH] for name in PROMPT_FILES]
    return [json.loads(line) for lines in kinds for line in lines]


def main(model: Path) -> dict[str, Any]:
    store, rounds = WeightStore(), Rounds()
    observer = Provider(kind="observer", name="rounds", summary="keeps rounds", build=lambda options, site: rounds)
    catalogue = discover().with_providers(random_drafter(), observer)

    def arm(drafter: str, curves: str) -> Engine:
        settings = {
            "target": {"use": "mlx_lm", "model": str(model), "mlx_lm": {"dtype": "float32"}},
            "drafter": {"use": drafter},
            "scheduler": {"use": "cost_aware"},
            "sampler": {"use": "greedy"},
            "verifier": {"use": "greedy"},
            "engine": {"costs": curves},
            "observers": {"use": ["rounds"] if drafter == "random" else []},
        }
        return assemble(load_config(settings, catalogue=catalogue), store=store)

    load, what = [os.getloadavg()[0]], prompts()
    with arm("random", "none") as engine:
        tokens = engine.target.encode(what[0]["text"])
        curves = engine.run(lambda parts: measure_curves(parts.target, parts.drafter, tokens, repeats=9))
    measured = Path(tempfile.mkdtemp()) / "costs.json"
    costs.save(measured, curves, {})

    rows: list[dict[str, Any]] = []
    with arm("none", "none") as plain, arm("random", str(measured)) as useless:

        def run(engine: Engine, prompt: dict[str, Any]) -> Any:
            asked = [{"role": "user", "content": prompt["text"]}] if prompt["chat"] else prompt["text"]
            return engine.complete(asked, max_tokens=TOKENS, ignore_eos=True)

        for engine in (plain, useless):
            run(engine, what[0])
        for prompt in what:
            rounds.submitted.clear()
            first, a, b, last = (run(engine, prompt) for engine in (useless, plain, plain, useless))
            stats = first.stats
            rates = [r.stats.decode_rate for r in (first, a, b, last)]
            rows.append(
                {
                    "id": prompt["id"],
                    "ratios": [rates[0] / rates[1], rates[3] / rates[2]],
                    "plain_over_plain": rates[2] / rates[1],
                    "rates": rates,
                    "rounds": stats.rounds,
                    "drafting_rounds": stats.drafting_rounds,
                    "submitted": stats.submitted,
                    "accepted": stats.accepted,
                    "by_the_curves": by_the_curves(curves, rounds.submitted[: stats.rounds], stats.tokens - 1),
                    "identical": first.tokens == a.tokens,
                }
            )
            print(prompt["id"], *(f"{r:.3f}" for r in rows[-1]["ratios"]), file=sys.stderr)
    ratios = [ratio for row in rows for ratio in row["ratios"]]
    noise = [abs(1 - row["plain_over_plain"]) for row in rows]
    load.append(os.getloadavg()[0])
    return {
        "what": "decode rate with uniform drafts under cost_aware / plain decoding, greedy, float32, measured curves",
        "tokens": TOKENS,
        "geometric_mean_ratio": statistics.geometric_mean(ratios),
        "quartiles": statistics.quantiles(ratios, n=4),
        "plain_over_plain": {"geometric_mean": statistics.geometric_mean([r["plain_over_plain"] for r in rows]),
                             "median_distance_from_1": statistics.median(noise)},
        "by_the_curves": statistics.geometric_mean([row["by_the_curves"] for row in rows]),
        "curves": {"plain": curves.plain, "verify": curves.verify, "draft": curves.draft},
        "load_average": load,
        "prompts": rows,
        "environment": environment(),
    }  # fmt: skip


def by_the_curves(curves: CostCurves, submitted: list[int], tokens: int) -> float:
    """The ratio of rates that these rounds and the measured curves make."""
    spent, before = 0.0, 1
    for n in submitted:
        # A plain decode after another began before that one's token was read.
        spent += curves.draft + curves.verify[n] if n else curves.verify[0] if before else curves.plain
        before = n
    return tokens * curves.plain / spent


if __name__ == "__main__":
    json.dump(main(Path(sys.argv[1])), sys.stdout, indent=1)
    print()
