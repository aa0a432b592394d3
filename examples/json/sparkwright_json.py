"""Sampler `json`: the text can only become one JSON value. Temperature, and no other filter.

It shows explicit sampler state. The state is what must still come, a stack of the grammar's symbols as a tuple. Being a
value it forks for free: `rows` gives each position of a block its own, with the drafts before it applied, and `advance`
is pure. RULES is the grammar; another one that decides by the next character is another table.

Masks are made on the host, from the drafts' ids: `SamplerFacts(host=True)` declares the transfer that this costs in
every round with drafts. A row after a draft that the grammar excludes can never be emitted, so nothing is cut there.
After a whole value only an end-of-sequence token may come; if the target has none, nothing is cut any more: set
max_tokens. White space is one optional space after ':' and ','. The prompt is not part of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs
from sparkwright.core.contracts import NON_FINITE, Distribution, Provider, SamplerFacts, Site, Text, option
from sparkwright.core.errors import PluginError
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx

State: TypeAlias = tuple[str, ...] | None
"""Symbols that must still come, the next one first; None after a text that no JSON begins with. A symbol of one
character is that character; others are in RULES."""

DIGITS = "0123456789"
MEMBER = ("text", ":", "space", "value", "members")
RULES: dict[str, dict[str, tuple[str, ...]]] = {  # symbol -> characters that may come -> what comes after them
    "value": {
        '"': ("text",), "{": ("object",), "[": ("array",), "-": ("whole",), "0": ("point",), "123456789": ("digits",),
        "t": tuple("rue"), "f": tuple("alse"), "n": tuple("ull"),
    },
    "whole": {"0": ("point",), "123456789": ("digits",)},
    "digits": {DIGITS: ("digits",), ".": ("digit", "fraction"), "eE": ("exponent",)},
    "point": {".": ("digit", "fraction"), "eE": ("exponent",)},
    "fraction": {DIGITS: ("fraction",), "eE": ("exponent",)},
    "exponent": {"+-": ("digit", "more"), DIGITS: ("more",)},
    "digit": {DIGITS: ()},
    "more": {DIGITS: ("more",)},
    "text": {'"': (), "\\": ("escape", "text"), "": ("text",)},  # "" is any other character but control characters
    "escape": {'"\\/bfnrt': (), "u": ("hex",) * 4},
    "hex": {DIGITS + "abcdefABCDEF": ()},
    "space": {" ": ()},
    "object": {"}": (), '"': MEMBER},
    "members": {"}": (), ",": ("space", '"', *MEMBER)},
    "elements": {"]": (), ",": ("space", "value", "elements")},
}  # fmt: skip
RULES["array"] = {"]": ()} | {first: (*after, "elements") for first, after in RULES["value"].items()}
OPTIONAL = {"digits", "point", "fraction", "more", "space"}


def step(state: State, text: str) -> State:
    """The state after a piece of text."""
    for character in text:
        while state:
            symbol, state = state[0], state[1:]
            rules = RULES.get(symbol, {symbol: ()})
            fits = [after for first, after in rules.items() if character in first or not (first or character < " ")]
            if fits:
                state = fits[0] + state
                break
            if symbol not in OPTIONAL:
                return None
        else:
            return None  # nothing more may come
    return state


def complete(state: State) -> bool:
    return state is not None and OPTIONAL.issuperset(state)


@attrs.frozen
class Options:
    start: Literal["value", "object", "array"] = option("value", "what the text must be")
    temperature: float = option(1.0, "divides the logits; 1e-5 and below is greedy", attrs.validators.ge(0.0))

    @property
    def greedy(self) -> bool:
        return self.temperature <= 1e-5


@attrs.define(eq=False)
class Sampler:
    """pieces: what each token adds to a text, "" for those that may never come; masks: those made so far."""

    options: Options
    pieces: Sequence[str]
    eos: Sequence[int]
    masks: dict[State, mx.array] = attrs.field(factory=dict)

    @hookimpl
    def sparkwright_sampler_start(self) -> State:
        return {"value": ("value",), "object": ("{", "object"), "array": ("[", "array")}[self.options.start]

    @hookimpl
    def sparkwright_sampler_rows(self, state: State, drafts: mx.array) -> mx.array:
        import mlx.core as mx

        tokens: Any = drafts.tolist()  # the declared transfer
        states = [state]
        for token in tokens:
            states.append(self.after(states[-1], token))
        return mx.stack([self.mask(s) for s in states])  # bool [n + 1, V]

    @hookimpl
    def sparkwright_sampler_advance(self, state: State, tokens: Iterable[int]) -> State:
        for token in tokens:
            state = self.after(state, token)
        return state

    @hookimpl
    def sparkwright_sampler_shape(self, logits: mx.array) -> mx.array:
        import mlx.core as mx

        if self.options.greedy:
            best = mx.arange(logits.shape[-1]) == mx.argmax(logits, axis=-1, keepdims=True)
            return mx.where(best, 0.0, -mx.inf)
        x = logits.astype(mx.float32) / self.options.temperature
        return x - mx.logsumexp(x, axis=-1, keepdims=True)

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, context: mx.array) -> Distribution:
        import mlx.core as mx

        x = mx.where(context, logits.astype(mx.float32), -mx.inf)
        none = mx.max(x, axis=-1) == -mx.inf
        bad = none | mx.any(mx.isnan(logits) | (logits == mx.inf), axis=-1)  # also where the grammar cuts it
        mode = mx.argmax(x, axis=-1).astype(mx.int32) if self.options.greedy else None
        return Distribution(self.sparkwright_sampler_shape(x), (bad * NON_FINITE).astype(mx.int32), mode)

    def after(self, state: State, token: int) -> State:
        return step(state, self.pieces[token]) if self.pieces[token] else None

    def mask(self, state: State) -> mx.array:
        """bool [V]: the tokens that may come next."""
        import mlx.core as mx

        if state not in self.masks:
            first = {c for c in {piece[:1] for piece in self.pieces} if c and step(state, c) is not None}
            allowed = [piece[:1] in first and step(state, piece) is not None for piece in self.pieces]
            for token in self.eos:
                allowed[token] = complete(state)
            if not any(allowed) and state and not complete(state):
                raise PluginError(f"sampler 'json': this vocabulary has no token that may come where {state[0]} must")
            self.masks[state] = mx.array(allowed) if any(allowed) else mx.ones(len(allowed), dtype=mx.bool_)
        return self.masks[state]


def pieces(text: Text, size: int) -> list[str]:
    """What each token adds to a text, decoded after another one: decoders drop a space in front. "" for half characters
    and for tokens without text."""
    first = text.encode_part("a")[-1:]
    lead = len(text.decode(first))
    found = [text.decode([*first, token])[lead:] for token in range(size)]
    return ["" if "\ufffd" in piece else piece for piece in found]


def describe(options: Options, site: Site) -> SamplerFacts:
    return SamplerFacts(deterministic=options.greedy, host=True)


def build(options: Options, site: Site) -> Sampler:
    if site.text is None or site.target is None:
        raise PluginError("sampler 'json' needs the target's tokenizer: build it in an engine, or give site.text")
    return Sampler(options, pieces(site.text, site.target.vocab_size), site.target.eos)


@hookimpl
def sparkwright_register_samplers() -> list[Provider]:
    return [
        Provider(
            kind="sampler",
            name="json",
            summary="only texts that are JSON",
            build=build,
            describe=describe,
            options=Options,
        )
    ]
