"""Text in and out of token ids: a model directory's tokenizer, text as it arrives, and stop strings.

Runs no code from a checkpoint: `tokenizer.json` is read by the `tokenizers` library, and the chat template, which is a
program, runs in Jinja's immutable sandbox with bounded loops and sizes (core/chat.py). Knows nothing of MLX, of models
or of what a token costs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
from tokenizers import Tokenizer

from sparkwright.core.chat import ChatTemplate
from sparkwright.core.contracts import Text
from sparkwright.core.errors import ModelError, RequestError

REPLACEMENT = "\ufffd"

# --------------------------------------------------------------------------------------------------------------
# Text as it arrives
# --------------------------------------------------------------------------------------------------------------


class Detokenizer:
    """Text of tokens as they come, without U+FFFD from characters that are split over tokens.

    The pieces of `push` and `finish` join to `text.decode(all tokens)` (with byte-fallback decoders, which answer one
    invalid byte by giving up the whole run of bytes, as long as the bytes are valid UTF-8).

    How: a window of tokens, cut where a piece ended cleanly into `context`, whose text is out, and `pending`. Decoding
    both together and dropping the context's text keeps the spaces that decoders strip at the start of a text. Of the
    pending text a tail of at most HOLD replacement characters is held back, since it may be the beginning of a
    character; everything before is final.
    """

    HOLD = 3
    """An unfinished character shows as one U+FFFD, or as one for each of its (at most three) bytes."""
    WINDOW = 24
    """Pending tokens from which on the window is cut where that changes nothing, so that a push has a bounded cost."""

    def __init__(self, text: Text) -> None:
        self._decode = text.decode
        self._context: list[int] = []
        self._context_text = ""
        self._pending: list[int] = []
        self._pending_text = ""
        self._shown = 0  # characters of the pending text that are out

    def push(self, token: int) -> str:
        """The text that this token makes final; often all of its own, sometimes none."""
        self._pending.append(token)
        before, self._pending_text = self._pending_text, self._tail()
        text = self._pending_text
        if len(self._pending) > self.WINDOW and text == before:
            self._pending.pop()  # one more of a long run of tokens without text
        clean = text.rstrip(REPLACEMENT)
        final = max(len(clean), len(text) - self.HOLD)
        piece = text[self._shown : final]
        self._shown = max(self._shown, final)
        if piece and final == len(text):
            self._context, self._pending = self._pending, []
            self._context_text, self._pending_text, self._shown = self._decode(self._context), "", 0
        elif len(self._pending) > self.WINDOW:
            self._cut()
        return piece

    def finish(self) -> str:
        """What was held back, replacement characters included; the detokeniser is empty afterwards."""
        piece = self._pending_text[self._shown :]
        self._context, self._pending = [], []
        self._context_text, self._pending_text, self._shown = "", "", 0
        return piece

    def _tail(self) -> str:
        text = self._decode(self._context + self._pending)
        if text.startswith(self._context_text):
            return text[len(self._context_text) :]
        # A byte-fallback decoder took back a run of bytes whose text is out: judge the new ones by themselves.
        return self._decode(self._pending)

    def _cut(self) -> None:
        """Moves the start of a long pending run of replacement characters into the context, where it is stable."""
        for at in range(len(self._pending) - self.HOLD - 1, 0, -1):
            left, right = self._decode(self._pending[:at]), self._decode(self._pending[at:])
            if 0 < len(left) <= self._shown and left + right == self._pending_text:
                self._context, self._pending = self._pending[:at], self._pending[at:]
                self._context_text, self._pending_text = left, right
                self._shown -= len(left)
                return


class StopScanner:
    """Cuts text before the first stop string that completes, and never lets a beginning of one through.

    First means: whose last character comes first; of two that end together, the longer one. So the outcome does not
    depend on how the text was split into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for stop in stops:
            if not stop:
                raise RequestError("stop strings: an empty string was given, which every text contains; leave it out")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = ""
        self._done = False

    def push(self, piece: str) -> tuple[str, bool]:
        """(text safe to print, whether a stop string was completed by this piece or before)."""
        if self._done or not self._stops:
            return ("", True) if self._done else (piece, False)
        text = self._held + piece
        ends = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            self._held, self._done = "", True
            return text[: min(ends)[1]], True
        keep = next(
            (k for k in range(min(len(text), max(map(len, self._stops)) - 1), 0, -1) if self._may_start(text[-k:])),
            0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def finish(self) -> str:
        """The text held back, when the end came before a stop string was complete."""
        held, self._held = self._held, ""
        return held

    def _may_start(self, suffix: str) -> bool:
        return any(stop.startswith(suffix) for stop in self._stops)


# --------------------------------------------------------------------------------------------------------------
# A model directory's tokenizer
# --------------------------------------------------------------------------------------------------------------


def read_json(path: Path, required: bool = False) -> dict[str, Any]:
    """A JSON object from a file of a model directory; {} if it is missing and not required. ModelError otherwise."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        if not required:
            return {}
        if not path.parent.is_dir():
            raise ModelError(f"{path.parent}: no such model directory") from None
        raise ModelError(f"{path}: missing; is {path.parent} a complete model directory?") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:
        raise ModelError(f"{path}: not valid JSON ({error}); fetch the file again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def special_token(config: Mapping[str, Any], name: str) -> str | None:
    """The string of a special token such as "bos_token", written as a string or as an added-token object."""
    value = config.get(name)
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def eos_ids(directory: Path) -> tuple[int, ...]:
    """Ids that end a text: generation_config.json's, or else config.json's, and the tokenizer's own; sorted.

    Reads JSON only. The tokenizer's end of turn is often missing from config.json, so both kinds count.
    """
    config = read_json(directory / "config.json")
    nested = config.get("text_config")
    sources = [
        read_json(directory / "generation_config.json"),
        config,
        nested if isinstance(nested, dict) else {},
    ]
    found: set[int] = set()
    for source in sources:
        value = source.get("eos_token_id")
        if value is None or value == []:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
            raise ModelError(f"{directory}: eos_token_id is {value!r}; expected a token id or a list of them")
        found.update(ids)
        break
    tokenizer_config = read_json(directory / "tokenizer_config.json")
    token = special_token(tokenizer_config, "eos_token")
    if token is not None and (own := _added_id(directory, tokenizer_config, token)) is not None:
        found.add(own)
    return tuple(sorted(found))


def _added_id(directory: Path, tokenizer_config: Mapping[str, Any], token: str) -> int | None:
    added = tokenizer_config.get("added_tokens_decoder")
    if isinstance(added, Mapping):
        for key, entry in added.items():
            if isinstance(entry, Mapping) and entry.get("content") == token and str(key).isdigit():
                return int(key)
    for entry in read_json(directory / "tokenizer.json").get("added_tokens") or []:
        if isinstance(entry, dict) and entry.get("content") == token and isinstance(entry.get("id"), int):
            return int(entry["id"])
    return None


@attrs.define(eq=False)
class TokenizerText(Text):
    """The `Text` contract from a model directory: tokenizer.json, tokenizer_config.json, chat_template.jinja.

    A raw prompt gets the tokens that the tokenizer puts before a text (BOS), never those it puts after one (EOS), and
    no second BOS if the prompt starts with its own. A conversation gets exactly what its template writes.
    """

    directory: Path
    tokenizer: Tokenizer
    config: Mapping[str, Any]
    prefix: tuple[int, ...]
    eos: tuple[int, ...]
    limit: int | None = None

    @classmethod
    def load(cls, directory: Path | str, limit: int | None = None) -> TokenizerText:
        """ModelError if the tokenizer is missing, damaged or of another format.

        limit: the model's vocabulary; a prompt with a token beyond it is refused (some tokenizers have such tokens).
        """
        directory = Path(directory)
        path = directory / "tokenizer.json"
        read_json(path, required=True)
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise ModelError(f"{path}: the tokenizers library cannot read it ({error})") from None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        config = {
            **read_json(directory / "special_tokens_map.json"),
            **read_json(directory / "tokenizer_config.json"),
        }
        return cls(directory, tokenizer, config, _prefix(directory, tokenizer, config), eos_ids(directory), limit)

    @property
    def vocab_size(self) -> int:
        """Tokens known to the tokenizer; a model's vocabulary may be padded beyond it."""
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The compiled chat template, or None if the directory has none. ModelError if it is not valid Jinja."""
        return ChatTemplate.load(self.directory, self.config)

    @property
    def has_chat(self) -> bool:
        return self.template is not None

    def encode(self, text: str) -> list[int]:
        ids = self._ids(text)
        bos = special_token(self.config, "bos_token")
        own = bos is not None and text.startswith(bos)
        return ids if own else [*self.prefix, *ids]

    def encode_part(self, text: str) -> list[int]:
        return self._ids(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        if self.template is None:
            raise RequestError(
                f"{self.directory}: the model has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json); send a raw prompt instead"
            )
        tokens = {
            name: token
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
            if (token := special_token(self.config, name)) is not None
        }
        return self._ids(self.template.render(messages, tokens))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _ids(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError("prompt: contains lone surrogates, which are not text; give valid UTF-8") from None
        ids = list(self.tokenizer.encode(text, add_special_tokens=False).ids)
        if self.limit is not None and ids and max(ids) >= self.limit:
            piece = self.tokenizer.id_to_token(max(ids))
            raise RequestError(
                f"prompt: the token {piece!r} (id {max(ids)}) is beyond this model's vocabulary of {self.limit}; "
                "leave it out"
            )
        return ids


def _prefix(directory: Path, tokenizer: Tokenizer, config: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens before every raw prompt: what the post-processor adds, corrected by an explicit `add_bos_token`."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    prefix: list[int] = []
    for token, special in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
        if not special:
            break
        prefix.append(token)
    wanted = config.get("add_bos_token")
    bos = special_token(config, "bos_token")
    if not isinstance(wanted, bool) or bos is None:
        return tuple(prefix)
    bos_id = tokenizer.token_to_id(bos)
    if bos_id is None:
        if wanted:
            raise ModelError(f"{directory}: bos_token {bos!r} of tokenizer_config.json is not in tokenizer.json")
        return tuple(prefix)
    others = [token for token in prefix if token != bos_id]
    return (bos_id, *others) if wanted else tuple(others)
