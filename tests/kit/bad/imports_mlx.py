"""A plugin that imports MLX while it is imported."""

from __future__ import annotations

import mlx.core as mx
from tests.kit.bad.clean import sparkwright_register_schedulers

__all__ = ["mx", "sparkwright_register_schedulers"]
