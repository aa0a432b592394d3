"""Requests, stop rules, counting and results: everything about a generation that is not the round itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import attrs

from sparkwright.core.contracts import Promise, Text
from sparkwright.core.text import Detokenizer, StopScanner

Finish = Literal["eos", "stop", "max_tokens", "context", "cancelled"]


@attrs.frozen(eq=False)
class RequestInfo:
    """A request as accepted: prompt token ids and the limits in force."""

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    choice: int
    stop: tuple[str, ...]
    eos: frozenset[int]
    context: int


@attrs.frozen(eq=False)
class Piece:
    """Newly decided tokens and the text that may be shown because of them (either can be empty)."""

    text: str
    tokens: tuple[int, ...]


@attrs.frozen
class RoundTrace:
    """One round in numbers. Times are seconds on the host; `draft_seconds` and `verify_seconds` are apart only when
    `engine.stage_times` makes the engine wait between them (otherwise the device does both while the host waits
    in the one read, which counts as verify)."""

    index: int
    position: int
    planned: int
    drafted: int
    submitted: int
    accepted: int
    tokens: tuple[int, ...]
    confidences: tuple[float, ...]
    flags: int
    repeated: bool
    cut: bool
    transfers: int
    draft_seconds: float
    verify_seconds: float
    rest_seconds: float


@attrs.frozen
class SlotReport:
    """What was asked for in a slot, what ran, why they differ if they do, and what else is to be known of it."""

    requested: str
    effective: str
    reason: str = ""


@attrs.frozen
class Stats:
    """Counts and rates of one request. Rates are tokens per second, None when nothing was timed.

    prefilled: prompt tokens that were forwarded, fewer than prompt_tokens if the request was cancelled meanwhile.
    tau is 1 + accepted drafts / rounds over the rounds that drafted and were not cut by a stop rule (DESIGN section 2).
    submitted_at[k], accepted_at[k]: in how many of those rounds draft k + 1 was submitted, and was accepted.
    parked_rounds: rounds for which the scheduler planned no drafts though there was room for some.
    declined_rounds: rounds for which the drafter was asked for drafts and gave none.
    """

    prompt_tokens: int
    prefilled: int
    tokens: int
    prefill_seconds: float
    decode_seconds: float
    rounds: int
    drafting_rounds: int
    drafted: int
    submitted: int
    accepted: int
    submitted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    uncut_drafting_rounds: int
    repeated_rounds: int
    empty_residuals: int
    transfers: int
    draft_seconds: float
    verify_seconds: float
    rest_seconds: float
    parked_rounds: int = 0
    declined_rounds: int = 0

    @property
    def tau(self) -> float | None:
        rounds = self.uncut_drafting_rounds
        return 1 + sum(self.accepted_at) / rounds if rounds else None

    @property
    def acceptance(self) -> tuple[float | None, ...]:
        """Share of submitted drafts that were accepted, by position in the block."""
        pairs = zip(self.accepted_at, self.submitted_at, strict=True)
        return tuple(accepted / submitted if submitted else None for accepted, submitted in pairs)

    @property
    def prefill_rate(self) -> float | None:
        return self.prefilled / self.prefill_seconds if self.prefilled and self.prefill_seconds > 0 else None

    @property
    def decode_rate(self) -> float | None:
        """Tokens after the first (which the prefill gives) per second of rounds."""
        return (self.tokens - 1) / self.decode_seconds if self.tokens > 1 and self.decode_seconds > 0 else None


@attrs.frozen(eq=False)
class Result:
    """Everything about a finished request; `to_dict` is what `--json` prints."""

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    promise: Promise
    slots: dict[str, SlotReport]
    kernels: dict[str, str]
    stats: Stats
    seed: int
    choice: int
    config_sha256: str
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        data = attrs.asdict(self)
        for name in ("tau", "acceptance", "prefill_rate", "decode_rate"):
            data["stats"][name] = getattr(self.stats, name)
        return data


class StopRules:
    """Feeds tokens through the stop rules one at a time: EOS, stop strings, max_tokens, end of the context.

    The token that stops is kept as a token; text ends before it (EOS) or before the stop string. Checked in that order,
    so that a stop string in the last allowed token is a "stop", not a "max_tokens".
    """

    def __init__(self, request: RequestInfo, text: Text) -> None:
        self.request = request
        self.tokens: list[int] = []
        self.text = ""
        self.finish: Finish | None = None
        self._detokenizer = Detokenizer(text)
        self._scanner = StopScanner(request.stop)

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted: max_tokens and the positions left in the context."""
        used = len(self.tokens)
        return min(self.request.max_tokens - used, self.request.context - len(self.request.prompt) - used)

    def keep(self, tokens: Sequence[int]) -> Piece:
        """Take tokens until a rule stops; returns those kept and the text that may be shown."""
        start, shown = len(self.tokens), ""
        for token in tokens:
            self.tokens.append(token)
            if token in self.request.eos:
                self.finish = "eos"
            else:
                safe, stopped = self._scanner.push(self._detokenizer.push(token))
                shown += safe
                if stopped:
                    self.finish = "stop"
                elif self.remaining == 0:
                    self.finish = "max_tokens" if len(self.tokens) == self.request.max_tokens else "context"
            if self.finish is not None:
                break
        if self.finish is not None:
            shown += self._flush()
        self.text += shown
        return Piece(shown, tuple(self.tokens[start:]))

    def cancel(self) -> Piece:
        self.finish = "cancelled"
        piece = Piece(self._flush(), ())
        self.text += piece.text
        return piece

    def _flush(self) -> str:
        """What was held back (half characters, possible beginnings of a stop string) once nothing more can come."""
        if self.finish == "stop":
            return ""
        safe, stopped = self._scanner.push(self._detokenizer.finish())
        if stopped:
            if self.finish in ("max_tokens", "context"):
                self.finish = "stop"  # what was held back completes a stop string: the same rule as in `keep`
            return safe
        return safe + self._scanner.finish()


class Counter:
    """Adds rounds up into Stats."""

    def __init__(self, request: RequestInfo, block: int) -> None:
        self.request = request
        self.rounds: list[RoundTrace] = []
        self.submitted_at = [0] * block
        self.accepted_at = [0] * block
        self.prefilled = 0
        self.prefill_seconds = 0.0
        self.prefill_transfers = 0
        self.uncut = 0
        self.empty_residuals = 0
        self.parked = 0

    def add(self, trace: RoundTrace, empty_residual: bool, parked: bool) -> None:
        self.rounds.append(trace)
        self.parked += parked
        self.empty_residuals += empty_residual
        if trace.submitted and not trace.cut:
            self.uncut += 1
            for k in range(trace.submitted):
                self.submitted_at[k] += 1
                self.accepted_at[k] += k < trace.accepted

    def stats(self, tokens: int) -> Stats:
        total = self.rounds
        draft, verify, rest = (
            sum(getattr(trace, f"{stage}_seconds") for trace in total) for stage in ("draft", "verify", "rest")
        )
        return Stats(
            prompt_tokens=len(self.request.prompt),
            prefilled=self.prefilled,
            tokens=tokens,
            prefill_seconds=self.prefill_seconds,
            decode_seconds=draft + verify + rest,
            rounds=len(total),
            drafting_rounds=sum(trace.submitted > 0 for trace in total),
            drafted=sum(trace.drafted for trace in total),
            submitted=sum(trace.submitted for trace in total),
            accepted=sum(trace.accepted for trace in total),
            submitted_at=tuple(self.submitted_at),
            accepted_at=tuple(self.accepted_at),
            uncut_drafting_rounds=self.uncut,
            repeated_rounds=sum(trace.repeated for trace in total),
            empty_residuals=self.empty_residuals,
            transfers=self.prefill_transfers + sum(trace.transfers for trace in total),
            draft_seconds=draft,
            verify_seconds=verify,
            rest_seconds=rest,
            parked_rounds=self.parked,
            declined_rounds=sum(trace.planned > 0 == trace.drafted for trace in total),
        )
