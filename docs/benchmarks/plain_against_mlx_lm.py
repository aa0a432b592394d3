"""Plain decoding through the engine against mlx-lm's own generator: paired decode rates on one model in one run.

    python examples/models/smollm2.py models/smollm2-f32 --float32
    python docs/benchmarks/plain_against_mlx_lm.py models/smollm2-f32 > docs/benchmarks/plain_against_mlx_lm.json

Both use the same float32 weights (a quantised folder is refused: mlx-lm would compute in 4 bits), greedily, for as many
tokens. Each prompt is run in ABBA order; a rate is tokens after the first per second between the first token and the
last. Prints the ratio (ours / mlx-lm's) per prompt and its geometric mean.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from environment import environment

from sparkwright import assemble, load_config
from sparkwright.core.blas import ensure_blas

PROMPTS = [
    "def fibonacci(n):\n",
    "The history of the lighthouse begins",
    "import json\n\n\ndef load(path):\n",
    "Once upon a time there was",
    "To bake a loaf of bread, first",
    "class Queue:\n    def __init__(self):\n",
]
TOKENS = 48


def main(model: Path) -> dict[str, Any]:
    blas = ensure_blas()
    config = load_config(
        {
            "target": {"use": "mlx_lm", "model": str(model), "mlx_lm": {"dtype": "float32"}},
            "drafter": {"use": "none"},
            "sampler": {"use": "greedy"},
            "verifier": {"use": "greedy"},
        }
    )
    with assemble(config) as engine:
        import mlx.core as mx
        from mlx.utils import tree_flatten
        from mlx_lm.generate import generate_step
        from mlx_lm.utils import load_model

        theirs, _ = load_model(model)
        # The very same arrays: two copies of the weights differ by several percent in speed, by how their pages lie.
        shared = engine.run(lambda parts: parts.target._manager.get_plugin("target:mlx_lm").model.module.parameters())
        theirs.update(shared)
        dtypes = {str(weight.dtype) for _, weight in tree_flatten(theirs.parameters())}
        assert dtypes == {"mlx.core.float32"}, f"{model} holds {dtypes}, expected float32 weights only"

        def ours(tokens: list[int]) -> float:
            rate = engine.complete(tokens, max_tokens=TOKENS, ignore_eos=True).stats.decode_rate
            assert rate is not None
            return rate

        def mlx_lm(tokens: list[int]) -> float:
            first = 0.0
            for i, _ in enumerate(generate_step(mx.array(tokens), theirs, max_tokens=TOKENS)):
                if i == 0:
                    first = time.perf_counter()
            return (TOKENS - 1) / (time.perf_counter() - first)

        encoded = [engine.target.text.encode(prompt) for prompt in PROMPTS]
        ours(encoded[0]), mlx_lm(encoded[0])  # warm-up
        rows = []
        for tokens in encoded:
            a1, b1, b2, a2 = ours(tokens), mlx_lm(tokens), mlx_lm(tokens), ours(tokens)
            rows.append({"ours": [a1, a2], "mlx_lm": [b1, b2], "ratio": math.sqrt(a1 * a2 / (b1 * b2))})
    ratios = [row["ratio"] for row in rows]
    return {
        "what": "decode rate of plain decoding, sparkwright / mlx-lm generate_step, float32, greedy",
        "tokens": TOKENS,
        "geometric_mean_ratio": statistics.geometric_mean(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "pairs": rows,
        "blas": f"{blas.name}: {blas.reason}, {blas.threads} thread(s)",
        "environment": environment(),
    }


if __name__ == "__main__":
    json.dump(main(Path(sys.argv[1])), sys.stdout, indent=1)
    print()
