"""What an audit of the law runs on: keys of many trials, drafters that are tables, and a combination of plugins.

Values only; `trials` runs them and `models` makes them from a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import attrs
import mlx.core as mx
import numpy as np
import pluggy

from sparkwright.core import hookspecs
from sparkwright.core.contracts import Dense, Draft, Noise, PointMass, Promise, ProposalKind, Sparse
from sparkwright.core.draw import gumbel_argmax
from sparkwright.core.randomness import Purpose, gumbel, key, stream, words
from sparkwright.core.roles import guarded

Array: TypeAlias = np.ndarray[Any, Any]

# --------------------------------------------------------------------------------------------------------------
# Keys and tables
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class TrialKeys:
    """`Keys` for many trials: seeds uint64 [N], one anchor position; `array` gives uint32 [N, n, 2]."""

    seeds: Array
    anchor: int
    choice: int = 0

    def root(self, purpose: Purpose) -> Array:
        """uint64 [N]. Planted faults override this."""
        root: Array = stream(self.seeds, self.choice, purpose, None if purpose == "target" else self.anchor)
        return root

    def array(self, purpose: Purpose, n: int, first: int = 1) -> mx.array:
        positions = np.arange(self.anchor + first, self.anchor + first + n, dtype=np.uint64)
        return mx.array(words(key(self.root(purpose)[:, None], positions)))


class TrialDrafter(Protocol):
    """A drafter for many trials: `anchor` int32 [N], keys uint32 [N, limit, 2] -> Draft with a leading axis N.

    Its confidence, if it has one, is [N, n], entry k a function of the tokens before draft k."""

    def draft(self, anchor: mx.array, limit: int, keys: mx.array) -> Draft: ...


@attrs.define(eq=False)
class TableDrafter:
    """Drafts from a table by the token before: log_q [V, V] float32, confidence [V] or None.

    kind "dense" draws from the row; "sparse" from its `candidates` largest entries, renormalised; "point" takes the
    largest. `reported`, if given, is the table that the proposal claims instead: a planted fault.
    """

    kind: ProposalKind
    log_q: mx.array
    confidence: mx.array | None = None
    candidates: int = 4
    reported: mx.array | None = None

    def draft(self, anchor: mx.array, limit: int, keys: mx.array) -> Draft:
        table, claim = self.log_q, self.log_q if self.reported is None else self.reported
        vocab = table.shape[-1]
        ids = mx.argsort(-table, axis=-1)[:, : self.candidates].astype(mx.int32)  # [V, k]
        few = mx.take_along_axis(table, ids, axis=-1)
        few = few - mx.logsumexp(few, axis=-1, keepdims=True)
        few_claim = mx.take_along_axis(claim, ids, axis=-1)
        few_claim = few_claim - mx.logsumexp(few_claim, axis=-1, keepdims=True)
        largest = mx.argmax(table, axis=-1).astype(mx.int32)
        last, before, tokens = anchor, [], []
        for k in range(limit):
            before.append(last)
            if self.kind == "dense":
                last = gumbel_argmax(table[last], keys[:, k])
            elif self.kind == "sparse":
                own = ids[last]  # [N, k]
                noise = mx.take_along_axis(gumbel(keys[:, k], vocab), own, axis=-1)
                pick = mx.argmax(few[last] + noise, axis=-1, keepdims=True)
                last = mx.take_along_axis(own, pick, axis=-1)[:, 0]
            else:
                last = largest[last]
            tokens.append(last)
        previous = mx.stack(before, axis=-1)  # [N, n]: the token before each draft
        proposal: Dense | Sparse | PointMass = PointMass()
        if self.kind == "dense":
            proposal = Dense(claim[previous])
        elif self.kind == "sparse":
            proposal = Sparse(ids[previous], few_claim[previous])
        confidence = None if self.confidence is None else self.confidence[previous]
        return Draft(mx.stack(tokens, axis=-1), proposal, confidence)


# --------------------------------------------------------------------------------------------------------------
# What is audited
# --------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False, kw_only=True)
class Subject:
    """A combination of plugins on a small exact model. No negotiation is done here: faulty pairs are wanted too.

    target:      logits [V, V] float32 by the last token
    sampler, verifier, scheduler: what a Provider builds
    noise:       the verifier's facts: which keys the drafter draws with
    confidences, anticipates: the scheduler's facts
    keys:        makes the keys of a round; another class than TrialKeys is a planted fault
    names:       what the plugins are called, by kind; without one, an error names the class
    """

    name: str
    target: mx.array
    sampler: object
    verifier: object
    scheduler: object
    drafter: TrialDrafter
    block: int = 4
    noise: Noise = "draft"
    promise: Promise = "law"
    confidences: bool = False
    anticipates: bool = False
    keys: Callable[[Array, int], Any] = TrialKeys
    names: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def vocab(self) -> int:
        return int(self.target.shape[-1])

    def hooks(self, kind: Literal["sampler", "verifier", "scheduler"]) -> Hooks:
        return Hooks(getattr(self, kind), self.names.get(kind, ""))

    @property
    def one_at_a_time(self) -> tuple[str, ...]:
        """The plugins that do not take leading axes, each as `sampler 'name'`: the audit is much slower for them."""
        roles: tuple[Literal["sampler", "verifier"], ...] = ("sampler", "verifier")
        return tuple(f"{role} '{self.hooks(role).name}'" for role in roles if not self.hooks(role).batched)


class Hooks:
    """The hook callers of one object, through pluggy: methods may leave out arguments, as they may in the engine, and
    an exception says whose it is, as there. `batched`: it takes leading axes."""

    def __init__(self, plugin: object, name: str = "") -> None:
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(plugin)
        self.name = name or type(plugin).__name__
        self.hook = _Guarded(manager, self.name)
        self.batched = bool(getattr(plugin, "leading_axes", False))


class _Guarded:
    """Each hook caller as an attribute; what a plugin raises comes out as a PluginError that names plugin and hook."""

    def __init__(self, manager: pluggy.PluginManager, name: str) -> None:
        self._manager, self._name = manager, name

    def __getattr__(self, hook: str) -> Callable[..., Any]:
        kind = hook.removeprefix("sparkwright_").partition("_")[0]
        call = guarded(getattr(self._manager.hook, hook), kind, self._name, hook)
        setattr(self, hook, call)
        return call
