"""The logits of transformers' own DeepseekV4ForCausalLM beside training/model.py: an independent check of both.

    python against_transformers.py MODEL_FOLDER HELDOUT.npy.xz

Both take the stored weights, decoded to float32; transformers (5.24) reads them by official names. 1,024 tokens: 256
compressed rows of ratio 4, of which the indexer takes 64.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import data
import quantise
import torch
import transformers
from model import Target
from safetensors.torch import save_file


def main(folder: Path, heldout: Path, first: int = 400_000, count: int = 1024) -> None:
    weights = quantise.read(folder / "model.safetensors")
    ours = Target()
    ours.load_state_dict(quantise.target_state(weights, len(ours.layers)))
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in ("quantization_config", "expert_dtype")}
    with tempfile.TemporaryDirectory() as made:
        plain = {name: value.contiguous() for name, value in weights.items() if not name.startswith("mtp.")}
        save_file(plain, f"{made}/model.safetensors", metadata={"format": "pt"})
        Path(made, "config.json").write_text(json.dumps({**kept, "torch_dtype": "float32"}))
        theirs, said = transformers.AutoModelForCausalLM.from_pretrained(
            made, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    ids = torch.from_numpy(data.load(heldout)[first : first + count].astype("int64"))[None]
    with torch.no_grad():
        a = theirs.eval()(input_ids=ids, use_cache=False).logits[0].float()
        b = ours.eval().head(ours(ids)["hidden"])[0].float()
    print(
        {
            "transformers": transformers.__version__, "tokens": count, "largest logit": round(float(b.abs().max()), 3),
            "largest difference": float((a - b).abs().max()), "left over": {k: list(v) for k, v in said.items()},
            "same largest logit": float((a.argmax(-1) == b.argmax(-1)).float().mean()),
        }
    )  # fmt: skip


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
