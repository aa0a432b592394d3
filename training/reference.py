"""training/model.py's logits of a stored model on held-out tokens, for the scripts against_*.py to hold others beside.

Not a script itself. Where the indexer's scores tie exactly at the edge of its top rows, model.py takes all that tie and
everybody else takes as many as they were told to. A trained indexer does not tie; one of few steps does, at 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import data
import inputs
import numpy as np
import quantise
import torch
from model import Target

COUNT = 1024
"""Tokens: 256 compressed rows of ratio 4, of which the indexer takes 64."""
Array = np.ndarray[Any, np.dtype[Any]]


def asked(doc: str | None) -> argparse.Namespace:
    """The command line of both scripts: folder, heldout, first."""
    ap = argparse.ArgumentParser(description=str(doc).partition("\n")[0])
    ap.add_argument("folder", type=Path)
    ap.add_argument("heldout", type=Path)
    ap.add_argument("--first", type=int, default=400_000, help="where in the held-out tokens the text begins")
    return ap.parse_args()


class Reference:
    """ids [COUNT] int64, logits [COUNT, V] float32, tied [positions]: where an indexer ties at its edge."""

    def __init__(self, folder: Path, heldout: Path, first: int) -> None:
        for name in ("config.json", "model.safetensors"):
            inputs.file(folder / name, "assemble.py")
        stream = data.load(heldout)
        if len(stream) < first + COUNT:
            inputs.stop(f"{heldout} has {len(stream)} tokens, not {COUNT} from {first} on; give a smaller --first")
        self.ids: Array = stream[first : first + COUNT].astype("int64")
        target, found = Target(), []
        quantise.fill(target, folder / "model.safetensors")
        for block in target.eval().layers:
            if block.attn.ratio == 4:
                block.attn.indexer.register_forward_hook(lambda _, __, scores: found.append(scores[0]))
        with torch.no_grad():
            self.logits: Array = target.head(target(torch.from_numpy(self.ids)[None])["hidden"])[0].float().numpy()
        k, positions = target.config["index_topk"], torch.arange(COUNT)
        tied = torch.zeros(COUNT, dtype=torch.bool)
        for scores in found:  # [COUNT, rows]
            rows = torch.arange(scores.shape[1])
            seen = scores.masked_fill(rows >= (positions[:, None] + 1) // 4, float("-inf")).sort(descending=True).values
            tied |= (seen[:, k - 1] == seen[:, k]) & seen[:, k].isfinite()
        self.tied: list[int] = tied.nonzero()[:, 0].tolist()

    def beside(self, logits: Array) -> dict[str, object]:
        """logits [COUNT, V] of somebody else, held against these."""
        difference = np.abs(logits - self.logits).max(-1)
        found: dict[str, object] = {
            "tokens": COUNT, "largest logit": round(float(np.abs(self.logits).max()), 3),
            "largest difference": float(difference.max()),
            "same largest logit": float((logits.argmax(-1) == self.logits.argmax(-1)).mean()),
        }  # fmt: skip
        if self.tied:
            found |= {"tokens where the indexer ties": len(self.tied), "the first of them": self.tied[0]}
            found["largest difference before it"] = float(difference[: self.tied[0]].max())
        return found
