"""MLX's random functions stay what they are: who replaces one, imported or built, is named, and it is put back.

All noise of an engine is made of raw key bits by `mlx.core.random`. A plugin that puts another function there (to seed
it, to log it) changes the text of every other plugin. Nothing here imports MLX; where a plugin is the first to do so,
the functions are noted at that moment.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType, TracebackType
from typing import Any, Self

MLX = "mlx.core"


def functions(mlx: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(mlx.random).items() if callable(value)}


class Watch(MetaPathFinder):
    """A `with` block; afterwards `replaced` names the functions that were replaced in it, which are back in place."""

    def __init__(self) -> None:
        self.replaced: tuple[str, ...] = ()
        self._before: dict[str, Any] | None = None

    def __enter__(self) -> Self:
        if MLX in sys.modules:
            self._before = functions(sys.modules[MLX])
        else:
            sys.meta_path.insert(0, self)
        return self

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Somebody imports MLX: let it, and note its functions before anybody sees them."""
        if name != MLX:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def noting(module: ModuleType) -> None:
                run(module)
                self._before = functions(module)

            spec.loader.exec_module = noting  # type: ignore[method-assign]
        return spec

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        mlx = sys.modules.get(MLX)
        if mlx is None or self._before is None:
            return
        random: Any = mlx.random
        wrong = [name for name, value in self._before.items() if getattr(random, name, None) is not value]
        for name in wrong:
            setattr(random, name, self._before[name])
        self.replaced = tuple(f"{MLX}.random.{name}" for name in wrong)

    @property
    def sentence(self) -> str:
        """What was done, and what to do about it; empty if nothing was."""
        if not self.replaced:
            return ""
        return (
            f"replaces {', '.join(self.replaced)}, from which every engine draws (it was put back); draw from the keys "
            "that a hook is given"
        )
