"""What stands beside the weights: `python curves.py MODEL_FOLDER ACCEPTANCE.json [--repeats 40]`.

Writes sts.json, the temperatures of the confidences that evaluate.py fitted, and costs-dspark-DEVICE.json, the cost
curves of this machine (plain decode, verifies of 1 to 8 rows, a block) with the same temperatures. An engine takes them
where its user has not run `sparkwright calibrate`. Needs sparkwright; let nothing else run meanwhile.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import attrs
import inputs

from sparkwright import assemble, load_config
from sparkwright.core import costs
from sparkwright.core.assembly import device_name
from sparkwright.core.audit.texts import text_from
from sparkwright.core.calibrate import measure_curves
from sparkwright.core.errors import SparkwrightError

CONTEXT = 256


def main(folder: Path, acceptance: Path, repeats: int) -> None:
    for name in ("config.json", "model.safetensors"):
        inputs.file(folder / name, "assemble.py")
    try:
        fitted = json.loads(inputs.file(acceptance, "evaluate.py").read_text(encoding="utf-8"))["confidence"]
        temperatures = [float(t) for t in fitted["temperatures"]]
        rounds = int(fitted["fitted_on_rounds"])
    except (ValueError, KeyError, TypeError):
        inputs.stop(f"{acceptance} is not what evaluate.py writes; run it again")
    settings = {"target": {"model": str(folder)}, "drafter": {"use": "dspark"}, "engine": {"costs": "none"}}
    try:
        with assemble(load_config(settings)) as engine:
            ids = engine.target.encode(text_from(None))[:CONTEXT]
            measured = engine.run(lambda parts: measure_curves(parts.target, parts.drafter, ids, repeats=repeats))
            facts = engine.run(lambda parts: parts.target.facts)
    except SparkwrightError as error:
        inputs.stop(str(error))
    device = device_name()
    how = f"training/curves.py --repeats {repeats}; temperatures: STS on rounds of held-out prompts at T = 1"
    about = {"fingerprint": facts.fingerprint, "device": device, "drafter": "dspark", "context": len(ids),
             "repeats": repeats, "how": how}  # fmt: skip
    costs.save(
        folder / f"costs-dspark-{device}.json", attrs.evolve(measured, temperatures=tuple(temperatures)), about
    )
    sts = {"temperatures": temperatures, "dataset": "continuations of held-out prompts, T = 1", "num_samples": rounds}
    (folder / "sts.json").write_text(json.dumps(sts, indent=1) + "\n", encoding="utf-8")
    ms = {name: round(1000 * value, 2) for name, value in (("plain", measured.plain), ("block", measured.draft))}
    print({"ms": ms | {"verify": [round(1000 * v, 2) for v in measured.verify]}, "temperatures": temperatures})


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("folder", type=Path)
    ap.add_argument("acceptance", type=Path)
    ap.add_argument("--repeats", type=int, default=40, help="each time is the lower quartile of so many")
    args = ap.parse_args()
    main(args.folder, args.acceptance, args.repeats)
