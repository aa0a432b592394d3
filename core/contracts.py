"""The value types and protocols that plugins exchange: data and signatures, no behaviour of an engine.

All arrays are `mlx.core.array`. Letters: n drafts of a block, r rows of a forward (r = n + 1 in a verify), V the
target's vocabulary, d its hidden size. This module imports MLX for type checking only, so that a plugin's metadata can
be read without touching a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import attrs

if TYPE_CHECKING:
    import mlx.core as mx

HOOK_API = 1
"""Version of the hook specifications; a Provider for a newer one is refused by name."""

WIDEST_VERIFY = 8
"""The most rows (anchor + drafts) of one verify; kernels cover rows 1..WIDEST_VERIFY."""

Kind: TypeAlias = Literal["target", "drafter", "scheduler", "verifier", "sampler", "kernels", "observer"]
KINDS: tuple[Kind, ...] = ("target", "drafter", "scheduler", "verifier", "sampler", "kernels", "observer")

ProposalKind: TypeAlias = Literal["dense", "sparse", "point"]
Noise: TypeAlias = Literal["draft", "target"]
Logits: TypeAlias = Literal["all", "last", "none"]

Promise: TypeAlias = Literal["identity", "identity-up-to-ties", "law", "lossy"]
PROMISES: tuple[Promise, ...] = ("identity", "identity-up-to-ties", "law", "lossy")
"""Strongest first; docs/promises.md says what each means."""

# --------------------------------------------------------------------------------------------------------------
# What a round passes from hand to hand
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Dense:
    """q over the whole vocabulary: `log_q` [n, V] float32, normalised, exactly what each draft was drawn from."""

    log_q: mx.array


@attrs.frozen(eq=False)
class Sparse:
    """q over k candidates a row: `ids` [n, k] int32 (target ids, distinct in a row), `log_q` [n, k] float32."""

    ids: mx.array
    log_q: mx.array


@attrs.frozen(eq=False)
class PointMass:
    """Deterministic drafts: q is one at the drafted token."""


Proposal: TypeAlias = Dense | Sparse | PointMass


@attrs.frozen(eq=False)
class Draft:
    """A block of drafts, still on the device. The audit gives every array leading axes, one entry for each trial.

    tokens:     [n] int32, target ids
    proposal:   what they were drawn from
    confidence: [n] float32 in [0, 1] or None; entry k is a function of the tokens before k only
    """

    tokens: mx.array
    proposal: Proposal
    confidence: mx.array | None = None

    def __len__(self) -> int:
        return int(self.tokens.shape[-1])

    def first(self, m: int) -> Draft:
        """The block cut to its first m drafts; q past the cut is gone, so nobody can look at it."""
        if m == len(self):
            return self
        match self.proposal:
            case Dense(log_q=log_q):
                proposal: Proposal = Dense(log_q[..., :m, :])
            case Sparse(ids=ids, log_q=log_q):
                proposal = Sparse(ids[..., :m, :], log_q[..., :m, :])
            case PointMass():
                proposal = self.proposal
        return Draft(
            self.tokens[..., :m], proposal, None if self.confidence is None else self.confidence[..., :m]
        )


INCOMPLETE = 1
"""Flag: a truncation shortcut did not suffice for a row; the engine repeats the round's verification in full."""
EMPTY_RESIDUAL = 2
"""Flag: p - q had no positive mass; the correction was drawn from p. Counted."""
NON_FINITE = 4
"""Flag: a row's logits hold a NaN or +inf, or no finite value at all. An error."""


@attrs.frozen(eq=False)
class Distribution:
    """The target's distribution after the whole sampler chain, one row for each position.

    log_p: [r, V] float32, normalised; -inf where a filter cut. The only thing tokens are ever drawn from.
    flags: [r] int32, any of INCOMPLETE and NON_FINITE
    mode:  [r] int32, the only possible token of each row when the sampler is deterministic, else None
           (log_p then is 0 there and -inf elsewhere; it is lazy, so who needs only the mode pays nothing for it)
    """

    log_p: mx.array
    flags: mx.array
    mode: mx.array | None = None


@attrs.frozen(eq=False)
class Verdict:
    """A round's outcome, read by the engine in one transfer.

    array:      [3 + n] int32: accepted, next token, flags, d1..dn
    acceptance: [n] float32 probability with which each draft was accepted, or None; read only by those who ask
    """

    array: mx.array
    acceptance: mx.array | None = None


@attrs.frozen(eq=False)
class Forward:
    """What a target gives for r rows.

    logits: [r, V] float32 for "all", [1, V] for "last" (the last row), None for "none"
    taps:   [r, taps * d] the outputs of the tapped layers, concatenated in the order they were asked for, or None
    """

    logits: mx.array | None
    taps: mx.array | None


@attrs.frozen
class RoundReport:
    """What a scheduler learns after a round. A round cut by a stop rule has `cut` set: its acceptance is censored."""

    planned: int
    drafted: int
    submitted: int
    accepted: int
    confidences: tuple[float, ...]
    cut: bool


# --------------------------------------------------------------------------------------------------------------
# States
# --------------------------------------------------------------------------------------------------------------


@runtime_checkable
class Transaction(Protocol):
    """All rows forwarded since `begin`; ends with exactly one commit or abort."""

    def commit(self, m: int) -> None:
        """Keep the first m of the r rows forwarded since begin (0 <= m <= r), drop the rest."""

    def abort(self) -> None:
        """Drop all of them: commit(0)."""


@runtime_checkable
class TargetState(Protocol):
    """One sequence's caches. Outside a transaction a forward commits at once."""

    @property
    def position(self) -> int:
        """Committed positions, which is the absolute position of the next token to be forwarded."""

    def begin(self) -> Transaction: ...


class Text(Protocol):
    """A target's tokenizer, as much of it as engines and plugins need; a plugin finds it as `Site.text` in `build`."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the model's own prefix tokens (BOS) where it has them."""

    def encode_part(self, text: str) -> list[int]:
        """Token ids of words inside a text: no prefix tokens. What a plugin looks for, or drafts, it encodes with this.

        Words after a space mostly have other tokens than at the start: encode them with the space in front."""

    @property
    def has_chat(self) -> bool:
        """Whether `encode_chat` can answer."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the assistant's answer. RequestError if there is no chat format."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; special tokens are left out. Incomplete characters come as U+FFFD."""


# --------------------------------------------------------------------------------------------------------------
# Facts: what a Provider says about its plugin before anything is loaded (from configs and headers only)
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen
class TargetFacts:
    """vocab_size tokens, `context` positions at most, hidden size and layers (for taps), EOS ids, and what it can do.

    rollback: how a transaction takes rows back, in words ("trim", "snapshot", ...), or None: it cannot, and the
    assembly refuses drafters. fingerprint: a short hash of what the model is (config and tensor headers). drafter: the
    drafter plugin made for this checkpoint, which `drafter.use = "auto"` takes. turns: positions about which what a row
    attends to changes its kind (a window is full, rows are compressed, a top-k chooses); audits go around them.
    """

    vocab_size: int
    context: int
    hidden: int
    layers: int
    eos: tuple[int, ...]
    model_type: str
    rollback: str | None
    tappable: bool = True
    row_exact: bool = False
    weight_bytes: int = 0
    fingerprint: str = ""
    drafter: str = ""
    turns: tuple[int, ...] = ()


@attrs.frozen
class DrafterFacts:
    """block: most drafts at once (0: never drafts). vocab_size: None for any. taps: target layers whose outputs it
    reads (-1 is the embedding). context: positions it can go to,
    None for no limit. target_noise: draws its drafts with the
    keys it is given in such a way that `target` keys raise agreement (asked for by coupled verification)."""

    block: int
    proposal: ProposalKind = "point"
    vocab_size: int | None = None
    taps: tuple[int, ...] = ()
    confidence: bool = False
    context: int | None = None
    target_noise: bool = False


@attrs.frozen
class SchedulerFacts:
    """confidences: wants the drafter's confidences on the host (one more transfer). anticipates: implements `choose`
    and sees later confidences before it decides on an earlier draft; refused with a verifier that needs causality.
    costs: decides by `Site.costs`, and results say so where they were not measured, or where it did not draft."""

    confidences: bool = False
    anticipates: bool = False
    costs: bool = False


@attrs.frozen
class VerifierFacts:
    """causal: correct only if "draft k is submitted" never depended on draft k itself. noise: which keys a drafter
    draws with. deterministic_only: needs a sampler without randomness (greedy). deterministic_promise: what it promises
    when the sampler is deterministic."""

    promise: Promise
    proposals: frozenset[ProposalKind] = frozenset({"dense", "sparse", "point"})
    causal: bool = True
    noise: Noise = "draft"
    deterministic_only: bool = False
    deterministic_promise: Promise = "identity-up-to-ties"


@attrs.frozen
class SamplerFacts:
    """deterministic: every row has one possible token. host: needs drafts on the host (a grammar): a transfer more."""

    deterministic: bool = False
    host: bool = False


Facts: TypeAlias = TargetFacts | DrafterFacts | SchedulerFacts | VerifierFacts | SamplerFacts | None


# --------------------------------------------------------------------------------------------------------------
# Kernel ops
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Choice:
    """What each row of an op's call took, named so that calls of other sizes compare: index [r, k] integers, -1 for
    none. scores [r, n] float32: what decided, index being each row's largest; None where rounding decides nothing."""

    index: mx.array
    scores: mx.array | None = None


@attrs.frozen
class OpSpec:
    """An operation that a kernel backend may implement.

    name:      unique, e.g. "attend_rows"
    reference: "package.module:function" of its meaning, in plain MLX ops; what `unfused` returns. Its first argument is
               an array whose first axis is the rows.
    summary:   one line
    choices:   "package.module:function" (position of the first row, result, *arguments) -> {name: Choice}, for ops that
               choose or are told which rows to read; audits of consistency compare these. "" for none
    """

    name: str
    reference: str
    summary: str
    choices: str = ""


Settle: TypeAlias = Callable[[str, int, str, Any, Any], Any]
"""What a target's reference shows its choices to: settle(op, call, what, index, scores) -> index to go on with.

op, what: as in OpSpec.choices; call: which call of that op in a forward, in whose order they come. index [n, k]: NumPy,
what each position takes, -1 for none; scores [n, m]: what decided, index being the largest, or None. The answer is the
same index, or the target's own one where the two are nearly tied."""

Op: TypeAlias = Callable[..., Any]


class SelectKernel(Protocol):
    def __call__(self, op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        """The callable for op: the first backend's that covers it for up to WIDEST_VERIFY rows, the reference for more.

        dtype: activations ("float32", "bfloat16", "float16"); format: weights ("float32", "bfloat16", "mxfp4",
        "mxfp8", "affine4", ...; "" where the op has none); widths: the sizes that fix the kernel, op by op."""


# --------------------------------------------------------------------------------------------------------------
# Providers
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Resources:
    """What a target lends to the drafter's build.

    embed: tokens [n] -> [n, d];  head: hidden [n, d] (normed) -> logits [n, V] float32;  checkpoint: the target's open
    checkpoint (a family's own type), or None.
    """

    embed: Callable[[mx.array], mx.array]
    head: Callable[[mx.array], mx.array]
    checkpoint: Any = None


@attrs.frozen
class CostCurves:
    """Seconds measured beforehand for this model, machine and versions; frozen at assembly and part of the config hash.

    plain: one decode without drafter; verify[i]: a verify of i + 1 rows, i = 0..7; draft: a block of the drafter.
    temperatures: Sequential Temperature Scaling of the confidences, empty for none.
    """

    plain: float
    verify: tuple[float, ...]
    draft: float
    temperatures: tuple[float, ...] = ()


def _no_progress(what: str, done: int, total: int) -> None:
    return None


@attrs.frozen(eq=False, kw_only=True)
class Site:
    """Where a plugin is described and built: what is known of its surroundings at that moment.

    model: the slot's own `model` key. target: the target's facts (None while the target itself is described). taps: the
    layers the target is asked to give out. resources, text: the target's, once it is built (None in `describe`).
    select: kernel selection, for plugins with ops. store: read-only weights that engines of one process may share,
    `store(key, load)` loads once a key.
    progress(what, done, total): reports anything over a second. costs: measured curves, for schedulers.
    """

    model: Path | None = None
    device: str = "cpu"
    target: TargetFacts | None = None
    drafter: DrafterFacts | None = None
    taps: tuple[int, ...] = ()
    resources: Resources | None = None
    text: Text | None = None
    select: SelectKernel | None = None
    store: Callable[[Any, Callable[[], Any]], Any] | None = None
    progress: Callable[[str, int, int], None] = _no_progress
    row_exact: bool = False
    force: bool = False
    costs: CostCurves | None = None


@attrs.frozen
class NoOptions:
    """A plugin without options."""


@attrs.frozen(eq=False, kw_only=True)
class Provider:
    """A plugin, as data. Making one must not import MLX or touch a device; `build` may.

    kind, name:  the slot it fills and the name `use` calls it by
    summary:     one line for `plugins list`
    build:       (options, site) -> object whose methods are the run-time hook implementations of its kind
    describe:    (options, site) -> the Facts of its kind, from configs and headers only (None for kernels, observers)
    options:     attrs class of its options; every field carries `metadata={"help": ...}`
    requires, provides: free-form capability names, matched at assembly beside the facts
    ops:         operations it computes through kernel backends
    tools:       "package.module:function" by name, for targets: what `sparkwright models` calls (core/cli/models.py)
    hook_api:    the HOOK_API it was written for
    recognises:  for targets: model folder -> 0 (not mine), 1 (could load it) or 2 (made for it); what `target.use =
                 "auto"` goes by. Reads config.json at most.
    bundled:     for targets: the folder of a model that ships with the plugin, or None if it is not there; taken when
                 no model is named
    """

    kind: Kind
    name: str
    summary: str
    build: Callable[[Any, Site], object]
    describe: Callable[[Any, Site], Facts] | None = None
    options: type = NoOptions
    requires: frozenset[str] = frozenset()
    provides: frozenset[str] = frozenset()
    ops: tuple[OpSpec, ...] = ()
    tools: Mapping[str, str] = attrs.field(factory=dict)
    hook_api: int = HOOK_API
    recognises: Callable[[Path], int] | None = None
    bundled: Callable[[], Path | None] | None = None


def option(default: Any, help: str, validator: Any = None) -> Any:
    """An attrs field of an options class with its help text: `n: int = option(3, "longest n-gram")`.

    default:    of the annotated type; a list or a dict is copied for each instance
    help:       one line, for `plugins show` and the reference; required
    validator:  an attrs validator, e.g. attrs.validators.in_(range(1, 8))
    annotation: bool, int, float, str, Literal[...] of these, tuple[T, ...], tuple[T, U], list[T], dict[str, T], and
                any of them or None. A list of TOML or of `--set key=["a", "b"]` becomes a tuple where one is annotated;
                a whole number becomes a float; nothing else is converted.
    """
    metadata = {"help": help}
    if isinstance(default, (list, dict, set)):
        return attrs.field(factory=lambda: type(default)(default), metadata=metadata, validator=validator)
    return attrs.field(default=default, metadata=metadata, validator=validator)
