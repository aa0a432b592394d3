"""A conformance check as a value: what it proves, and a way to run it. Knows no plugin kind and no engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, NoReturn, TypeAlias

import attrs

from sparkwright.core.contracts import Kind

Status: TypeAlias = Literal["passed", "failed", "skipped", "expected"]


class CheckFailed(AssertionError):
    """A plugin does not keep its contract. One sentence: who, what was found, what was expected, what to do."""


class Skipped(Exception):
    """A check that says nothing about this plugin, with the reason."""


@attrs.frozen
class Outcome:
    """How a check ended. message: the failure or the reason, empty where it passed."""

    status: Status
    message: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        return self.status == "failed"


def _skip(reason: str) -> NoReturn:
    raise Skipped(reason)


@attrs.frozen(eq=False)
class Check:
    """One named check of one plugin.

    name:     the same for every plugin of a kind, so that it can be named in `expected_failures`
    kind, provider: the plugin's slot and name
    proves:   one line
    slow:     statistical, or many forwards: seconds rather than a fraction of one
    expected: why it is known to fail ("" for not); a check that passes all the same is a failure
    """

    name: str
    kind: Kind
    provider: str
    proves: str
    body: Callable[[], None] = attrs.field(repr=False)
    slow: bool = False
    expected: str = ""
    skip: Callable[[str], NoReturn] = attrs.field(default=_skip, repr=False)

    @property
    def id(self) -> str:
        return f"{self.provider}-{self.name.replace(',', '').replace(' ', '-')}"

    def run(self) -> None:
        """Raises CheckFailed if the plugin does not keep its contract, Skipped if the check does not apply to it.

        A failure that was expected raises Skipped; an expected failure that passes raises CheckFailed.
        """
        outcome = self.outcome()
        if outcome.bad:
            raise CheckFailed(outcome.message)
        if outcome.status != "passed":
            self.skip(outcome.message)

    def outcome(self) -> Outcome:
        """Runs it and says how it ended; raises nothing but KeyboardInterrupt and its like."""
        started = time.perf_counter()
        status, message = self._outcome()
        return Outcome(status, message, time.perf_counter() - started)

    def _outcome(self) -> tuple[Status, str]:
        try:
            self.body()
        except Skipped as reason:
            return "skipped", str(reason)
        except Exception as error:
            said = str(error) if isinstance(error, CheckFailed) else f"{type(error).__name__}: {error}"
            said = " ".join(line.strip() for line in said.splitlines())
            message = f"{self.kind} '{self.provider}', check '{self.name}': {said}"
            return (
                ("expected", f"expected to fail ({self.expected}): {message}")
                if self.expected
                else (
                    "failed",
                    message,
                )
            )
        if self.expected:
            return "failed", (
                f"{self.kind} '{self.provider}', check '{self.name}' passes, though it was expected to fail "
                f"({self.expected}); take it out of expected_failures"
            )
        return "passed", ""
