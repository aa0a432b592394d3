"""Writes scheduler_simulation.md: `cost_aware` in simulation, over cost curves, acceptance profiles and confidences.

Run from the repository root: `python docs/benchmarks/scheduler_simulation.py [claims [curve]]`. Results are kept in a
JSON file beside the table, curve by curve, so that it can be run in parts; without arguments it does all of it (about
half an hour on one core). It measures no machine: costs are the curves written in tests/schedulers/simulation.py.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.schedulers.simulation import CLAIMS, CURVES, PROFILES, short, steady  # noqa: E402

TOKENS, WARM, SEEDS = 12_000, 2_000, 3
REQUESTS, LENGTH = 200, 500


def cell(curve: str, profile: str, claims: str) -> dict[str, float]:
    # A text that changes is judged as a whole: its best fixed depth is that of the whole text.
    first = 0 if profile.startswith(("drifting", "switching")) else WARM
    long = [steady(curve, profile, claims, TOKENS, first, seed) for seed in range(SEEDS)]
    speeds = sorted(short(curve, profile, claims, REQUESTS, LENGTH))
    return {
        "best": statistics.mean(o.best for o in long),
        "depth": statistics.mode(o.depth for o in long),
        "steady": statistics.mean(o.speed / o.best for o in long),
        "mean": statistics.mean(speeds),
        "p5": speeds[len(speeds) // 20],
    }


def table(results: dict[str, dict[str, dict[str, dict[str, float]]]]) -> str:
    every = [(c, k, p, v) for c, a in results.items() for k, b in a.items() for p, v in b.items()]
    low = min(every, key=lambda e: e[3]["steady"])
    mean = min(every, key=lambda e: e[3]["mean"])
    tail = min(every, key=lambda e: e[3]["p5"])
    lines = [
        "# cost_aware in simulation",
        "",
        "Made by `docs/benchmarks/scheduler_simulation.py`. Speeds are over plain decoding on the same simulated text.",
        f"*steady*: {SEEDS} texts of {TOKENS} tokens after {WARM} (texts that change: all of it), over the better of",
        "plain decoding and the best fixed depth, which is given as best (depth). *mean* and *p5*: mean and 5th",
        f"percentile over {REQUESTS} requests of {LENGTH} tokens, each from scratch. Confidences: none; honest (the",
        "true chance); noisy (its logit with a normal error of 1); too sure; too modest (a tenth of the chance);",
        "constant (always 0.99).",
        "",
        f"Of {len(every)} cells: lowest steady {low[3]['steady']:.3f} ({', '.join(low[:3])}); "
        f"{sum(e[3]['steady'] < 0.99 for e in every)} below 0.99.",
        f"Lowest mean {mean[3]['mean']:.3f} ({', '.join(mean[:3])}); "
        f"lowest p5 {tail[3]['p5']:.3f} ({', '.join(tail[:3])}).",
    ]
    for claims, curves in results.items():
        lines += ["", f"## Confidences: {claims}", ""]
        lines += ["| profile | " + " | ".join(curves) + " |", "|---" * (len(curves) + 1) + "|"]
        for profile in PROFILES:
            row = []
            for values in curves.values():
                v = values[profile]
                row.append(f"{v['steady']:.3f} of {v['best']:.2f} ({v['depth']:.0f}); {v['mean']:.3f}, {v['p5']:.3f}")
            lines.append(f"| {profile} | " + " | ".join(row) + " |")
    lines += ["", "A cell reads: steady of best (depth); mean, p5.", "", "Cost curves, in plain decodes:", ""]
    lines += [f"- {n}: draft {c.draft}, verify of 1..8 rows {', '.join(map(str, c.verify))}" for n, c in CURVES.items()]
    return "\n".join(lines) + "\n"


def main(claims: str | None = None, curve: str | None = None) -> None:
    kept = HERE / "scheduler_simulation.json"
    for kind in [claims] if claims else list(CLAIMS):
        for name in [curve] if curve else list(CURVES):
            values = {p: cell(name, p, kind) for p in PROFILES}
            results = json.loads(kept.read_text()) if kept.is_file() else {}
            results.setdefault(kind, {})[name] = values
            kept.write_text(json.dumps(results) + "\n")
            ordered = {k: {c: results[k][c] for c in CURVES if c in results[k]} for k in CLAIMS if k in results}
            (HERE / "scheduler_simulation.md").write_text(table(ordered))


if __name__ == "__main__":
    main(*sys.argv[1:3])
