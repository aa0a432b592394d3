"""The law audit over many configurations of the bundled plugins: resumable, one JSON line a cell, then a table.

    python docs/benchmarks/law.py --cells product --trials 300000 --out law_product.jsonl
    python docs/benchmarks/law.py --cells pairwise --trials 10000000 --out law_pairwise.jsonl --minutes 30

A cell that is in the file already (same name, trials and alpha) is not run again. The false-alarm rate of the whole set
is `--family`, shared out evenly among its cells; within a cell Holm's correction holds it.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from sparkwright.core.audit import audit_law


def cells_module() -> ModuleType:
    """The configurations the tests use."""
    path = Path(__file__).parents[2] / "tests" / "audit" / "cells.py"
    spec = importlib.util.spec_from_file_location("law_cells", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(records: list[dict[str, Any]], wanted: int) -> str:
    lines = [
        "| cell | verdict | joint p | smallest adjusted p | TV below (99 %) | bias seen (99 %) | tau |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in records:
        smallest = min(test["adjusted"] for test in r["tests"])
        tau = "-" if r["tau"] is None else f"{r['tau']:.3f}"
        verdict = "pass" if r["passed"] else "FAIL: " + r["failed"][0]
        lines.append(
            f"| {r['subject']} | {verdict} | {r['tests'][0]['p_value']:.3f} "
            f"| {smallest:.3f} | {r['variation_bound']:.4f} | {r['smallest_bias']:.4f} | {tau} |"
        )
    failed = sum(not r["passed"] for r in records)
    lines.append(f"\n{len(records)} of {wanted} cells, {failed} failed.")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", choices=["pairwise", "product"], default="pairwise")
    parser.add_argument("--trials", type=int, default=300_000)
    parser.add_argument("--family", type=float, default=1e-3, help="false-alarm rate of the whole set")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after this long")
    args = parser.parse_args()
    cells = cells_module()
    product = itertools.product(cells.FILTERS, cells.TEMPERATURES, cells.VERIFIERS, cells.KINDS, cells.SCHEDULERS)
    chosen = cells.PAIRWISE if args.cells == "pairwise" else list(product)
    alpha = args.family / len(chosen)
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {r["subject"]: r for r in known if (r["trials"], r["alpha"]) == (args.trials, alpha)}
    started, records = time.monotonic(), []
    for filters, temperature, verifier, kind, schedule in chosen:
        options = {"temperature": temperature, **cells.FILTERS[filters]}
        subject = cells.cell(options, verifier, kind, schedule)
        record = done.get(subject.name)
        if record is None:
            if time.monotonic() - started > args.minutes * 60:
                continue
            record = audit_law(subject, args.trials, alpha=alpha).to_json()
            with args.out.open("a") as out:
                out.write(json.dumps(record) + "\n")
            print(f"{subject.name}: {'pass' if record['passed'] else record['failed']}", file=sys.stderr, flush=True)
        records.append(record)
    print(report(records, len(chosen)))
    return int(any(not r["passed"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
