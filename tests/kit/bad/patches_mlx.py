"""A plugin that replaces a function of MLX while it is imported. Never imported by the tests' own process."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from tests.kit.bad.clean import sparkwright_register_schedulers

__all__ = ["sparkwright_register_schedulers"]
_right: Any = mx.random.split


def _split(*arguments: Any, **named: Any) -> Any:
    return _right(*arguments, **named)


mx.random.split = _split
