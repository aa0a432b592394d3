"""sparkwright: speculative decoding on MLX in which every strategy is a plugin.

Importing this package imports neither MLX nor any plugin; the names below are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkwright.core.assembly import assemble as assemble
    from sparkwright.core.assembly import load_target as load_target
    from sparkwright.core.compare import compare as compare
    from sparkwright.core.config import Config as Config
    from sparkwright.core.config import load_config as load_config
    from sparkwright.core.contracts import Provider as Provider
    from sparkwright.core.contracts import option as option
    from sparkwright.core.engine import Engine as Engine
    from sparkwright.core.errors import SparkwrightError as SparkwrightError
    from sparkwright.core.generation import Result as Result
    from sparkwright.core.hookspecs import hookimpl as hookimpl

_HOME = {
    "Config": "core.config",
    "Engine": "core.engine",
    "Provider": "core.contracts",
    "Result": "core.generation",
    "SparkwrightError": "core.errors",
    "assemble": "core.assembly",
    "compare": "core.compare",
    "hookimpl": "core.hookspecs",
    "load_config": "core.config",
    "load_target": "core.assembly",
    "option": "core.contracts",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sparkwright' has no attribute '{name}'")
    return getattr(import_module(f"sparkwright.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
