"""Target `my_plugin`: a toy that counts through its characters.

That is the template's; say here what yours is, and what it is not.

The contract: `sparkwright_target_*` in sparkwright.core.hookspecs; `Forward`, `TargetState`, `Transaction`, `Text`,
`Resources`, `TargetFacts` in sparkwright.core.contracts. Importing this module must not import MLX; methods may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
from sparkwright.core.contracts import Forward, Logits, NoOptions, Provider, Resources, Site, TargetFacts
from sparkwright.core.errors import RequestError
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx

FIRST, SIZE = 32, 95
"""Token i is the printable ASCII character FIRST + i."""


class Characters:
    """The tokenizer (contracts.Text). sparkwright.core.text.TokenizerText reads a model folder's tokenizer.json."""

    has_chat = False

    def encode(self, text: str) -> list[int]:
        if not all(FIRST <= ord(character) < FIRST + SIZE for character in text):
            raise RequestError(
                "prompt: target my_plugin knows printable ASCII only; leave the rest out"
            )
        return [ord(character) - FIRST for character in text]

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text)  # with a BOS, `encode` has it in front and this has not

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise RequestError("target my_plugin has no chat format; send a raw prompt")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(FIRST + i) for i in ids)


@attrs.define(eq=False)
class State:
    """One sequence, and its own transaction. A model with caches keeps lengths and takes rows back by trimming."""

    position: int = 0  # committed positions
    rows: int | None = None  # forwarded since `begin`; None outside of a transaction

    def begin(self) -> State:
        if self.rows is not None:
            raise RuntimeError("begin: a transaction is already open; commit or abort it first")
        self.rows = 0
        return self

    def commit(self, m: int) -> None:
        """Keep the first m of the rows forwarded since `begin`."""
        if self.rows is None or not 0 <= m <= self.rows:
            raise RuntimeError(f"commit({m}): expected at most {self.rows or 0} rows")
        self.position, self.rows = self.position + m, None

    def abort(self) -> None:
        self.commit(0)


@attrs.define(eq=False)
class Target:
    table: mx.array  # float32 [SIZE, SIZE]: logits of the next token by the last one

    @hookimpl
    def sparkwright_target_text(self) -> Characters:
        return Characters()

    @hookimpl
    def sparkwright_target_resources(self) -> Resources:
        """What drafters may use: the embedding, and the head that turns a hidden state into logits."""
        import mlx.core as mx

        one_hot = mx.eye(SIZE)
        return Resources(embed=lambda tokens: one_hot[tokens], head=lambda hidden: hidden @ self.table)

    @hookimpl
    def sparkwright_target_new_state(self) -> State:
        return State()

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: State, logits: Logits) -> Forward:
        """tokens int32 [r], the positions after what the state holds: prefill, decode and verify are this one call.

        Row i may depend on what the state holds and on tokens[: i + 1], and on nothing after that. Do not read tokens
        to the host: the round waits for it.
        """
        r = tokens.shape[0]
        if state.rows is None:
            state.position += r
        else:
            state.rows += r
        if logits == "none":
            return Forward(None, None)
        return Forward(self.table[tokens if logits == "all" else tokens[-1:]], None)


def describe(options: NoOptions, site: Site) -> TargetFacts:
    """From configs and headers only (site.model is the model's folder); nothing is loaded yet."""
    return TargetFacts(
        vocab_size=SIZE,
        context=1 << 20,
        hidden=SIZE,
        layers=1,
        eos=(),
        model_type="my_plugin",
        rollback="trim",  # how rows are taken back, in words; None if they cannot be
        tappable=False,
        fingerprint="my_plugin-1",  # another one for other weights
    )


def build(options: NoOptions, site: Site) -> Target:
    import mlx.core as mx

    here = mx.arange(SIZE)
    return Target(4.0 * (here == (here[:, None] + 1) % SIZE).astype(mx.float32))


@hookimpl
def sparkwright_register_targets() -> list[Provider]:
    return [
        Provider(
            kind="target",
            name="my_plugin",
            summary="a toy that counts through its characters",
            build=build,
            describe=describe,
        )
    ]
