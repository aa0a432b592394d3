"""Small tokenizers of the two families: byte-level BPE, and sentencepiece-like with byte fallback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors


def byte_level() -> Tokenizer:
    """All 256 bytes, some merges that end inside a character, and two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)}

    def spelled(data: bytes) -> list[str]:
        # the alphabet's symbol of a byte, learnt from the pre-tokenizer itself
        return [SYMBOLS[b] for b in data]

    merges: list[tuple[str, str]] = []
    for word in (b" h", b"he", b"\xf0\x9f", b"\xe4\xbd", b"a\xe4", b"\xa0b"):
        symbols = spelled(word)
        merges.append((symbols[0], symbols[1]))
        vocabulary["".join(symbols)] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return tokenizer


def _symbols() -> dict[int, str]:
    """The usual byte-to-symbol table of byte-level BPE: printable bytes are themselves, the rest follow from 256."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in printable}
    others = (b for b in range(256) if b not in table)
    return table | {b: chr(256 + i) for i, b in enumerate(others)}


SYMBOLS = _symbols()


def sentencepiece_like(bos: bool = True) -> Tokenizer:
    """Metaspace words, byte fallback for all else, the first space stripped when decoding; BOS before a text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += ["\u2581", "h", "e", "l", "o", "w", "r", "d", "\u2581hello", "\u2581world", "\u2581\u2581", "é"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(Regex(" "), "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return tokenizer


def token(tokenizer: Tokenizer, piece: str) -> int:
    found = tokenizer.token_to_id(piece)
    assert found is not None
    return int(found)


class Plain:
    """The Text contract around a tokenizer, as far as decoding goes."""

    has_chat = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise NotImplementedError

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def write(directory: Path, tokenizer: Tokenizer, config: Mapping[str, Any] | None = None, /, **files: Any) -> Path:
    """A model directory with a tokenizer; further JSON files by their stem."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    for stem, value in {"tokenizer_config": config or {}, **files}.items():
        (directory / f"{stem}.json").write_text(json.dumps(value))
    return directory
