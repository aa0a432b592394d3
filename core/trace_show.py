"""Reads a trace that the observer `trace` wrote and says what is in it: one summary for each request.

A trace is JSON lines, {"event": "request" | "round" | "result", ...}; a line without "event" that looks like a round is
one. It knows the fields of `generation.RoundTrace` and nothing of the engine. A trace that ends in the middle (a
request that was killed) is summarised as far as it goes.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import attrs

from sparkwright.core.errors import OutputError, SparkwrightError

ROUND_FIELDS = (
    "index", "position", "planned", "drafted", "submitted", "accepted", "tokens", "flags", "repeated", "cut",
    "transfers", "draft_seconds", "verify_seconds", "rest_seconds",
)  # fmt: skip


class TraceError(SparkwrightError):
    """A file that is no trace."""

    exit_code = 2


@attrs.frozen
class TraceSummary:
    """One request. Seconds are the host's; `draft` and `verify` are apart only if the engine timed its stages.

    tokens, transfers: of the whole request where its result is in the trace (the prefill gives the first token,
    with a transfer of its own), else of its rounds. lengths: how many rounds emitted 1, 2, ... tokens.
    acceptance[k]: share of submitted drafts k + 1 that were accepted, over rounds that were not cut.
    declined_rounds: the drafter was asked and gave none; parked_rounds: the scheduler planned none (None: not
    known, the result is missing); unsubmitted_rounds: it submitted none of what was drafted. slowest: index and
    seconds of the slowest rounds. finish: None if the trace ends before the request did.
    """

    prompt_tokens: int | None
    seed: int | None
    rounds: int
    drafting_rounds: int
    tokens: int
    tau: float | None
    drafted: int
    submitted: int
    accepted: int
    acceptance: tuple[float | None, ...]
    lengths: tuple[int, ...]
    transfers: int
    repeated_rounds: int
    empty_residuals: int
    cut_rounds: int
    draft_seconds: float
    verify_seconds: float
    rest_seconds: float
    declined_rounds: int
    parked_rounds: int | None
    unsubmitted_rounds: int
    slowest: tuple[tuple[int, float], ...]
    finish: str | None
    config_sha256: str | None
    prefill_seconds: float | None

    @property
    def seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds + self.rest_seconds

    @property
    def decode_rate(self) -> float | None:
        """Tokens of rounds per second of rounds."""
        emitted = sum(n * count for n, count in enumerate(self.lengths, 1))
        return emitted / self.seconds if emitted and self.seconds > 0 else None

    def to_dict(self) -> dict[str, Any]:
        return {**attrs.asdict(self), "decode_rate": self.decode_rate}


def read_trace(path: str | Path) -> list[TraceSummary]:
    """A summary for each request in the file, in order. TraceError names the line that is wrong."""
    path = Path(path).expanduser()
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise OutputError(f"trace file {path} cannot be read: {error.strerror}") from None
    whole = raw.endswith(b"\n")
    lines = raw.split(b"\n")
    requests: list[_Open] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        event = _parse(line, path, number, last=not whole and number == len(lines))
        if event is None:
            continue
        kind = event.get("event", "round")
        if kind == "request" or not requests:
            requests.append(_Open())
        if kind == "request":
            requests[-1].request = event
        elif kind == "round":
            requests[-1].rounds.append(event)
        elif kind == "result":
            requests[-1].result = event
    if not requests:
        raise TraceError(f"trace file {path} holds no rounds; write one with `sparkwright generate --trace FILE`")
    return [request.summary() for request in requests]


def _parse(line: bytes, path: Path, number: int, *, last: bool) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        if last:  # the writer was killed in the middle of it
            return None
        raise TraceError(f"trace file {path}, line {number} is not JSON; expected one object a line") from None
    if not isinstance(event, dict):
        raise TraceError(f"trace file {path}, line {number} is a JSON {type(event).__name__}; expected an object")
    kind = event.get("event", "round")
    if kind == "round":
        for field in ROUND_FIELDS:
            value = event.get(field)
            good = isinstance(value, list) if field == "tokens" else isinstance(value, (int, float))
            if not good:
                raise TraceError(
                    f"trace file {path}, line {number}: the round's {field!r} is {value!r}, expected "
                    f"{'a list of tokens' if field == 'tokens' else 'a number'}; is this a trace of sparkwright?"
                )
    return event


@attrs.define
class _Open:
    """The events of one request as they are read."""

    request: dict[str, Any] = attrs.field(factory=dict)
    rounds: list[dict[str, Any]] = attrs.field(factory=list)
    result: dict[str, Any] = attrs.field(factory=dict)

    def summary(self) -> TraceSummary:
        rounds = self.rounds
        whole = [r for r in rounds if r["submitted"] and not r["cut"]]
        depth = max((r["submitted"] for r in whole), default=0)
        acceptance = []
        for k in range(depth):
            submitted = [r for r in whole if r["submitted"] > k]
            acceptance.append(sum(r["accepted"] > k for r in submitted) / len(submitted) if submitted else None)
        emitted = Counter(len(r["tokens"]) for r in rounds)
        took = sorted(((_seconds(r), r["index"]) for r in rounds), reverse=True)[:3]
        stats = self.result.get("stats")
        whole_request = stats if isinstance(stats, dict) else {}
        prompt = self.request.get("prompt")
        return TraceSummary(
            prompt_tokens=len(prompt) if isinstance(prompt, list) else None,
            seed=self.request.get("seed", self.result.get("seed")),
            rounds=len(rounds),
            drafting_rounds=sum(r["submitted"] > 0 for r in rounds),
            tokens=whole_request.get("tokens", sum(len(r["tokens"]) for r in rounds)),
            tau=1 + sum(r["accepted"] for r in whole) / len(whole) if whole else None,
            drafted=sum(r["drafted"] for r in rounds),
            submitted=sum(r["submitted"] for r in rounds),
            accepted=sum(r["accepted"] for r in rounds),
            acceptance=tuple(acceptance),
            lengths=tuple(emitted.get(n, 0) for n in range(1, max(emitted, default=0) + 1)),
            transfers=whole_request.get("transfers", sum(r["transfers"] for r in rounds)),
            repeated_rounds=sum(bool(r["repeated"]) for r in rounds),
            empty_residuals=sum(bool(r["flags"] & 2) for r in rounds),
            cut_rounds=sum(bool(r["cut"]) for r in rounds),
            draft_seconds=sum(r["draft_seconds"] for r in rounds),
            verify_seconds=sum(r["verify_seconds"] for r in rounds),
            rest_seconds=sum(r["rest_seconds"] for r in rounds),
            declined_rounds=sum(bool(r["planned"]) and not r["drafted"] for r in rounds),
            parked_rounds=whole_request.get("parked_rounds"),
            unsubmitted_rounds=sum(bool(r["drafted"]) and not r["submitted"] for r in rounds),
            slowest=tuple((index, seconds) for seconds, index in took),
            finish=self.result.get("finish"),
            config_sha256=self.result.get("config_sha256"),
            prefill_seconds=whole_request.get("prefill_seconds"),
        )


def _seconds(r: dict[str, Any]) -> float:
    return float(r["draft_seconds"] + r["verify_seconds"] + r["rest_seconds"])
