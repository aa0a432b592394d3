"""Keeps what README's picture needs of a finished comparison: `python docs/figures/readme.py DIR/result.json`.

The base of the comparison is the speculative arm, the candidate plain decoding (`--swap drafter.use=none`). The result,
docs/benchmarks/readme_compare.json, is what draw.py draws from; raw pairs, command, versions and machine stay in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUT = HERE.parent / "benchmarks" / "readme_compare.json"


def kept(result: dict[str, Any], model: str) -> dict[str, Any]:
    """The numbers of both arms and their comparison. ValueError if it is another kind of comparison."""
    base, candidate = result["arms"]
    if not base["acceptance"] or candidate["rounds"] > candidate["rounds_without_drafts"]:
        raise ValueError("expected a speculative base and a plain candidate: compare X.toml --swap drafter.use=none")
    comparison = result["comparisons"][0]
    arm_keys = ("label", "promise", "decode_rate", "tau", "acceptance", "rounds", "rounds_without_drafts")
    return {
        "what": f"`sparkwright compare`: speculative (base) against plain decoding, {model}",
        "model": model,
        "command": result["command"],
        "environment": result["environment"],
        "settings": result["settings"],
        "verdict": result["verdict"],
        "arms": [{key: arm[key] for key in arm_keys} for arm in (base, candidate)],
        "decode": comparison["decode"],
        "same_texts": comparison["same_texts"],
        "pairs": comparison["pairs"],
    }


def main(path: str, model: str) -> int:
    result = json.loads(Path(path).read_text(encoding="utf-8"))
    OUT.write_text(json.dumps(kept(result, model), indent=1) + "\n", encoding="utf-8")
    return subprocess.run([sys.executable, str(HERE / "draw.py")]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "the bundled model"))
