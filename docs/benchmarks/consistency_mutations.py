"""Does `audit consistency` find mutations of a trained model too? The bundled one, with each of the tests' faults.

    python docs/benchmarks/consistency_mutations.py --out consistency_mutations.jsonl

One line of JSON a fault: the verdict, that without the reference, the first finding, and the largest difference from
the reference against what rounding is allowed. A fault that is in the file already is not run again; the first is none
at all. Faults are those of tests/audit_live/test_reference.py, planted in the reference ops for all row counts alike.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no fault after this long")
    args = parser.parse_args()
    os.environ["SPARKWRIGHT_OPENBLAS"] = "0"
    sys.path.insert(0, str(ROOT))

    import pytest
    from tests.audit_live.test_reference import BY_WIDTHS, CHANGES, PATCHES, without_reference

    from sparkwright import load_config
    from sparkwright.core.audit.consistency import audit_consistency
    from sparkwright.core.audit.texts import text_from
    from sparkwright.plugins.deepseek_v4 import reference

    lines = args.out.read_text().splitlines() if args.out.exists() else []
    done, started, missed = {json.loads(line)["fault"] for line in lines}, time.monotonic(), 0
    for fault in ("none", *PATCHES, *CHANGES):
        if fault in done or time.monotonic() - started > args.minutes * 60:
            continue
        with pytest.MonkeyPatch.context() as patch:
            if fault in PATCHES:
                PATCHES[fault](patch)
            if fault in CHANGES:
                name, change = CHANGES[fault]
                right = getattr(reference, name)
                patch.setattr(reference, name, lambda *a, _c=change, _r=right, **k: _c(_r, *a, **k))
            result = audit_consistency(load_config({}, environ={}), text_from(None), limit=args.tokens)
        wanted = "none" if fault == "none" else BY_WIDTHS.get(fault, "reference")
        (width,) = (w for w in result.widths if w.mode == "reference")
        record: dict[str, Any] = {
            "fault": fault, "tokens": result.tokens, "verdict": result.verdict, "passed": result.passed,
            "without_reference": without_reference(result).verdict, "expected": wanted,
            "first": str(result.findings[0]) if result.findings else "", "largest_from_reference": width.largest,
            "allowed": result.rounding, "scale": result.scale,
        }  # fmt: skip
        missed += result.passed != (fault == "none")
        with args.out.open("a") as out:
            out.write(json.dumps(record) + "\n")
        print(json.dumps(record), file=sys.stderr, flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
