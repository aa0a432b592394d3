"""What a benchmark result was measured on, for the JSON beside it."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any


def environment() -> dict[str, Any]:
    """Versions, processor, device and command; no paths and no names of people or machines."""
    import mlx.core as mx

    versions = {}
    for name in ("sparkwright", "mlx", "mlx-lm", "numpy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "command": " ".join(["python", *[os.path.basename(a) if os.path.isabs(a) else a for a in sys.argv]]),
        "python": platform.python_version(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "device": str(mx.default_device()),
        "load_average": os.getloadavg()[0],
        "versions": versions,
    }
