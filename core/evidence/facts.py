"""What a machine and a checkpoint are, in facts that matter to a measurement and name nobody.

`machine` asks MLX and the operating system; every answer of a foreign program is taken apart, and only the fields named
here are kept. `checkpoint` hashes a model's headers (names, shapes and places of tensors), not hundreds of gigabytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("sparkwright", "mlx", "mlx-metal", "mlx-cpu", "mlx-lm", "numpy", "tokenizers", "transformers")
SMALL_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
INDEX = "model.safetensors.index.json"
LARGEST_SMALL = 64 << 20
LARGEST_HEADER = 256 << 20
_SHARD = re.compile(r"(?:model|weights|consolidated)(?:[-.]\d+(?:-of-\d+)?)?\.safetensors")
"""Names of weight files that everybody uses; others may say whose they are, and are numbered."""


def versions() -> dict[str, str]:
    """Python, and the installed ones of PACKAGES."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


# ------------------------------------------------------------------------------------------------------ machine


def machine() -> dict[str, Any]:
    """Chip, memory, operating system, MLX and its device. Imports MLX."""
    import mlx.core as mx

    from sparkwright.core.assembly import device_name

    info = {k: v for k, v in mx.device_info().items() if isinstance(v, (str, int, float))}
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "device": device_name(),
        "default_device": str(mx.default_device()),
        "device_info": info,
        "processors": os.cpu_count(),
        "memory_bytes": _memory(),
        "memory_limit_bytes": mx.get_memory_limit(),
    }
    found |= _mac() if sys.platform == "darwin" else _linux()
    return {key: value for key, value in found.items() if value not in (None, "")}


def _memory() -> int | None:
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def _linux() -> dict[str, Any]:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return {"chip": line.partition(":")[2].strip()}
    return {}


SYSCTLS = {
    "chip": "machdep.cpu.brand_string",
    "mac_model": "hw.model",
    "memory_bytes": "hw.memsize",
    "performance_cores": "hw.perflevel0.physicalcpu",
    "efficiency_cores": "hw.perflevel1.physicalcpu",
    "wired_limit_megabytes": "iogpu.wired_limit_mb",
}


def _mac(ask: Any = None) -> dict[str, Any]:
    """ask: (program, arguments...) -> its output, "" if it fails; tests give recorded ones."""
    ask = ask or _output
    found: dict[str, Any] = {"macos": platform.mac_ver()[0]}
    for name, key in SYSCTLS.items():
        said = ask("sysctl", "-n", key).strip()
        found[name] = int(said) if said.isdigit() else said
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        displays = json.loads(ask("system_profiler", "-json", "SPDisplaysDataType"))["SPDisplaysDataType"]
        cores = next(one["sppci_cores"] for one in displays if "sppci_cores" in one)
        found["gpu_cores"] = int(cores)
    power = ask("pmset", "-g", "batt")
    if "'AC Power'" in power or "'Battery Power'" in power:
        found["power"] = "mains" if "'AC Power'" in power else "battery"
    mode = re.search(r"^\s*lowpowermode\s+(\d)", ask("pmset", "-g"), re.M)
    if mode:
        found["low_power_mode"] = mode[1] == "1"
    return found


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, ValueError, subprocess.SubprocessError):
        return ""


# --------------------------------------------------------------------------------------------------- checkpoint


def checkpoint(folder: Path) -> dict[str, Any]:
    """Hashes of a model folder: small files whole, weights by their headers. `sha256` stands for all of them.

    Files that cannot be read are listed as such; what is wrong with a checkpoint is the business of whoever loads it.
    """
    files: list[dict[str, Any]] = []
    for name in (*SMALL_FILES, INDEX):
        path = folder / name
        if path.is_file():
            files.append({"file": name, **_small(path)})
    shards = sorted(folder.glob("*.safetensors"))
    for number, path in enumerate(shards, 1):
        shown = path.name if _SHARD.fullmatch(path.name) else f"file {number}"
        files.append({"file": shown, **_header(path)})
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    total = sum(one.get("bytes", 0) for one in files)
    return {"sha256": digest, "weight_files": len(shards), "bytes": total, "files": files}


def _small(path: Path) -> dict[str, Any]:
    try:
        size = path.stat().st_size
        if size > LARGEST_SMALL:
            return {"bytes": size, "unread": f"larger than {LARGEST_SMALL} bytes"}
        return {"bytes": size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    except OSError as error:
        return {"unread": error.strerror or "cannot be read"}


def _header(path: Path) -> dict[str, Any]:
    """Size of a safetensors file, and the hash of its header (the length field included)."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or length > min(size - 8, LARGEST_HEADER):
                return {"bytes": size, "unread": "no safetensors header"}
            digest = hashlib.sha256(start + file.read(length)).hexdigest()
        return {"bytes": size, "header_sha256": digest}
    except OSError as error:
        return {"unread": error.strerror or "cannot be read"}
