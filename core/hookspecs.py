"""Every hook of sparkwright, in life-cycle order.

How to read an entry: when it is called, the arguments (an implementation may leave out those it does not need), what it
returns, and what an exception does. "Exactly one" hooks are the run-time methods of a slot: the object that a
Provider's `build` returns implements them, on a plugin manager of its engine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    import mlx.core as mx

    from sparkwright.core.contracts import (
        Distribution,
        Draft,
        Forward,
        Logits,
        OpSpec,
        Provider,
        Resources,
        RoundReport,
        Settle,
        TargetState,
        Text,
        Verdict,
    )
    from sparkwright.core.generation import RequestInfo, Result, RoundTrace
    from sparkwright.core.randomness import Keys

PROJECT = "sparkwright"
hookspec = pluggy.HookspecMarker(PROJECT)  # docs/generate.py makes docs/reference/hooks.md of what follows
hookimpl = pluggy.HookimplMarker(PROJECT)

# ==============================================================================================================
# Discovery: asked once for each loaded plugin module; collects
# ==============================================================================================================


@hookspec
def sparkwright_register_targets() -> Iterable[Provider]:  # type: ignore[empty-body]
    """Providers of kind "target". Must not import MLX. An exception makes the plugin `Broken`, and only that one."""


@hookspec
def sparkwright_register_drafters() -> Iterable[Provider]:  # type: ignore[empty-body]
    """Providers of kind "drafter". As `sparkwright_register_targets`."""


@hookspec
def sparkwright_register_schedulers() -> Iterable[Provider]:  # type: ignore[empty-body]
    """Providers of kind "scheduler". As `sparkwright_register_targets`."""


@hookspec
def sparkwright_register_verifiers() -> Iterable[Provider]:  # type: ignore[empty-body]
    """Providers of kind "verifier". As `sparkwright_register_targets`."""


@hookspec
def sparkwright_register_samplers() -> Iterable[Provider]:  # type: ignore[empty-body]
    """Providers of kind "sampler". As `sparkwright_register_targets`."""


@hookspec
def sparkwright_register_kernels() -> Iterable[Provider]:  # type: ignore[empty-body]
    """Providers of kind "kernels". As `sparkwright_register_targets`."""


@hookspec
def sparkwright_register_observers() -> Iterable[Provider]:  # type: ignore[empty-body]
    """Providers of kind "observer". As `sparkwright_register_targets`."""


# ==============================================================================================================
# Assembly
# ==============================================================================================================


@hookspec(firstresult=True)
def sparkwright_select_kernel(
    op: OpSpec, device: str, dtype: str, format: str, widths: tuple[int, ...]
) -> Callable[..., Any] | None:
    """Asked once for each op, device, activation dtype, weight format and widths; the answer is kept.

    Returns a callable with the op's signature that covers every number of rows from 1 to WIDEST_VERIFY, or None: "not
    mine", and the next backend in `kernels.use` is asked. The number of rows is not part of the question on purpose:
    choosing by it is how decode and verify come to differ. An exception refuses the assembly, naming the backend.
    """


@hookspec(firstresult=True)
def sparkwright_decline_kernel(
    op: OpSpec, device: str, dtype: str, format: str, widths: tuple[int, ...]
) -> str | None:
    """Optional. After `sparkwright_select_kernel` answered None to the same question: why, in a few words, for people
    (`kernels list`, `audit kernels`). "needs CUDA or Metal; this is CPU"."""


@hookspec(firstresult=True)
def sparkwright_target_resources() -> Resources:  # type: ignore[empty-body]
    """Exactly one. Asked once, after the target is built and before the drafter is: what the target lends."""


@hookspec(firstresult=True)
def sparkwright_target_text() -> Text:  # type: ignore[empty-body]
    """Exactly one. Asked once, after the target is built: its tokenizer."""


@hookspec(firstresult=True)
def sparkwright_target_reference(tokens: Sequence[int], settle: Settle) -> Any:
    """At most one; without it, audits can compare the target only with itself. Never called by an engine.

    The model by its definition: NumPy float64 logits [n, V] of every position of a text, from the checkpoint's numbers
    and apart from `forward`: no common code, no caches, no chunks. It may be slow. Every choice is shown to `settle`.
    """


# ==============================================================================================================
# A request
# ==============================================================================================================


@hookspec
def sparkwright_request_started(request: RequestInfo) -> None:
    """Observers: a request was accepted; nothing has been computed. An exception switches the observer off."""


@hookspec
def sparkwright_progress(what: str, done: int, total: int) -> None:
    """Observers: `done` of `total` steps of `what` ("load", "prefill") are finished. An exception switches it off."""


@hookspec(firstresult=True)
def sparkwright_target_new_state() -> TargetState:  # type: ignore[empty-body]
    """Exactly one. At the start of a request: an empty state at position 0."""


@hookspec(firstresult=True)
def sparkwright_sampler_start(prompt: Sequence[int]) -> Any:
    """Exactly one. At the start of a request: the sampler's state, an immutable value. None is a fine state."""


@hookspec(firstresult=True)
def sparkwright_sampler_shape(logits: mx.array) -> mx.array:  # type: ignore[empty-body]
    """Exactly one. Temperature and filters without penalties: logits [..., V] -> log q [..., V] float32, normalised.

    A deterministic sampler gives 0 at the first largest logit and -inf elsewhere."""


@hookspec(firstresult=True)
def sparkwright_drafter_start(prompt: Sequence[int], shape: Callable[[mx.array], mx.array]) -> Any:
    """Exactly one. At the start of a request: the drafter's state; it has observed nothing yet, the prompt included.

    shape: the request's temperature and filters without penalties, logits [..., V] -> log q [..., V] float32; what
    `temperature = "match"` draws from. The state may be changed in place by `draft` and `observe`.
    """


@hookspec(firstresult=True)
def sparkwright_scheduler_start() -> Any:
    """Exactly one. At the start of a request: the scheduler's state; nothing may survive from an earlier request."""


# ==============================================================================================================
# A round, in the order of its calls
# ==============================================================================================================


@hookspec(firstresult=True)
def sparkwright_scheduler_plan(state: Any, limit: int) -> int:  # type: ignore[empty-body]
    """Exactly one. Before drafting: how many drafts to ask for, 0..limit (0: a plain decode). By past rounds only."""


@hookspec(firstresult=True)
def sparkwright_scheduler_rests(state: Any) -> bool:  # type: ignore[empty-body]
    """At most one; without it, False. Asked in every round planned without drafts, or given away: whether the next one
    is given away too, whatever becomes of this one. True means no drafts then, no call of `plan`, and that its forward
    begins before this round's token is read. By past rounds only.

    The order, for a scheduler that gives away the three rounds after round 1: `plan` (0), `rests` (True), `learn` |
    `rests` (True), `learn` | `rests` (True), `learn` | `rests` (False), `learn` | `plan`. So `rests` is asked before
    `learn` is told of the round at hand, and may go by a count of plain rounds that `learn` keeps: such a count is one
    short of what it will be when the next round begins. Answer False in the end, or nothing is ever drafted again."""


@hookspec(firstresult=True)
def sparkwright_drafter_draft(state: Any, anchor: int, limit: int, keys: mx.array) -> Draft:  # type: ignore[empty-body]
    """Exactly one. Drafts at most `limit` >= 1 tokens after the anchor (an emitted token not yet observed), lazily.

    keys: uint32 [limit, 2]; draw draft k with `gumbel(keys[k])` over target ids, and with nothing else. Fewer drafts
    than `limit`, or none, are allowed. The whole block is one graph; nothing is read to the host.
    """


@hookspec(firstresult=True)
def sparkwright_scheduler_more(state: Any, depth: int, confidence: float) -> bool:  # type: ignore[empty-body]
    """Exactly one unless the scheduler anticipates. Whether draft number `depth` (from 1) is submitted, given its
    confidence, which does not depend on that draft. Asked in order; the first False ends the block. Asked only if the
    scheduler's facts want confidences and the drafter gave them."""


@hookspec(firstresult=True)
def sparkwright_scheduler_choose(state: Any, confidences: Sequence[float]) -> int:  # type: ignore[empty-body]
    """Exactly one for an anticipating scheduler, instead of `more`: how many of the drafts are submitted."""


@hookspec(firstresult=True)
def sparkwright_target_forward(tokens: mx.array, state: TargetState, logits: Logits) -> Forward:  # type: ignore
    """Exactly one. tokens int32 [r] at positions state.position ..: one call for prefill, decode and verify.

    Inside a transaction the rows are provisional until its commit; outside they are committed at once.
    """


@hookspec(firstresult=True)
def sparkwright_sampler_rows(state: Any, drafts: mx.array) -> Any:
    """Exactly one. The context of n + 1 rows for drafts int32 [n]: row i is every emitted token plus d1..di."""


@hookspec(firstresult=True)
def sparkwright_sampler_distribution(logits: mx.array, context: Any, full: bool) -> Distribution:  # type: ignore
    """Exactly one. logits float32 [r, V] and the context of `rows` -> Distribution, each row a function of its own
    logits and context alone. full: take no shortcut; every row comes back complete."""


@hookspec(firstresult=True)
def sparkwright_verifier_verify(draft: Draft, p: Distribution, keys: Keys) -> Verdict:  # type: ignore[empty-body]
    """Exactly one. draft of n >= 1 tokens, p of n + 1 rows (row i is the distribution of draft i + 1)."""


@hookspec(firstresult=True)
def sparkwright_drafter_observe(state: Any, tokens: Sequence[int], taps: mx.array | None) -> None:
    """Exactly one. Positions that were committed, in order, prompt included, also in rounds without drafts.

    taps: [len(tokens), taps * d] if the drafter's facts name tap layers, else None.
    """


@hookspec(firstresult=True)
def sparkwright_sampler_advance(state: Any, tokens: Sequence[int]) -> Any:
    """Exactly one. The state after these emitted tokens; pure."""


@hookspec(firstresult=True)
def sparkwright_scheduler_learn(state: Any, report: RoundReport) -> None:
    """Exactly one. After each round, those without drafts included."""


@hookspec
def sparkwright_round_finished(trace: RoundTrace) -> None:
    """Observers: a round's numbers. An exception switches the observer off; the request goes on."""


# ==============================================================================================================
# The end of a request
# ==============================================================================================================


@hookspec
def sparkwright_request_finished(result: Result) -> None:
    """Observers: the result, also of a request that was cancelled. An exception switches the observer off."""


@hookspec
def sparkwright_plugin_broken(name: str, error: str) -> None:
    """Observers: another observer raised and was switched off."""


@hookspec
def sparkwright_engine_closed() -> None:
    """Observers: the engine is closed and nothing more will come; the place to close files."""
