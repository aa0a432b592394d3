"""The engine: one request after another through one round loop, readable from top to bottom in `generate`.

It knows slots, limits, transactions and counting; it knows no model, no algorithm and no kernel. Plain decoding is the
same loop with a block of no drafts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import attrs

from sparkwright.core.config import Config
from sparkwright.core.contracts import (
    EMPTY_RESIDUAL,
    INCOMPLETE,
    NON_FINITE,
    WIDEST_VERIFY,
    CostCurves,
    Distribution,
    Draft,
    Forward,
    Promise,
    RoundReport,
)
from sparkwright.core.draw import draw
from sparkwright.core.errors import NumericError, PluginError, RequestError
from sparkwright.core.generation import Counter, Piece, RequestInfo, Result, RoundTrace, SlotReport, StopRules
from sparkwright.core.notices import FirstRounds, explained
from sparkwright.core.randomness import Keys
from sparkwright.core.roles import Drafter, Observers, Sampler, Scheduler, Target, Verifier
from sparkwright.core.worker import Stream, Worker, result_of

if TYPE_CHECKING:
    import mlx.core as mx

    from sparkwright.core.kernels import KernelChoice

Messages = Sequence[Mapping[str, str]]


@attrs.frozen(eq=False, kw_only=True)
class Parts:
    """What assembly puts together: one plugin a slot, bound, and what is said about them."""

    target: Target
    drafter: Drafter
    scheduler: Scheduler
    sampler: Sampler
    verifier: Verifier
    observers: Observers
    promise: Promise
    slots: dict[str, SlotReport]
    kernels: dict[str, str]
    kernel_choices: tuple[KernelChoice, ...]
    config: Config
    config_sha256: str
    curves: CostCurves | None
    warnings: tuple[str, ...]
    first_rounds: FirstRounds

    @property
    def noise(self) -> Any:
        """The purpose of the keys that the drafter draws with."""
        shared = self.verifier.facts.noise == "target" and self.drafter.facts.target_noise
        return "target" if shared else "draft"


class Host:
    """The only way from the device to the host, so that transfers can be counted."""

    def __init__(self) -> None:
        self.transfers = 0

    def read(self, array: mx.array) -> list[Any]:
        self.transfers += 1
        self.wait(array)
        values: list[Any] = array.tolist()  # type: ignore[assignment]
        return values

    @staticmethod
    def begin(array: mx.array | None) -> None:
        """Let the device start on an array while Python goes on; what goes wrong is said when it is read."""
        import mlx.core as mx

        if array is not None:
            mx.async_eval(array)  # type: ignore[no-untyped-call]

    @staticmethod
    def wait(*arrays: mx.array | None) -> None:
        """Let the device finish. Graphs are lazy: what a plugin's graph raises, it raises here."""
        import mlx.core as mx

        try:
            mx.eval([array for array in arrays if array is not None])
        except Exception as error:
            raise PluginError(f"the device could not compute what the plugins asked for: {error}") from error


def generate(
    parts: Parts, request: RequestInfo, emit: Callable[[Piece], None], cancelled: Callable[[], bool]
) -> Result:
    """Run one request. Text and tokens go to `emit` as they are decided; `cancelled` is asked between steps.

    The anchor is the last emitted token, not yet processed by the target: the state covers every position before it.
    """
    import mlx.core as mx

    target, drafter, scheduler, sampler = parts.target, parts.drafter, parts.scheduler, parts.sampler
    host, stops = Host(), StopRules(request, target)
    counter = Counter(request, min(drafter.facts.block, WIDEST_VERIFY - 1))
    taps, noticed = bool(drafter.facts.taps), parts.warnings
    parts.observers.tell("request_started", request=request)

    # Prefill in chunks; the drafter observes each; the last row gives the first anchor.
    clock = time.perf_counter()
    state = target.new_state()
    sampler_state = sampler.start(request.prompt)
    drafter_state = drafter.start(request.prompt, sampler.shape)
    scheduler_state = scheduler.start()
    prompt, chunk = request.prompt, parts.config.engine.prefill_chunk
    forward = None
    for start in range(0, len(prompt), chunk):
        if cancelled():
            break
        rows = prompt[start : start + chunk]
        last = start + len(rows) == len(prompt)
        forward = target.forward(mx.array(rows, dtype=mx.int32), state, "last" if last else "none")
        drafter.observe(drafter_state, rows, forward.taps if taps else None)
        if not last:
            host.wait(forward.logits, forward.taps)
        counter.prefilled = start + len(rows)
        parts.observers.tell("progress", what="prefill", done=start + len(rows), total=len(prompt))
    if cancelled():
        emit(stops.cancel())
    else:
        assert forward is not None and forward.logits is not None  # a prompt has at least one token
        context = sampler.rows(sampler_state, mx.zeros((0,), dtype=mx.int32))
        keys = Keys(request.seed, request.choice, len(prompt) - 1)
        _, anchor, *_ = _decide(parts, forward.logits, context, None, keys, host)[0]
        sampler_state = sampler.advance(sampler_state, (anchor,))
        emit(stops.keep((anchor,)))
    counter.prefill_seconds, counter.prefill_transfers = time.perf_counter() - clock, host.transfers

    # Where this round drafts nothing and the next is sure to draft nothing either (there will be no room for drafts, or
    # the scheduler `rests`), the next row is the token that is being drawn: its forward begins before the token is
    # read, so that the host builds graphs while the device computes. `ahead` is that forward, in `transaction`.
    resting = False
    ahead: Forward | None = None
    transaction: Any = None
    position = len(prompt)
    while stops.finish is None:
        if cancelled():
            if ahead is not None:
                target.abort(transaction)
            emit(stops.cancel())
            break
        started, before = time.perf_counter(), host.transfers
        position = target.position(state) if ahead is None else position + 1
        keys = Keys(request.seed, request.choice, position)

        # How many drafts could be verified, how many the scheduler wants, and what the drafter gives.
        room = stops.remaining if drafter.facts.context is None else drafter.facts.context - position
        limit = max(0, min(drafter.facts.block, stops.remaining - 1, room - 1, WIDEST_VERIFY - 1))
        planned = scheduler.plan(scheduler_state, limit) if limit and not resting else 0
        resting = not planned and (not limit or scheduler.rests(scheduler_state))
        draft = None
        if planned:
            draft = drafter.draft(drafter_state, anchor, planned, keys.array(parts.noise, planned))
        drafted = len(draft) if draft is not None else 0

        # Which of them are submitted: the scheduler sees confidences in order, and nothing else.
        submitted, confidences = drafted, ()
        if draft is not None and drafted and draft.confidence is not None and scheduler.facts.confidences:
            confidences = tuple(host.read(draft.confidence))
            submitted = scheduler.submit(scheduler_state, confidences)
        if draft is not None:
            draft = draft.first(submitted) if submitted else None
        if parts.config.engine.stage_times and draft is not None:
            host.wait(draft.tokens)
        drafted_at = time.perf_counter()

        # Verify: the anchor is row 0 of the same forward that prefill used; n = 0 drafts is a plain decode.
        drafts = draft.tokens if draft is not None else mx.zeros((0,), dtype=mx.int32)
        forward, ahead = ahead, None
        if forward is None:
            transaction = target.begin(state)

        def next_row(verdict: mx.array) -> None:
            nonlocal ahead, transaction
            host.begin(verdict)  # by itself: an array is ready when all that was begun with it is
            target.commit(transaction, 1)
            transaction = target.begin(state)
            ahead = target.forward(verdict[1:2], state, "all")
            host.begin(ahead.logits)

        try:
            if forward is None:
                block = mx.concatenate([mx.array([anchor], dtype=mx.int32), drafts.astype(mx.int32)])
                forward = target.forward(block, state, "all")
            assert forward.logits is not None
            context = sampler.rows(sampler_state, drafts)
            meanwhile = next_row if resting and stops.remaining > 1 else None
            verdict, repeated = _decide(parts, forward.logits, context, draft, keys, host, meanwhile)
            accepted, token, flags, *tokens = verdict
            verified_at = time.perf_counter()
            piece = stops.keep((*tokens[:accepted], token))
        except BaseException:
            with suppress(PluginError):  # the first error is the one to tell
                target.abort(transaction)
            raise
        kept = piece.tokens

        # Commit the anchor and every kept token but the last; everybody learns the same rows.
        if ahead is None:
            target.commit(transaction, len(kept))
        elif repeated or stops.finish is not None:  # it was begun with another token, or nothing follows
            target.abort(transaction)
            ahead = None
        observed = (anchor, *kept[:-1])
        drafter.observe(
            drafter_state, observed, forward.taps[: len(kept)] if taps and forward.taps is not None else None
        )
        sampler_state = sampler.advance(sampler_state, kept)
        counted = min(accepted, len(kept))
        cut = len(kept) < accepted + 1
        scheduler.learn(
            scheduler_state, RoundReport(planned, drafted, submitted, counted, confidences[: submitted + 1], cut)
        )
        emit(piece)
        anchor = kept[-1]
        trace = RoundTrace(
            index=len(counter.rounds), position=position, planned=planned, drafted=drafted, submitted=submitted,
            accepted=counted, tokens=kept, confidences=confidences, flags=flags, repeated=repeated, cut=cut,
            transfers=host.transfers - before, draft_seconds=drafted_at - started,
            verify_seconds=verified_at - drafted_at, rest_seconds=time.perf_counter() - verified_at,
        )  # fmt: skip
        counter.add(trace, bool(flags & EMPTY_RESIDUAL), parked=limit > 0 and planned == 0)
        noticed += parts.first_rounds.add(trace)
        if parts.observers:
            parts.observers.tell("round_finished", trace=trace)

    assert stops.finish is not None
    stats = counter.stats(len(stops.tokens))
    result = Result(
        text=stops.text, tokens=tuple(stops.tokens), finish=stops.finish, promise=parts.promise,
        slots=explained(parts.slots, scheduler.facts, stats, parts.curves), kernels=parts.kernels, stats=stats,
        seed=request.seed, choice=request.choice, config_sha256=parts.config_sha256,
        warnings=noticed + tuple(parts.observers.warnings),
    )  # fmt: skip
    parts.observers.tell("request_finished", result=result)
    return result


def _decide(
    parts: Parts,
    logits: mx.array,
    context: Any,
    draft: Draft | None,
    keys: Keys,
    host: Host,
    meanwhile: Callable[[mx.array], None] | None = None,
) -> tuple[list[int], bool]:
    """Verify (or draw, without drafts) and read the verdict: one transfer, two in the rare round that is repeated.

    meanwhile: given the verdict before it is read, for work that need not wait. Returns [accepted, next token, flags,
    d1..dn] and whether a truncation shortcut did not suffice, so that the round's distribution and verification were
    computed again in full, with the same keys.
    """
    for full in (False, True):
        p: Distribution = parts.sampler.distribution(logits, context, full)
        verdict = parts.verifier.verify(draft, p, keys).array if draft is not None else draw(p, keys)
        if meanwhile is not None and not full:
            meanwhile(verdict)
        accepted, token, flags, *tokens = host.read(verdict)
        if flags & NON_FINITE:
            raise NumericError(
                f"target plugin '{parts.target.name}' gave logits that are not finite (NaN or infinity) for a row "
                f"after position {keys.anchor}; nothing can be drawn from them. Check the checkpoint and its number "
                "format"
            )
        if not flags & INCOMPLETE:
            _check(parts, accepted, token, tokens)
            break
    else:
        raise PluginError(f"sampler plugin '{parts.sampler.name}' calls a row incomplete that it was asked for in full")
    return [accepted, token, flags, *tokens], full


def _check(parts: Parts, accepted: int, token: int, drafts: list[int]) -> None:
    """Host integers that everything after this relies on; MLX reads out of bounds without a word."""
    size = parts.target.facts.vocab_size
    if not 0 <= accepted <= len(drafts) or not 0 <= token < size:
        raise PluginError(
            f"verifier plugin '{parts.verifier.name}' accepted {accepted} of {len(drafts)} drafts and drew token "
            f"{token}, expected 0..{len(drafts)} and a token of the vocabulary of {size}"
        )
    if outside := [draft for draft in drafts if not 0 <= draft < size]:
        raise PluginError(
            f"drafter plugin '{parts.drafter.name}' drafted token {outside[0]}, outside the vocabulary of {size}"
        )


class Engine:
    """A configured, loaded engine. Made by `assemble`; a context manager; callable from any thread, requests queue."""

    def __init__(self, parts: Parts, worker: Worker) -> None:
        self._parts, self._worker = parts, worker
        self._closed, self._closing = False, threading.Lock()

    @property
    def config(self) -> Config:
        return self._parts.config

    @property
    def config_sha256(self) -> str:
        """Hash of the configuration, the plugins that fill its slots and the cost curves in force."""
        return self._parts.config_sha256

    @property
    def promise(self) -> Promise:
        return self._parts.promise

    @property
    def slots(self) -> dict[str, SlotReport]:
        return self._parts.slots

    @property
    def warnings(self) -> tuple[str, ...]:
        """Of the assembly, and the one of `core.notices` about its drafter once a request has raised it."""
        return self._parts.warnings + self._parts.first_rounds.warnings

    @property
    def target(self) -> Target:
        """The target, for forwards of one's own: hand the work to `run`, which does it in the engine's thread."""
        return self._parts.target

    def run(self, work: Callable[[Parts], Any]) -> Any:
        """Run `work(parts)` in the engine's thread (audits, calibration) and return what it returns."""
        return result_of(self._worker.submit(lambda: work(self._parts)))

    def stream(
        self,
        prompt: str | Sequence[int] | Messages,
        *,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: Sequence[str] | None = None,
        ignore_eos: bool | None = None,
        choice: int = 0,
    ) -> Stream[Piece, Result]:
        """Start a request. The stream yields Pieces as they are decided; its `result` is the Result.

        prompt: text, token ids, or chat messages ({"role": ..., "content": ...} each). The rest: None is what the
        configuration says. Raises RequestError at once for a request that cannot be served.
        """
        request = self._request(prompt, max_tokens, seed, stop, ignore_eos, choice)
        parts = self._parts
        return Stream(self._worker, lambda emit, cancelled: generate(parts, request, emit, cancelled))

    def complete(self, prompt: str | Sequence[int] | Messages, **request: Any) -> Result:
        """`stream`, waited for."""
        with self.stream(prompt, **request) as stream:
            return stream.result

    def _request(
        self,
        prompt: str | Sequence[int] | Messages,
        max_tokens: int | None,
        seed: int | None,
        stop: Sequence[str] | None,
        ignore_eos: bool | None,
        choice: int,
    ) -> RequestInfo:
        defaults, facts = self.config.generation, self._parts.target.facts
        tokens = self._tokens(prompt)
        max_tokens = defaults.max_tokens if max_tokens is None else max_tokens
        if stop is not None and not isinstance(stop, Sequence):
            raise RequestError(f"stop is {stop!r}, expected non-empty strings")
        stops = defaults.stop if stop is None else tuple([stop] if isinstance(stop, str) else stop)
        ignore = defaults.ignore_eos if ignore_eos is None else ignore_eos
        seed = defaults.seed if seed is None else seed
        if not tokens:
            raise RequestError("the prompt is empty: it has no tokens, and a model needs at least one")
        outside = next((t for t in tokens if not 0 <= t < facts.vocab_size), None)
        if outside is not None:
            raise RequestError(f"the prompt holds the token id {outside}, outside the vocabulary of {facts.vocab_size}")
        if len(tokens) >= facts.context:
            raise RequestError(
                f"the prompt has {len(tokens)} tokens and the model's context is {facts.context}: "
                f"shorten it to {facts.context - 1} at most, one must be left to generate"
            )
        if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
            raise RequestError(f"max_tokens is {max_tokens!r}, expected at least 1")
        if any(not isinstance(s, str) or not s for s in stops):
            raise RequestError(f"stop is {list(stops)!r}, expected non-empty strings")
        if not isinstance(seed, int) or not isinstance(choice, int) or choice < 0:
            raise RequestError(f"seed is {seed!r} and choice {choice!r}, expected whole numbers, choice from 0")
        eos = frozenset() if ignore else frozenset(facts.eos)
        return RequestInfo(tokens, max_tokens, seed, choice, stops, eos, facts.context)

    def _tokens(self, prompt: str | Sequence[int] | Messages) -> tuple[int, ...]:
        target = self._parts.target
        if isinstance(prompt, str):
            return tuple(target.encode(_unicode(prompt)))
        if isinstance(prompt, Sequence) and all(isinstance(item, Mapping) for item in prompt):
            for message in prompt:
                for name, value in message.items():  # type: ignore[union-attr]
                    if not isinstance(value, str):
                        raise RequestError(f"a chat message's {name!r} is {type(value).__name__}, expected text")
                    _unicode(value)
            return tuple(target.encode_chat(prompt)) if prompt else ()
        if isinstance(prompt, Sequence) and all(
            isinstance(item, int) and not isinstance(item, bool) for item in prompt
        ):
            return tuple(prompt)  # type: ignore[arg-type]
        raise RequestError("the prompt must be text, a list of token ids, or a list of chat messages")

    def close(self) -> None:
        """Let the requests that were accepted end, refuse more, and end the thread."""
        self._worker.close()
        with self._closing:
            if not self._closed:
                self._closed = True
                self._parts.observers.tell("engine_closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if kind is KeyboardInterrupt:
            self._worker.close(wait=False)  # who interrupts does not want to wait for the end of an audit
        else:
            self.close()


def _unicode(text: str) -> str:
    """The text; half a surrogate pair (an undecodable byte of a command line) is refused: no tokenizer takes it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(f"the prompt is not valid text: {text[error.start]!r} at character {error.start}") from None
    return text
