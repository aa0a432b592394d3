"""A/B runs: which of two configurations decodes faster, with a verdict that can be trusted.

`compare(...)` is the entry; `plan` orders the runs, `runner` makes them, `store` keeps them, `analysis` and `verdict`
say what they mean, `report` shows it. Nothing here is needed to run an engine, and the engine never imports it.
"""

from __future__ import annotations

from sparkwright.core.compare.api import compare as compare
from sparkwright.core.compare.records import CompareError as CompareError
from sparkwright.core.compare.result import CompareResult as CompareResult

__all__ = ["CompareError", "CompareResult", "compare"]
