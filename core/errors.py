"""Every error a user of sparkwright can meet, one class for each kind of mistake.

A message says who (the plugin, key, tensor or file), what was found, what was expected, and what to do. The command
line prints the message alone and leaves with `exit_code`; a traceback is reserved for faults of our own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SparkwrightError(Exception):
    """Base of all errors below. `exit_code` is what the command line returns."""

    exit_code = 1


class ConfigError(SparkwrightError):
    """One or more configuration values are wrong; `problems` holds one line for each."""

    exit_code = 2

    def __init__(self, problems: str | Iterable[str]) -> None:
        self.problems = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class RequestError(SparkwrightError):
    """A request (prompt, limits, stop strings) that cannot be served as asked."""

    exit_code = 2


class PluginError(SparkwrightError):
    """A plugin that is missing, broken, of another hook version, or that raised while it was used."""

    exit_code = 3


class HookError(PluginError):
    """A built plugin whose hooks are misspelt, missing, or take other arguments than their specification."""


class AssemblyError(SparkwrightError):
    """Plugins that do not fit together; both sides are named."""

    exit_code = 3


class ModelError(SparkwrightError):
    """A model directory or checkpoint that is missing, damaged, unsupported or too large."""

    exit_code = 4


class NumericError(SparkwrightError):
    """Logits or probabilities that are not finite."""

    exit_code = 5


class OutputError(SparkwrightError):
    """A file that was asked for and cannot be written."""

    exit_code = 6


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
