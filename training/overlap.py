"""Distinct experts a layer that n neighbouring tokens touch on held-out text, beside uniform routing.

python overlap.py DATA_FOLDER TARGET.safetensors OUT.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import data
import inputs
import torch
from train_drafter import load_target


def main(folder: Path, target: Path, out: Path, texts: int, length: int = 1024) -> None:
    inputs.weights(target, "train_target.py")
    inputs.out(out)
    model = load_target(target, "cpu").float()
    held = torch.from_numpy(data.load(folder / "heldout.npy.xz").astype("int32")).long()
    e, k = model.config["n_routed_experts"], model.config["num_experts_per_tok"]
    if len(held) < texts * length:
        inputs.stop(f"heldout.npy.xz has {len(held)} tokens, not {texts} texts of {length}; give fewer --texts")
    first = torch.arange(texts) * (len(held) // texts)
    tokens = held[first[:, None] + torch.arange(length)]
    chosen: list[torch.Tensor] = []

    def watch(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _: torch.Tensor) -> None:
        x, ids = inputs[0], inputs[1]
        score = torch.sqrt(torch.nn.functional.softplus(x.float() @ module.gate.weight.float().T))
        index = module.tid2eid[ids] if module.hashed else (score + module.bias).topk(k, dim=-1).indices
        chosen.append(torch.zeros_like(score).scatter_(-1, index, 1.0))

    for block in model.layers:
        block.ffn.register_forward_hook(watch)
    with torch.no_grad():
        model(tokens)
    rows = []
    for n in range(1, 7):
        means = [float(c.unfold(1, n, 1).amax(-1).sum(-1).mean()) for c in chosen]
        uniform = e * (1 - (1 - k / e) ** n)
        rows.append({"tokens": n, "uniform": round(uniform, 3), "mean": round(sum(means) / len(means), 3),
                     "hash_layers": round(sum(means[:3]) / 3, 3), "score_layers": round(sum(means[3:]) / 4, 3),
                     "by_layer": [round(m, 3) for m in means]})  # fmt: skip
        print(rows[-1])
    out.write_text(json.dumps({"experts": e, "active": k, "tokens": texts * length, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("folder", type=Path)
    ap.add_argument("target", type=Path)
    ap.add_argument("out", type=Path)
    ap.add_argument("--texts", type=int, default=8, help="of 1,024 tokens")
    args = ap.parse_args()
    main(args.folder, args.target, args.out, args.texts)
