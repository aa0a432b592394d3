"""Greedy decoding with `lookup` against plain decoding: paired decode rates on the bundled prompt set.

    python docs/benchmarks/lookup_against_plain.py models/smollm2 > docs/benchmarks/lookup_against_plain.json

The prompts are core/compare/prompts (fixed and committed before anything was measured), all kinds but long-context, 64
tokens each. Per prompt the arms run in ABBA order, on shared weights. Prints the ratio (lookup / plain) per prompt, its
geometric mean and quartiles.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any

from environment import environment

from sparkwright import assemble, load_config
from sparkwright.core.store import WeightStore

TOKENS = 64
PROMPT_FILES = ("code", "prose", "chat")


def prompts() -> list[dict[str, Any]]:
    folder = Path(__file__).parents[2] / "core" / "compare" / "prompts"
    return [json.loads(line) for name in PROMPT_FILES for line in (folder / f"{name}.jsonl").open(encoding="utf-8")]


def main(model: Path, scheduler: str) -> dict[str, Any]:
    store = WeightStore()

    def arm(drafter: str) -> Any:
        return assemble(
            load_config(
                {
                    "target": {"use": "mlx_lm", "model": str(model), "mlx_lm": {"dtype": "float32"}},
                    "drafter": {"use": drafter},
                    "scheduler": {"use": scheduler},
                    "sampler": {"use": "greedy"},
                    "verifier": {"use": "greedy"},
                }
            ),
            store=store,
        )

    rows = []
    with arm("none") as plain, arm("lookup") as lookup:

        def run(engine: Any, prompt: dict[str, Any]) -> Any:
            asked = [{"role": "user", "content": prompt["text"]}] if prompt["chat"] else prompt["text"]
            return engine.complete(asked, max_tokens=TOKENS, ignore_eos=True)

        for engine in (plain, lookup):
            run(engine, prompts()[0])
        for prompt in prompts():
            results = [run(engine, prompt) for engine in (lookup, plain, plain, lookup)]
            rates = [result.stats.decode_rate for result in results]
            rows.append(
                {
                    "id": prompt["id"],
                    "ratio": math.sqrt(rates[0] * rates[3] / (rates[1] * rates[2])),
                    "lookup": [rates[0], rates[3]],
                    "plain": [rates[1], rates[2]],
                    "tau": results[0].stats.tau,
                    "identical": results[0].tokens == results[1].tokens,
                }
            )
            print(f"{prompt['id']}: {rows[-1]['ratio']:.3f}", file=sys.stderr)
    ratios = sorted(row["ratio"] for row in rows)
    return {
        "what": f"decode rate, lookup / none, greedy, float32, scheduler {scheduler}",
        "tokens": TOKENS,
        "geometric_mean_ratio": statistics.geometric_mean(ratios),
        "quartiles": statistics.quantiles(ratios, n=4),
        "identical_texts": sum(row["identical"] for row in rows),
        "prompts": rows,
        "environment": environment(),
    }


if __name__ == "__main__":
    json.dump(main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "cost_aware"), sys.stdout, indent=1)
    print()
