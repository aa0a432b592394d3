"""Toy plugins whose behaviour is known exactly: a Markov target, table drafters, drafters that are wrong on purpose.

They cost next to nothing and need no files, so an engine can be assembled from a dict in a test, in an audit or in a
notebook: `load_config({...}, catalogue=discover().with_providers(markov_target(table), ...))`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from sparkwright.core.contracts import (
    Dense,
    Distribution,
    Draft,
    DrafterFacts,
    Forward,
    Logits,
    NoOptions,
    PointMass,
    Proposal,
    ProposalKind,
    Provider,
    Resources,
    SamplerFacts,
    Site,
    Sparse,
    TargetFacts,
)
from sparkwright.core.errors import RequestError
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx
    import numpy as np

Table: TypeAlias = "list[list[float]] | np.ndarray[Any, Any]"


# --------------------------------------------------------------------------------------------------- targets


@attrs.frozen
class ToyText:
    """Token i is the character 'a' + i (past 'z' it goes on through Unicode); 'a' is 0.

    bos: the token that stands before a prompt and shows as nothing, as many models have one; None for none.
    """

    bos: int | None = None

    def encode(self, text: str) -> list[int]:
        return self.encode_part(text) if self.bos is None else [self.bos, *self.encode_part(text)]

    def encode_part(self, text: str) -> list[int]:
        return [ord(c) - ord("a") for c in text]

    has_chat = False

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise RequestError("the toy target has no chat format")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(ord("a") + i) for i in ids if i != self.bos)


@attrs.define(eq=False)
class ToyState:
    """Holds the committed tokens, so that a test can compare what the target has with what it should have."""

    tokens: list[int] = attrs.field(factory=list)
    open: bool = False
    start: int = 0

    @property
    def position(self) -> int:
        return self.start if self.open else len(self.tokens)

    def begin(self) -> ToyState:
        if self.open:
            raise RuntimeError("a transaction is already open")
        self.open, self.start = True, len(self.tokens)
        return self

    def commit(self, m: int) -> None:
        rows = len(self.tokens) - self.start
        if not self.open or not 0 <= m <= rows:
            raise RuntimeError(f"commit({m}) of {rows} rows, open={self.open}")
        del self.tokens[self.start + m :]
        self.open = False

    def abort(self) -> None:
        self.commit(0)


@attrs.define(eq=False)
class MarkovTarget:
    """The next token depends on the last one only: logits of a row are `table[token]` (float32 [V, V])."""

    table: Any
    taps: tuple[int, ...] = ()
    bos: int | None = None
    states: list[ToyState] = attrs.field(factory=list)

    @hookimpl
    def sparkwright_target_resources(self) -> Resources:
        import mlx.core as mx

        identity = mx.eye(self.table.shape[0])
        return Resources(embed=lambda tokens: identity[tokens], head=lambda hidden: hidden @ self.table)

    @hookimpl
    def sparkwright_target_text(self) -> ToyText:
        return ToyText(self.bos)

    @hookimpl
    def sparkwright_target_new_state(self) -> ToyState:
        self.states.append(ToyState())
        return self.states[-1]

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: ToyState, logits: Logits) -> Forward:
        import mlx.core as mx
        import numpy as np

        # The toy keeps its tokens on the host, which a real target never does; it reads them by another way than the
        # engine's, so the engine's count of transfers stays the engine's.
        state.tokens += np.array(tokens).tolist()
        rows = {"all": tokens, "last": tokens[-1:], "none": None}[logits]
        taps = mx.concatenate([mx.eye(self.table.shape[0])[tokens]] * len(self.taps), axis=-1) if self.taps else None
        return Forward(None if rows is None else self.table[rows], taps)


def markov_target(
    table: Table,
    *,
    name: str = "markov",
    context: int = 1 << 20,
    eos: tuple[int, ...] = (),
    rollback: str | None = "exact",
    build: Callable[[MarkovTarget], object] | None = None,
    layers: int = 1,
    bos: int | None = None,
) -> Provider:
    """A target from a table of logits [V, V]; row t holds the logits after token t. build: wraps what is built.

    bos: the token before every raw prompt."""

    def make(_: Any, site: Site) -> object:
        import mlx.core as mx

        target = MarkovTarget(mx.array(table, dtype=mx.float32), site.taps, bos)
        return target if build is None else build(target)

    size = len(table)
    facts = TargetFacts(size, context, size, layers, eos, "markov", rollback, fingerprint=f"markov{size}")
    return Provider(kind="target", name=name, summary="toy: a Markov chain", build=make, describe=lambda _, site: facts)


# -------------------------------------------------------------------------------------------------- drafters


@attrs.define(eq=False)
class TableDrafter:
    """Drafts from a table of its own: row t holds log q after token t. Keeps what it observed, for tests."""

    log_q: Any  # [V, V] float32, normalised
    proposal: ProposalKind
    taps: bool = False
    confidences: tuple[float, ...] = ()
    states: list[list[int]] = attrs.field(factory=list)

    @hookimpl
    def sparkwright_drafter_start(self, prompt: Sequence[int]) -> list[int]:
        self.states.append([])
        return self.states[-1]

    @hookimpl
    def sparkwright_drafter_draft(self, state: list[int], anchor: int, limit: int, keys: mx.array) -> Draft:
        import mlx.core as mx

        from sparkwright.core.randomness import gumbel

        size = self.log_q.shape[0]
        noise = gumbel(keys, size)  # [limit, V]
        token, tokens, rows = mx.array(anchor), [], []
        for k in range(limit):
            row = self.log_q[token]
            token = mx.argmax(row if self.proposal == "point" else row + noise[k])
            tokens.append(token)
            rows.append(row)
        log_q = mx.stack(rows)
        kinds: dict[ProposalKind, Callable[[], Proposal]] = {
            "dense": lambda: Dense(log_q),
            "sparse": lambda: _sparse(log_q),
            "point": PointMass,
        }
        confidence = mx.array(self.confidences[:limit]) if self.confidences else None
        return Draft(mx.stack(tokens).astype(mx.int32), kinds[self.proposal](), confidence)

    @hookimpl
    def sparkwright_drafter_observe(self, state: list[int], tokens: Sequence[int]) -> None:
        state += tokens


def _sparse(log_q: mx.array) -> Sparse:
    """Every token with mass, in a shuffled order: ids need not be sorted."""
    import mlx.core as mx

    order = mx.argsort(-log_q, axis=-1)[:, ::-1]
    return Sparse(order.astype(mx.int32), mx.take_along_axis(log_q, order, axis=-1))


def table_drafter(
    table: Table,
    *,
    name: str = "table",
    proposal: ProposalKind = "dense",
    block: int = 5,
    confidences: tuple[float, ...] = (),
    target_noise: bool = False,
    **facts: Any,
) -> Provider:
    """A drafter from a table of logits [V, V]; `facts` go into its DrafterFacts."""

    def build(_: Any, site: Site) -> TableDrafter:
        import mlx.core as mx

        logits = mx.array(table, dtype=mx.float32)
        return TableDrafter(logits - mx.logsumexp(logits, axis=-1, keepdims=True), proposal, confidences=confidences)

    described = DrafterFacts(
        block=block, proposal=proposal, vocab_size=len(table), confidence=bool(confidences), target_noise=target_noise,
        **facts,
    )  # fmt: skip
    return Provider(
        kind="drafter", name=name, summary="toy: drafts from a table", build=build, describe=lambda _, site: described
    )


@attrs.define(eq=False)
class RandomDrafter:
    """Deliberately terrible: drafts are uniform over the vocabulary, whatever came before."""

    vocab_size: int

    @hookimpl
    def sparkwright_drafter_start(self) -> None:
        return None

    @hookimpl
    def sparkwright_drafter_draft(self, limit: int, keys: mx.array) -> Draft:
        import mlx.core as mx

        from sparkwright.core.randomness import uniform

        tokens = (uniform(keys, 1).reshape(limit) * self.vocab_size).astype(mx.int32)
        return Draft(tokens, PointMass())

    @hookimpl
    def sparkwright_drafter_observe(self) -> None:
        return None


def random_drafter(*, name: str = "random", block: int = 7) -> Provider:
    def build(_: Any, site: Site) -> RandomDrafter:
        assert site.target is not None
        return RandomDrafter(site.target.vocab_size)

    return Provider(
        kind="drafter",
        name=name,
        summary="toy: uniform drafts",
        build=build,
        describe=lambda _, site: DrafterFacts(block=block),
    )


# -------------------------------------------------------------------------------------------------- samplers


@attrs.define(eq=False)
class PlainSampler:
    """softmax(logits / temperature), nothing else; 0 is greedy. The readable reference of what a sampler must do."""

    temperature: float = 1.0

    def _log_p(self, logits: mx.array) -> mx.array:
        import mlx.core as mx

        if self.temperature == 0:
            hit = mx.arange(logits.shape[-1]) == mx.argmax(logits, axis=-1, keepdims=True)
            return mx.where(hit, 0.0, float("-inf"))
        scaled = logits / self.temperature
        return scaled - mx.logsumexp(scaled, axis=-1, keepdims=True)

    @hookimpl
    def sparkwright_sampler_start(self) -> None:
        return None

    @hookimpl
    def sparkwright_sampler_rows(self) -> None:
        return None

    @hookimpl
    def sparkwright_sampler_advance(self) -> None:
        return None

    @hookimpl
    def sparkwright_sampler_shape(self, logits: mx.array) -> mx.array:
        return self._log_p(logits)

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array) -> Distribution:
        import mlx.core as mx

        finite = mx.isfinite(mx.max(logits, axis=-1))
        flags = mx.where(finite, 0, 4).astype(mx.int32)
        mode = mx.argmax(logits, axis=-1).astype(mx.int32) if self.temperature == 0 else None
        return Distribution(self._log_p(logits), flags, mode)


def plain_sampler(temperature: float = 1.0, *, name: str = "plain") -> Provider:
    return Provider(
        kind="sampler",
        name=name,
        summary="toy: softmax with a temperature",
        options=NoOptions,
        build=lambda _, site: PlainSampler(temperature),
        describe=lambda _, site: SamplerFacts(deterministic=temperature == 0),
    )
