"""A typed front for each slot: binds the hook callers of the one plugin that fills it, once, and nothing else.

What a Provider builds is registered on its engine's plugin manager; the engine only ever calls the methods here, so
that call sites have types and an exception inside a plugin comes out as one sentence that names plugin and hook.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pluggy

from sparkwright.core import hookspecs
from sparkwright.core.contracts import (
    Dense,
    Distribution,
    Draft,
    DrafterFacts,
    Forward,
    Logits,
    PointMass,
    Resources,
    RoundReport,
    SamplerFacts,
    SchedulerFacts,
    Sparse,
    TargetFacts,
    TargetState,
    Text,
    Verdict,
    VerifierFacts,
)
from sparkwright.core.errors import HookError, PluginError, SparkwrightError
from sparkwright.core.plugins import unfit_hooks
from sparkwright.core.randomness import Keys

if TYPE_CHECKING:
    import mlx.core as mx


def new_manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def register(manager: pluggy.PluginManager, plugin: object, kind: str, name: str) -> None:
    """Register a built plugin; a hook it misspells or whose arguments do not fit is a HookError naming it."""
    try:
        manager.register(plugin, name=f"{kind}:{name}")
        manager.check_pending()
    except (pluggy.PluginValidationError, ValueError) as error:
        raise HookError(f"{kind} plugin '{name}' has hooks that do not fit: {unfit_hooks(manager, error)}") from error


def guarded(call: Callable[..., Any], kind: str, name: str, what: str) -> Callable[..., Any]:
    """`call`, with a foreign exception turned into a PluginError that says whose it is."""

    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except SparkwrightError:
            raise
        except (Exception, SystemExit) as error:
            raise PluginError(f"{kind} plugin '{name}' raised in {what}: {type(error).__name__}: {error}") from error

    return run


class _Role:
    """Base: finds exactly one implementation of a hook, from the plugin of this role."""

    kind: str

    def __init__(self, manager: pluggy.PluginManager, name: str) -> None:
        self.name = name
        self._manager = manager

    def _bind(self, method: str) -> Callable[..., Any]:
        hook = f"sparkwright_{self.kind}_{method}"
        caller: pluggy.HookCaller = getattr(self._manager.hook, hook)
        owners = [impl.plugin_name for impl in caller.get_hookimpls()]
        if owners != [f"{self.kind}:{self.name}"]:
            found = f"comes from {', '.join(owners)}" if owners else "is implemented by nobody"
            raise HookError(
                f"{self.kind} plugin '{self.name}': its hook {hook} {found}; exactly it must implement it"
            )
        return guarded(caller, self.kind, self.name, hook)

    def _bind_optional(self, method: str) -> Callable[..., Any] | None:
        """As `_bind`, for a hook that a plugin may leave out."""
        caller: pluggy.HookCaller = getattr(self._manager.hook, f"sparkwright_{self.kind}_{method}")
        return self._bind(method) if caller.get_hookimpls() else None


_PROPOSALS: dict[str, type] = {"dense": Dense, "sparse": Sparse, "point": PointMass}


class Target(_Role):
    """The model whose distribution counts. `load_target` gives one without an engine."""

    kind = "target"

    def __init__(self, manager: pluggy.PluginManager, name: str, facts: TargetFacts) -> None:
        super().__init__(manager, name)
        self.facts = facts
        self._forward = self._bind("forward")
        self._new_state = self._bind("new_state")
        self.reference = self._bind_optional("reference")
        self.resources: Resources = self._bind("resources")()
        self.text: Text = self._bind("text")()
        if self.resources is None or self.text is None:
            missing = "resources" if self.resources is None else "text"
            raise PluginError(f"target plugin '{name}': sparkwright_target_{missing} returned None")
        # The target is its own Text, with the tokenizer's exceptions named like any other of the plugin's.
        self.encode = guarded(self.text.encode, self.kind, name, "its tokenizer")
        # looked up when it is called: who never looks for words needs no such method
        self.encode_part = guarded(lambda text: self.text.encode_part(text), self.kind, name, "its tokenizer")
        self.decode = guarded(self.text.decode, self.kind, name, "its tokenizer")
        self.encode_chat = guarded(self.text.encode_chat, self.kind, name, "its chat template")
        # A state's own methods are the plugin's too: what they raise must say whose it is.
        self.begin = guarded(lambda state: state.begin(), self.kind, name, "TargetState.begin")
        self.commit = guarded(lambda transaction, m: transaction.commit(m), self.kind, name, "Transaction.commit")
        self.abort = guarded(lambda transaction: transaction.abort(), self.kind, name, "Transaction.abort")
        self.position = guarded(lambda state: state.position, self.kind, name, "TargetState.position")

    @property
    def has_chat(self) -> bool:
        return self.text.has_chat

    def new_state(self) -> TargetState:
        """An empty state at position 0."""
        state: TargetState = self._new_state()
        return state

    def forward(self, tokens: mx.array, state: TargetState, logits: Logits = "all") -> Forward:
        """tokens int32 [r] after what the state holds -> logits float32 [r, V] (or [1, V], or None) and taps."""
        forward = self._forward(tokens=tokens, state=state, logits=logits)
        if not isinstance(forward, Forward):
            raise PluginError(f"target plugin '{self.name}' returned {type(forward).__name__}, expected a Forward")
        rows = {"all": tokens.shape[0], "last": 1, "none": 0}[logits]
        shape = None if forward.logits is None else tuple(forward.logits.shape)
        if rows and shape != (rows, self.facts.vocab_size):
            raise PluginError(
                f"target plugin '{self.name}' gave logits of shape {shape} for {tokens.shape[0]} tokens and "
                f"logits = {logits!r}, expected {(rows, self.facts.vocab_size)}"
            )
        return forward


class Drafter(_Role):
    kind = "drafter"

    def __init__(self, manager: pluggy.PluginManager, name: str, facts: DrafterFacts) -> None:
        super().__init__(manager, name)
        self.facts = facts
        self._start, self._observe = self._bind("start"), self._bind("observe")
        self._draft = self._bind("draft") if facts.block else None

    def start(self, prompt: Sequence[int], shape: Callable[[mx.array], mx.array]) -> Any:
        return self._start(prompt=prompt, shape=shape)

    def draft(self, state: Any, anchor: int, limit: int, keys: mx.array) -> Draft:
        assert self._draft is not None  # nobody plans drafts for a block of 0
        draft = self._draft(state=state, anchor=anchor, limit=limit, keys=keys)
        if not isinstance(draft, Draft):
            raise PluginError(f"drafter plugin '{self.name}' returned {type(draft).__name__}, expected a Draft")
        if len(draft) > limit:
            raise PluginError(f"drafter plugin '{self.name}' gave {len(draft)} drafts, its limit was {limit}")
        # A block may always be called deterministic: given its tokens, that claim is true whatever drew them.
        if not isinstance(draft.proposal, (PointMass, _PROPOSALS[self.facts.proposal])):
            raise PluginError(
                f"drafter plugin '{self.name}' gave a {type(draft.proposal).__name__} proposal, its facts say "
                f"{self.facts.proposal}"
            )
        if draft.confidence is not None and draft.confidence.shape[-1] != len(draft):
            raise PluginError(
                f"drafter plugin '{self.name}' gave {draft.confidence.shape[-1]} confidences for {len(draft)} drafts"
            )
        return draft

    def observe(self, state: Any, tokens: Sequence[int], taps: mx.array | None) -> None:
        self._observe(state=state, tokens=tokens, taps=taps)


class Scheduler(_Role):
    kind = "scheduler"

    def __init__(self, manager: pluggy.PluginManager, name: str, facts: SchedulerFacts) -> None:
        super().__init__(manager, name)
        self.facts = facts
        self._start, self._plan, self._learn = (self._bind(m) for m in ("start", "plan", "learn"))
        self._choose = self._bind("choose") if facts.anticipates else None
        self._more = self._bind("more") if facts.confidences and not facts.anticipates else None
        self._rests = self._bind_optional("rests")

    def start(self) -> Any:
        return self._start()

    def plan(self, state: Any, limit: int) -> int:
        plan = self._plan(state=state, limit=limit)
        if not isinstance(plan, int) or not 0 <= plan <= limit:
            raise PluginError(f"scheduler plugin '{self.name}' planned {plan!r} drafts, expected 0..{limit}")
        return plan

    def rests(self, state: Any) -> bool:
        """Whether the round after this one, which was planned without drafts, is sure to have none either."""
        return self._rests is not None and bool(self._rests(state=state))

    def submit(self, state: Any, confidences: Sequence[float]) -> int:
        """How many drafts are submitted: replayed one by one, so that a decision never sees a later confidence."""
        if self._choose is not None:
            chosen = self._choose(state=state, confidences=confidences)
            if not isinstance(chosen, int) or not 0 <= chosen <= len(confidences):
                raise PluginError(f"scheduler plugin '{self.name}' chose {chosen!r}, expected 0..{len(confidences)}")
            return chosen
        assert self._more is not None
        for depth, confidence in enumerate(confidences, start=1):
            if not self._more(state=state, depth=depth, confidence=confidence):
                return depth - 1
        return len(confidences)

    def learn(self, state: Any, report: RoundReport) -> None:
        self._learn(state=state, report=report)


class Sampler(_Role):
    kind = "sampler"

    def __init__(self, manager: pluggy.PluginManager, name: str, facts: SamplerFacts) -> None:
        super().__init__(manager, name)
        self.facts = facts
        self._start, self._rows, self._distribution, self._advance, self._shape = (
            self._bind(m) for m in ("start", "rows", "distribution", "advance", "shape")
        )

    def start(self, prompt: Sequence[int]) -> Any:
        return self._start(prompt=prompt)

    def rows(self, state: Any, drafts: mx.array) -> Any:
        return self._rows(state=state, drafts=drafts)

    def distribution(self, logits: mx.array, context: Any, full: bool = False) -> Distribution:
        p = self._distribution(logits=logits, context=context, full=full)
        if not isinstance(p, Distribution):
            raise PluginError(f"sampler plugin '{self.name}' returned {type(p).__name__}, expected a Distribution")
        return p

    def advance(self, state: Any, tokens: Sequence[int]) -> Any:
        return self._advance(state=state, tokens=tokens)

    def shape(self, logits: mx.array) -> mx.array:
        log_q: mx.array = self._shape(logits=logits)
        return log_q


class Verifier(_Role):
    kind = "verifier"

    def __init__(self, manager: pluggy.PluginManager, name: str, facts: VerifierFacts) -> None:
        super().__init__(manager, name)
        self.facts = facts
        self._verify = self._bind("verify")

    def verify(self, draft: Draft, p: Distribution, keys: Keys) -> Verdict:
        verdict = self._verify(draft=draft, p=p, keys=keys)
        if not isinstance(verdict, Verdict):
            raise PluginError(f"verifier plugin '{self.name}' returned {type(verdict).__name__}, expected a Verdict")
        if tuple(verdict.array.shape) != (3 + len(draft),):
            raise PluginError(
                f"verifier plugin '{self.name}' gave a verdict of shape {tuple(verdict.array.shape)} for {len(draft)} "
                f"drafts, expected ({3 + len(draft)},)"
            )
        return verdict


class Observers:
    """Everybody who watches, each on a manager of its own: one that raises is reported and switched off."""

    def __init__(self, plugins: Sequence[tuple[str, object]] = ()) -> None:
        self._watching: dict[str, pluggy.PluginManager] = {}
        self.warnings: list[str] = []
        for name, plugin in plugins:
            self.add(name, plugin)

    def add(self, name: str, plugin: object) -> None:
        manager = new_manager()
        register(manager, plugin, "observer", name)
        self._watching[name] = manager

    def tell(self, hook: str, **arguments: Any) -> None:
        """Call `sparkwright_<hook>` on each observer."""
        for name, manager in list(self._watching.items()):
            try:
                getattr(manager.hook, f"sparkwright_{hook}")(**arguments)
            except (Exception, SystemExit) as error:
                del self._watching[name]
                text = f"{type(error).__name__}: {error}"
                self.warnings.append(
                    f"observer plugin '{name}' raised in sparkwright_{hook} and was switched off: {text}"
                )
                self.tell("plugin_broken", name=name, error=text)

    def __bool__(self) -> bool:
        return bool(self._watching)
