"""The logits of sparkwright's target beside those of training/model.py (reference.py).

    python against_sparkwright.py MODEL_FOLDER HELDOUT.npy.xz

Both take the stored weights; sparkwright as it always does on this device (on a CPU decoded to float32). It runs the
1,024 tokens in one prefill, and again in chunks of 1 to 256 rows, which must make no difference but rounding.
"""

from __future__ import annotations

from pathlib import Path

import inputs
import mlx.core as mx
import numpy as np
from reference import COUNT, Reference, asked

from sparkwright.core.assembly import load_target
from sparkwright.core.errors import SparkwrightError

CHUNKS = (256, 7, 1, 1, 1, 6, 6, 250, 250, 2)


def main(folder: Path, heldout: Path, first: int) -> None:
    ours = Reference(folder, heldout, first)
    try:
        target = load_target(folder)
    except SparkwrightError as error:
        inputs.stop(str(error))
    for name, cuts in (("in one prefill", (COUNT,)), ("in chunks", (*CHUNKS, COUNT - sum(CHUNKS)))):
        state, at, found = target.new_state(), 0, []
        for rows in cuts:
            logits = target.forward(mx.array(ours.ids[at : at + rows].astype("int32")), state, "all").logits
            assert logits is not None
            found.append(np.array(logits.astype(mx.float32)))
            at += rows
        print({"sparkwright": name, **ours.beside(np.concatenate(found))})


if __name__ == "__main__":
    args = asked(__doc__)
    main(args.folder, args.heldout, args.first)
