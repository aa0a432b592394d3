"""Audits: checks of the promises that anyone can run, as plain functions that return data. No engine imports this.

`audit_law` is the statistical one, on small exact models (`law`, `trials`, `statistics`; `models` makes the tables, and
`lengths` computes expected accepted lengths exactly, `configured` takes plugins from a Config). How a plugin takes part
is in the docstring of `trials`: its hook methods accept leading axes and say so with `leading_axes = True`. Importing
this package imports MLX only when one of its names is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkwright.core.audit.configured import subjects_of as subjects_of
    from sparkwright.core.audit.law import LawResult as LawResult
    from sparkwright.core.audit.law import audit_law as audit_law
    from sparkwright.core.audit.law import power_of as power_of
    from sparkwright.core.audit.models import subject as subject
    from sparkwright.core.audit.subjects import Subject as Subject
    from sparkwright.core.audit.subjects import TableDrafter as TableDrafter

_HOME = {
    "LawResult": "law",
    "Subject": "subjects",
    "TableDrafter": "subjects",
    "audit_law": "law",
    "power_of": "law",
    "subject": "models",
    "subjects_of": "configured",
}
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sparkwright.core.audit' has no attribute '{name}'")
    return getattr(import_module(f"sparkwright.core.audit.{_HOME[name]}"), name)
