"""Plain against speculative decoding of the bundled model: paired decode rates, code and prose, T in {1, 0.7, 0}.

    python docs/benchmarks/demo_speed.py --out docs/benchmarks/demo_speed_cpu.json

Prompts are the beginnings of held-out texts (demo_texts.json, ten of code and ten of prose). The arms are the bundled
model with `dspark` and `cost_aware`, by the cost curves it ships, those given, or (--calibrate) those measured first on
this machine; and the same weights without a drafter. For each cell (a temperature and a kind) and prompt they run in
ABBA order, which arm is A alternating by prompt; cells take turns, so that every cell has as many prompts when the time
is over. Passes after the first one repeat the prompts with other seeds.
The result, per cell: the geometric mean over prompts of the ratio of decode rates, and its 95 % interval (Student's t
on the logarithms). It is written after every pair of runs. A pair asks for the same text twice with each arm;
`first_over_second` is the geometric mean of the first run's rate over the second one's: under 1 where something is made
ready for a text that comes for the first time. --read FILE prints both for a result that exists.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
from environment import environment

from sparkwright import assemble, load_config
from sparkwright.core import costs
from sparkwright.core.calibrate import measure_curves
from sparkwright.core.engine import Engine
from sparkwright.core.store import WeightStore

KINDS = ("code", "prose")
PROMPT = 420  # characters: some 128 tokens
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
Cells = dict[tuple[float, str], list[list[dict[str, Any]]]]
"""For each cell and prompt, what each pass found."""


def prompts(kind: str) -> list[str]:
    texts = json.loads((Path(__file__).parent / "demo_texts.json").read_text(encoding="utf-8"))["texts"]
    return [one["text"][: one["text"].rindex("\n", 0, PROMPT) + 1] for one in texts if one["kind"] == kind]


def interval(logs: list[float]) -> list[float]:
    if len(logs) < 2:
        return []
    mean, half = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs)) * T95[len(logs)]
    return [round(math.exp(mean - half), 3), round(math.exp(mean + half), 3)]


def calibrated(settings: dict[str, Any], store: WeightStore, temperatures: tuple[float, ...], path: Path) -> None:
    """Cost curves of this machine, with the temperatures that belong to the model."""
    with assemble(load_config({**settings, "engine": {"costs": "none"}}), store=store) as engine:
        ids = (engine.target.encode("\n".join(prompts("code"))) * 2)[:256]
        curves = engine.run(lambda parts: measure_curves(parts.target, parts.drafter, ids, repeats=15))
        facts = engine.run(lambda parts: parts.target.facts)
    costs.save(path, attrs.evolve(curves, temperatures=temperatures), {"fingerprint": facts.fingerprint})


def measure(arms: dict[str, Engine], first: str, prompt: str, tokens: int, seed: int) -> dict[str, Any]:
    """Two runs of each arm, ABBA."""
    second = "none" if first == "dspark" else "dspark"
    rates: dict[str, list[float]] = {"dspark": [], "none": []}
    said: Any = None
    for name in (first, second, second, first):
        stats = arms[name].complete(prompt, max_tokens=tokens, seed=seed).stats
        rates[name].append(round(stats.decode_rate or 0.0, 2))
        said = stats if name == "dspark" else said
    return {
        "ratio": round(math.sqrt(math.prod(rates["dspark"]) / math.prod(rates["none"])), 4), "rates": rates,
        "tau": said.tau, "rounds": said.rounds, "drafting_rounds": said.drafting_rounds,
    }  # fmt: skip


def table(cells: Cells) -> list[dict[str, Any]]:
    rows = []
    for (temperature, kind), by_prompt in cells.items():
        done = [passes for passes in by_prompt if passes]
        if not done:
            continue
        every = [one for passes in done for one in passes]
        logs = [statistics.mean(math.log(one["ratio"]) for one in passes) for passes in done]
        taus = [one["tau"] for one in every if one["tau"] is not None]
        plain, drafted = ([r for one in every for r in one["rates"][arm]] for arm in ("none", "dspark"))
        rows.append(
            {
                "temperature": temperature, "kind": kind, "prompts": len(done), "runs_of_each_arm": 2 * len(every),
                "plain_tokens_per_second": round(statistics.mean(plain), 1),
                "speculative_tokens_per_second": round(statistics.mean(drafted), 1),
                "ratio": round(math.exp(statistics.mean(logs)), 3), "interval": interval(logs),
                "tau": round(statistics.mean(taus), 2) if taus else None,
                "share_of_rounds_that_drafted": round(
                    sum(one["drafting_rounds"] for one in every) / sum(one["rounds"] for one in every), 3
                ),
            }
        )  # fmt: skip
    return rows


def first_over_second(cells: Iterable[list[list[dict[str, Any]]]]) -> dict[str, float]:
    pairs = [one["rates"] for by_prompt in cells for passes in by_prompt for one in passes]
    return {
        arm: round(math.exp(statistics.mean(math.log(rates[arm][0] / rates[arm][1]) for rates in pairs)), 3)
        for arm in ("dspark", "none")
        if pairs
    }


def main() -> None:
    ap = argparse.ArgumentParser()
    to = ap.add_mutually_exclusive_group(required=True)
    to.add_argument("--out", type=Path)
    to.add_argument("--read", type=Path, help="a result: nothing is measured")
    ap.add_argument("--model", help="a folder; the bundled model without it")
    ap.add_argument("--costs", default="auto", help="a file of cost curves, or auto")
    ap.add_argument("--calibrate", type=Path, help="measure the curves first, and keep them in this file")
    ap.add_argument("--sts", type=Path, help="with --calibrate: JSON with the temperatures of the confidences")
    ap.add_argument("--temperatures", type=float, nargs="+", default=[1.0, 0.0, 0.7])
    ap.add_argument("--tokens", type=int, default=64)
    ap.add_argument("--prompts", type=int, default=10, help="of each kind, at most")
    ap.add_argument("--passes", type=int, default=1)
    ap.add_argument("--seconds", type=float, default=1e9, help="all included; no pair begins after it")
    ap.add_argument("--kernels", default="auto", help="kernels.use, names apart by commas")
    ap.add_argument("--plain-kernels", nargs="+", help="of these the arm without drafts takes the fastest, tried first")
    args = ap.parse_args()
    if args.read:
        known = json.loads(args.read.read_text(encoding="utf-8"))
        for row in known["cells"]:
            print(json.dumps(row))
        print(json.dumps({"first_over_second": first_over_second(known["runs"].values())}))
        return
    store, began = WeightStore(), time.perf_counter()

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:.1f}s {text}", file=sys.stderr, flush=True)

    base: dict[str, Any] = {"target": {"model": args.model}} if args.model else {}
    kernels = {"dspark": args.kernels.split(","), "none": args.kernels.split(",")}
    if args.calibrate:
        temperatures = tuple(json.loads(args.sts.read_text())["temperatures"]) if args.sts else ()
        calibrated(
            {**base, "drafter": {"use": "dspark"}, "kernels": {"use": kernels["dspark"]}},
            store,
            temperatures,
            args.calibrate,
        )
        say(f"calibrated {args.calibrate.read_text()}")

    def arm(drafter: str, temperature: float) -> Engine:
        engine = {"costs": str(args.calibrate or args.costs) if drafter != "none" else "none"}
        slots: dict[str, Any] = {"drafter": {"use": drafter}, "scheduler": {"use": "cost_aware"}, "engine": engine}
        slots |= {"sampler": {"chain": {"temperature": temperature}}, "generation": {"ignore_eos": True}}
        slots["kernels"] = {"use": kernels[drafter]}
        return assemble(load_config({**base, **slots}), store=store)

    tried: dict[str, list[float]] = {names: [] for names in args.plain_kernels or []}
    if len(tried) > 1:
        plain = {}
        for names in tried:
            kernels["none"] = names.split(",")
            plain[names] = arm("none", args.temperatures[0])
            plain[names].complete(prompts("code")[0], max_tokens=24, seed=1)
        for turn in range(6):
            for names in list(tried)[:: 1 if turn % 2 else -1]:
                rate = plain[names].complete(prompts("code")[turn], max_tokens=32, seed=1).stats.decode_rate
                tried[names].append(round(rate or 0.0, 2))
        for engine in plain.values():
            engine.close()
        say(f"plain decoding by kernels: {tried}")
    if tried:
        kernels["none"] = max(tried, key=lambda names: statistics.median(tried[names] or [0.0])).split(",")

    engines = {t: {d: arm(d, t) for d in ("dspark", "none")} for t in args.temperatures}
    for t, arms in engines.items():
        for name, engine in arms.items():  # what is compiled at first use
            stats = [engine.complete(prompts(kind)[0], max_tokens=24, seed=1).stats for kind in KINDS]
            say(f"warm: {name} at T = {t}: {[s.decode_rate for s in stats]}")
    found: dict[str, Any] = {"tokens": args.tokens, "kernels": kernels, "environment": environment()}
    if tried:
        found["plain_rates_by_kernels"] = tried
    if args.calibrate:
        found["curves"] = json.loads(args.calibrate.read_text())["curves"]
    cells: Cells = {(t, kind): [[] for _ in range(args.prompts)] for t in args.temperatures for kind in KINDS}

    def write() -> None:
        rows = {f"{kind} {t}": by_prompt for (t, kind), by_prompt in cells.items()}
        ratios = {"cells": table(cells), "first_over_second": first_over_second(cells.values())}
        text = json.dumps({**ratios, **found, "runs": rows}, indent=1)
        part = args.out.with_suffix(".part")
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(args.out)

    for turn in range(args.passes):
        for i in range(args.prompts):
            for (t, kind), by_prompt in cells.items():
                if time.perf_counter() - began > args.seconds:
                    break
                first = ("none", "dspark")[(i + turn) % 2]
                by_prompt[i].append(measure(engines[t], first, prompts(kind)[i], args.tokens, 100 * turn + i))
                write()
        say(f"pass {turn + 1}")
    for arms in engines.values():
        for engine in arms.values():
            engine.close()
    for row in table(cells):
        say(json.dumps(row))


if __name__ == "__main__":
    main()
