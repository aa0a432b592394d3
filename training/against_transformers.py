"""The logits of transformers' own DeepseekV4ForCausalLM beside those of training/model.py (reference.py).

    python against_transformers.py MODEL_FOLDER HELDOUT.npy.xz

An independent check of both. transformers (5.24) reads the stored weights, decoded to float32, by official names.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import inputs
import quantise
import torch
import transformers
from reference import Reference, asked
from safetensors.torch import save_file


def main(folder: Path, heldout: Path, first: int) -> None:
    if not hasattr(transformers, "DeepseekV4ForCausalLM"):
        inputs.stop(f"transformers {transformers.__version__} has no DeepseekV4ForCausalLM; install 5.24 or later")
    ours = Reference(folder, heldout, first)
    weights = quantise.read(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in ("quantization_config", "expert_dtype")}
    with tempfile.TemporaryDirectory() as made:
        plain = {name: value.contiguous() for name, value in weights.items() if not name.startswith("mtp.")}
        save_file(plain, f"{made}/model.safetensors", metadata={"format": "pt"})
        Path(made, "config.json").write_text(json.dumps({**kept, "torch_dtype": "float32"}))
        theirs, said = transformers.AutoModelForCausalLM.from_pretrained(
            made, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    with torch.no_grad():
        logits = theirs.eval()(input_ids=torch.from_numpy(ours.ids)[None], use_cache=False).logits[0].float().numpy()
    left = {key: list(value) for key, value in said.items()}
    print({"transformers": transformers.__version__, **ours.beside(logits), "left over": left})


if __name__ == "__main__":
    args = asked(__doc__)
    main(args.folder, args.heldout, args.first)
