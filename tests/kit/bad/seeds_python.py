"""A plugin that seeds Python's generator while it is imported."""

from __future__ import annotations

import random

from tests.kit.bad.clean import sparkwright_register_schedulers

__all__ = ["sparkwright_register_schedulers"]
random.seed(0)
