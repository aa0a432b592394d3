"""Plain against speculative decoding of the bundled model: paired decode rates, code and prose, T in {0, 0.7, 1}.

    python docs/benchmarks/demo_speed.py > docs/benchmarks/demo_speed_cpu.json

The prompts are core/compare/prompts (code and prose, ten each). The arms are the bundled model with `dspark` and
`cost_aware`, by the cost curves given (or, with --calibrate, measured first on this machine), and without a drafter;
weights are shared. Per prompt and temperature they run in ABBA order, which arm is A alternating by prompt. Prints, per
cell, the geometric mean of the ratio of decode rates and its 95 % interval (Student's t on the logarithms, over
prompts).
`--seconds` bounds the measuring: prompts are taken in turn over all cells until the time is over.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import attrs
from environment import environment

from sparkwright import assemble, load_config
from sparkwright.core import costs
from sparkwright.core.calibrate import measure_curves
from sparkwright.core.store import WeightStore

TEMPERATURES, KINDS = (1.0, 0.7, 0.0), ("code", "prose")
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}


def prompts(kind: str) -> list[str]:
    file = Path(__file__).parents[2] / "core" / "compare" / "prompts" / f"{kind}.jsonl"
    return [json.loads(line)["text"] for line in file.open(encoding="utf-8")]


def interval(logs: list[float]) -> list[float]:
    if len(logs) < 2:
        return []
    mean, half = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs)) * T95[min(len(logs), 10)]
    return [round(math.exp(mean - half), 3), round(math.exp(mean + half), 3)]


def calibrated(settings: dict[str, Any], store: WeightStore, temperatures: tuple[float, ...], path: Path) -> None:
    """Cost curves of this machine, with the temperatures that belong to the model."""
    with assemble(load_config({**settings, "engine": {"costs": "none"}}), store=store) as engine:
        ids = (engine.target.encode("\n".join(prompts("code"))) * 2)[:256]
        curves = engine.run(lambda parts: measure_curves(parts.target, parts.drafter, ids, repeats=9))
        facts = engine.run(lambda parts: parts.target.facts)
    costs.save(path, attrs.evolve(curves, temperatures=temperatures), {"fingerprint": facts.fingerprint})


def main() -> None:
    ap = argparse.ArgumentParser()
    ap.add_argument("--model", help="a folder; the bundled model without it")
    ap.add_argument("--costs", default="auto", help="a file of cost curves, or auto")
    ap.add_argument("--calibrate", type=Path, help="measure the curves first, and keep them in this file")
    ap.add_argument("--sts", type=Path, help="with --calibrate: JSON with the temperatures of the confidences")
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--prompts", type=int, default=10, help="of each kind, at most")
    ap.add_argument("--seconds", type=float, default=1e9)
    args = ap.parse_args()
    store, began = WeightStore(), time.perf_counter()
    target: dict[str, Any] = {"target": {"model": args.model}} if args.model else {}
    if args.calibrate:
        temperatures = tuple(json.loads(args.sts.read_text())["temperatures"]) if args.sts else ()
        calibrated({**target, "drafter": {"use": "dspark"}}, store, temperatures, args.calibrate)
        print(f"calibrated, {time.perf_counter() - began:.0f}s", file=sys.stderr)

    def arm(drafter: str, temperature: float) -> Any:
        engine = {"costs": str(args.calibrate or args.costs) if drafter != "none" else "none"}
        slots: dict[str, Any] = {"drafter": {"use": drafter}, "scheduler": {"use": "cost_aware"}, "engine": engine}
        slots |= {"sampler": {"chain": {"temperature": temperature}}, "generation": {"ignore_eos": True}}
        return assemble(load_config({**target, **slots}), store=store)

    engines = {(d, t): arm(d, t) for t in TEMPERATURES for d in ("dspark", "none")}
    for engine in engines.values():
        engine.complete(prompts("code")[0], max_tokens=args.tokens)
    print(f"warm, {time.perf_counter() - began:.0f}s", file=sys.stderr)
    cells: dict[tuple[str, float], list[dict[str, Any]]] = {(k, t): [] for t in TEMPERATURES for k in KINDS}
    for i in range(args.prompts):
        if time.perf_counter() - began > args.seconds:
            break
        for (kind, t), rows in cells.items():
            order = ["dspark", "none", "none", "dspark"] if i % 2 else ["none", "dspark", "dspark", "none"]
            rates: dict[str, list[float]] = {"dspark": [], "none": []}
            stats: Any = None
            for name in order:
                found = engines[name, t].complete(prompts(kind)[i], max_tokens=args.tokens, seed=i).stats
                rates[name].append(found.decode_rate)
                stats = found if name == "dspark" else stats
            ratio = math.sqrt(math.prod(rates["dspark"]) / math.prod(rates["none"]))
            rows.append(
                {"ratio": round(ratio, 4), "tau": stats.tau, "drafting_rounds": stats.drafting_rounds, "rates": rates}
            )
    for engine in engines.values():
        engine.close()
    table = []
    for (kind, t), rows in cells.items():
        if not rows:
            continue
        logs = [math.log(row["ratio"]) for row in rows]
        taus = [row["tau"] for row in rows if row["tau"] is not None]
        table.append(
            {
                "kind": kind, "temperature": t, "prompts": len(rows),
                "plain_tokens_per_second": round(statistics.mean(r for row in rows for r in row["rates"]["none"]), 1),
                "speculative_tokens_per_second": round(
                    statistics.mean(r for row in rows for r in row["rates"]["dspark"]), 1
                ),
                "ratio": round(math.exp(statistics.mean(logs)), 3), "interval": interval(logs),
                "tau": round(statistics.mean(taus), 2) if taus else None,
                "drafting_rounds": sum(row["drafting_rounds"] for row in rows),
            }
        )  # fmt: skip
        print(table[-1], file=sys.stderr)
    found = {"tokens": args.tokens, "cells": table, "environment": environment()}
    if args.calibrate:
        found["curves"] = json.loads(args.calibrate.read_text())["curves"]
    found["rows"] = {f"{kind} {t}": rows for (kind, t), rows in cells.items()}
    json.dump(found, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
