"""How much memory a checkpoint needs once loaded, and how much there is. Headers only; loads nothing."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

import attrs

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.contract import Stored
from sparkwright.plugins.deepseek_v4.formats import in_memory

GIB = 1 << 30


@attrs.frozen
class Need:
    """Bytes: `weights` stay; `staging` is what loading takes on top for a moment (one projection of one layer)."""

    weights: int
    staging: int

    @property
    def peak(self) -> int:
        return self.weights + self.staging


def loaded_bytes(stored: Stored, expand: bool) -> int:
    """Bytes of one parameter in memory; expand: matrices become float32."""
    parameter = stored.parameter
    if stored.form is None:
        return math.prod(parameter.shape) * 4  # plain arrays are small, and kept in float32 or int32
    if expand:
        return math.prod(parameter.shape) * 4
    return in_memory(stored.form).nbytes(*parameter.matrix) * parameter.copies


def needed(stored: Iterable[Stored], expand: bool) -> Need:
    sizes = [loaded_bytes(one, expand) for one in stored]
    return Need(sum(sizes), max(sizes, default=0))


def state_bytes(config: ModelConfig, context: int, item: int = 4) -> int:
    """Bytes of one sequence's caches at `context` tokens: windows, compressed rows and indexer keys."""
    rows = sum(config.head_dim * config.window for _ in config.ratios)
    for ratio in config.ratios:
        if ratio:
            rows += context // ratio * (config.head_dim + (config.index_dim if ratio == 4 else 0))
    return rows * item


def present(device: str) -> int | None:
    """Bytes that weights can take on this device, or None if it does not say.

    On Metal and CUDA it is what the device reports; on the CPU what the system has free, within its control group.
    """
    if device != "cpu":
        return _device_bytes()
    found = [size for size in (_meminfo(), _cgroup(), _physical()) if size is not None]
    return min(found, default=None)


def _device_bytes() -> int | None:
    import mlx.core as mx

    info = mx.device_info()
    for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        value = info.get(key)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup() -> int | None:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return None
    return max(int(limit) - used, 0) if limit.isdigit() else None


def _physical() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def refuse_if_too_large(what: str, need: Need, device: str, force: bool = False, there: int | None = None) -> None:
    """ModelError, saying by how much, if `need` exceeds what is there (`present(device)` unless given)."""
    there = present(device) if there is None else there
    if force or there is None or need.peak <= there:
        return
    raise ModelError(
        f"{what}: loading needs {need.peak / GIB:.2f} GiB ({need.weights / GIB:.2f} of weights and "
        f"{need.staging / GIB:.2f} while loading) and {device} has {there / GIB:.2f} GiB, "
        f"{(need.peak - there) / GIB:.2f} GiB too little; convert it to smaller forms "
        "(`sparkwright models convert --experts affine2`), or load it anyway with --force"
    )
