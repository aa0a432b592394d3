"""Target `trigram`: a toy language model over ASCII characters that has counted a text file. It has no weights to load.

It is small enough to be read at once and does all that a target must: logits of every row from one call, rows in a
transaction that can be taken back, a tokenizer, and what it lends to drafters. Its model is the next character by the
two before it, leaning on the one before where those two are rare. It can be wrong about everything but its contract.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from sparkwright.core.contracts import Forward, Logits, NoOptions, Provider, Resources, Site, TargetFacts
from sparkwright.core.errors import ModelError, RequestError
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx

SIZE = 128  # tokens are ASCII codes
END = 0  # the text ends here


class Ascii:
    """The tokenizer (contracts.Text): one token a character."""

    has_chat = False

    def encode(self, text: str) -> list[int]:
        if not text.isascii():
            raise RequestError("prompt: the trigram target knows ASCII characters only; leave the others out")
        return list(text.encode())

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text)  # nothing is put before a prompt

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise RequestError("the trigram target has no chat format; send a raw prompt instead")

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr(i) for i in ids if i != END)


@attrs.define(eq=False)
class State:
    """All this model remembers of a text: its last two tokens. It is its own transaction."""

    last: mx.array  # int32 [2] on the device, never read to the host; zeros before the text
    position: int = 0
    rows: mx.array | None = None  # int32 [r]: forwarded since `begin` and not yet kept; None outside of a transaction

    def begin(self) -> State:
        import mlx.core as mx

        if self.rows is not None:
            raise RuntimeError("begin: a transaction is already open; commit or abort it first")
        self.rows = mx.zeros((0,), dtype=mx.int32)
        return self

    def commit(self, m: int) -> None:
        import mlx.core as mx

        if self.rows is None or not 0 <= m <= self.rows.shape[0]:
            raise RuntimeError(f"commit({m}): there are {None if self.rows is None else self.rows.shape[0]} rows open")
        self.last = mx.concatenate([self.last, self.rows[:m]])[-2:]
        self.position += m
        self.rows = None

    def abort(self) -> None:
        self.commit(0)


@attrs.define(eq=False)
class Target:
    log_p: mx.array  # float32 [SIZE, SIZE, SIZE]: by the token before the last, the last, the next

    @hookimpl
    def sparkwright_target_text(self) -> Ascii:
        return Ascii()

    @hookimpl
    def sparkwright_target_resources(self) -> Resources:
        import mlx.core as mx

        one_hot = mx.eye(SIZE)  # a "hidden state" is the last token; the head answers as if nothing came before it
        return Resources(embed=lambda tokens: one_hot[tokens], head=lambda hidden: hidden @ self.log_p[END])

    @hookimpl
    def sparkwright_target_new_state(self) -> State:
        import mlx.core as mx

        return State(mx.zeros((2,), dtype=mx.int32))

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: State, logits: Logits) -> Forward:
        import mlx.core as mx

        known = state.last if state.rows is None else mx.concatenate([state.last, state.rows])
        text = mx.concatenate([known[-2:], tokens])  # [2 + r]
        if state.rows is None:  # outside of a transaction rows are kept at once
            state.last, state.position = text[-2:], state.position + tokens.shape[0]
        else:
            state.rows = mx.concatenate([state.rows, tokens])
        if logits == "none":
            return Forward(None, None)
        before, last = text[1:-1], text[2:]  # [r] each: the two tokens that a row's next one depends on
        rows = slice(None) if logits == "all" else slice(-1, None)
        return Forward(self.log_p[before[rows], last[rows]], None)


def corpus(site: Site) -> bytes:
    """The text that was counted: the file `target.model`, or else this module's own source."""
    path = Path(__file__) if site.model is None else site.model
    try:
        return path.read_text(encoding="utf-8").encode("ascii", "ignore").replace(b"\0", b"") + bytes([END])
    except (OSError, ValueError) as error:
        raise ModelError(f"target.model: {path} cannot be read as a text file ({error}); name one") from None


def describe(options: NoOptions, site: Site) -> TargetFacts:
    return TargetFacts(
        vocab_size=SIZE, context=1 << 20, hidden=SIZE, layers=1, eos=(END,), model_type="trigram", rollback="trim",
        tappable=False, row_exact=True, weight_bytes=4 * SIZE**3,
        fingerprint=hashlib.sha256(corpus(site)).hexdigest()[:16],
    )  # fmt: skip


def build(options: NoOptions, site: Site) -> Target:
    import mlx.core as mx
    import numpy as np

    text: Any = np.frombuffer(corpus(site), dtype=np.uint8)
    two, three = np.zeros((SIZE, SIZE)), np.zeros((SIZE, SIZE, SIZE))
    np.add.at(two, (text[:-1], text[1:]), 1)
    np.add.at(three, (text[:-2], text[1:-1], text[2:]), 1)
    by_one = (two + 0.01) / (two.sum(axis=-1, keepdims=True) + 0.01 * SIZE)
    by_two = (three + by_one) / (three.sum(axis=-1, keepdims=True) + 1)
    return Target(mx.array(np.log(by_two), dtype=mx.float32))


@hookimpl
def sparkwright_register_targets() -> list[Provider]:
    return [
        Provider(
            kind="target",
            name="trigram",
            summary="a toy: the next character by the last two, counted in a text file",
            build=build,
            describe=describe,
        )
    ]
