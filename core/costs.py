"""Where measured cost curves are kept and how an assembly finds them. Measuring them is calibrate's business."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core.contracts import CostCurves
from sparkwright.core.errors import ConfigError


def cache_folder() -> Path:
    """The user's cache folder for sparkwright (XDG_CACHE_HOME, or the platform's own)."""
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "sparkwright"
    home = Path.home()
    return (home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache") / "sparkwright"


def file_for(fingerprint: str, drafter: str, device: str) -> Path:
    """The cache file of a model, drafter and device; MLX's and our own version are part of its name."""
    from importlib.metadata import version

    name = f"{fingerprint or 'unnamed'}-{drafter}-{device}-mlx{version('mlx')}-{version('sparkwright')}.json"
    return cache_folder() / "costs" / name


def save(path: Path, curves: CostCurves, about: dict[str, Any]) -> None:
    """Write the curves and what they are about, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"about": about, "curves": attrs.asdict(curves)}, indent=1), encoding="utf-8")
    temporary.replace(path)


def load(path: Path) -> CostCurves:
    """ConfigError, naming the file, if it does not hold cost curves."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))["curves"]
        verify = tuple(float(x) for x in data["verify"])
        curves = CostCurves(
            float(data["plain"]), verify, float(data["draft"]), tuple(float(x) for x in data["temperatures"])
        )
        if not verify or min(curves.plain, *verify) <= 0 or curves.draft < 0:
            raise ValueError("times must be positive")
    except OSError as error:
        raise ConfigError(f"engine.costs: {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"engine.costs: {path} holds no cost curves ({type(error).__name__}: {error}); run `sparkwright calibrate`"
        ) from error
    return curves


def curves_for(setting: str, fingerprint: str, drafter: str, device: str) -> CostCurves | None:
    """The curves an assembly uses: `engine.costs` is "none", a file, or "auto" (the cache, if it has them)."""
    if setting == "none":
        return None
    if setting != "auto":
        return load(Path(setting).expanduser())
    path = file_for(fingerprint, drafter, device)
    return load(path) if path.is_file() else None


def shipped(model: Path, fingerprint: str, drafter: str, device: str) -> CostCurves | None:
    """Curves that a model's folder brings along: `costs-DRAFTER-DEVICE.json`, measured by who made it, typical at best.

    They give way to a calibration of this machine. Curves of another model (a fingerprint that differs) are not used.
    """
    path = model / f"costs-{drafter}-{device}.json"
    if not path.is_file():
        return None
    curves = load(path)
    about = json.loads(path.read_text(encoding="utf-8")).get("about", {})
    return curves if about.get("fingerprint") == fingerprint else None
