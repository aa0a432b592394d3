"""One folder from the trained parts: `python assemble.py TARGET.safetensors DRAFTER.safetensors TOKENIZER_FOLDER OUT`.

Parts are moved as they are stored, never decoded, so the checkpoint is what was measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
from pathlib import Path

import inputs

HERE = Path(__file__).parent


def parts(path: Path) -> list[tuple[str, dict[str, object], bytes]]:
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    base = 8 + length
    found = []
    for name, entry in header.items():
        begin, end = entry.pop("data_offsets")
        found.append((name, entry, data[base + begin : base + end]))
    return found


def main(target: Path, drafter: Path, tokenizer: Path, out: Path) -> None:
    whose = ((target, "layers.0.", "train_target.py"), (drafter, "mtp.0.", "train_drafter.py"))
    for path, begins, made_by in whose:
        if not any(name.startswith(begins) for name, _, _ in parts(inputs.weights(path, made_by))):
            inputs.stop(f"{path} holds no tensor {begins}*, so it is not what {made_by} makes")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        inputs.file(tokenizer / name, "tokenizer.py")
    out.mkdir(parents=True, exist_ok=True)
    wide = {"I64": 8, "F32": 4, "BF16": 2}
    entries = sorted(parts(target) + parts(drafter), key=lambda e: (-wide.get(str(e[1]["dtype"]), 1), e[0]))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, entry, data in entries:
        header[name] = {**entry, "data_offsets": [at, at + len(data)]}
        at += len(data)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    body = b"".join(data for _, _, data in entries)
    (out / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + body)
    shutil.copy(HERE / "config.json", out / "config.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, out / name)
    generation = {"bos_token_id": 0, "eos_token_id": 1, "temperature": 1.0}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    print({"bytes": sum(p.stat().st_size for p in out.iterdir())})


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    ap.add_argument("target", type=Path)
    ap.add_argument("drafter", type=Path)
    ap.add_argument("tokenizer", type=Path, help="the folder of tokenizer.json")
    ap.add_argument("out", type=Path)
    args = ap.parse_args()
    main(args.target, args.drafter, args.tokenizer, args.out)
