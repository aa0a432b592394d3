"""Pieces of text join to the decoded whole, and never show half a character."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.text.tokenizers_for_tests import SYMBOLS, Plain, byte_level, sentencepiece_like, token
from tokenizers import Tokenizer

from sparkwright.core.text import Detokenizer

BYTE_LEVEL = byte_level()
PIECES = sentencepiece_like()
VOCABULARY = st.integers(0, BYTE_LEVEL.get_vocab_size() - 1)


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    detokenizer = Detokenizer(Plain(tokenizer))
    return [*(detokenizer.push(t) for t in ids), detokenizer.finish()]


def byte_ids(data: bytes) -> list[int]:
    return [token(BYTE_LEVEL, SYMBOLS[b]) for b in data]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.lists(VOCABULARY, max_size=80))
@example(byte_ids(b"\xff" * 70))
@example(byte_ids(b"\xff\xf0\x9f\x98\x80" * 9))
@example(byte_ids(b"\xf0" * 40 + b"\x9f\x98\x80"))
def test_pieces_of_random_tokens_join_to_the_decoded_whole(ids: list[int]) -> None:
    assert "".join(pieces_of(BYTE_LEVEL, ids)) == Plain(BYTE_LEVEL).decode(ids)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=40))
def test_every_byte_as_a_token_of_its_own_shows_no_replacement_character(text: str) -> None:
    text = text.replace("\ufffd", "")
    pieces = pieces_of(BYTE_LEVEL, byte_ids(text.encode()))
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(["hello", " world", " ", "é", "你好", "😀", "  ", "h", "</s>", "𝔘x"]), max_size=20))
def test_pieces_of_a_sentencepiece_decoder_join_to_the_decoded_whole(words: list[str]) -> None:
    ids = Plain(PIECES).encode("".join(words))
    pieces = pieces_of(PIECES, ids)
    assert "".join(pieces) == Plain(PIECES).decode(ids)
    assert not any("\ufffd" in piece for piece in pieces)


def test_spaces_that_a_decoder_strips_at_the_start_of_a_text_are_kept_in_the_middle() -> None:
    world, special = token(PIECES, "\u2581world"), token(PIECES, "</s>")
    assert pieces_of(PIECES, [world, world, special, world]) == ["world", " world", "", " world", ""]


def test_invalid_bytes_of_a_byte_fallback_decoder_are_shown_after_a_bounded_wait() -> None:
    ids = [token(PIECES, f"<0x{b:02X}>") for b in b"\xe4\xbd\xa0" + b"\xff" * 60]
    detokenizer = Detokenizer(Plain(PIECES))
    shown = "".join(detokenizer.push(t) for t in ids)
    assert shown.startswith("你")
    assert len(shown) >= 1 + 60 - Detokenizer.HOLD
    assert set(shown[1:] + detokenizer.finish()) == {"\ufffd"}


def test_text_is_out_as_soon_as_its_characters_are_complete() -> None:
    tokenizer = BYTE_LEVEL
    ids = Plain(tokenizer).encode("hello 你好 world")
    detokenizer = Detokenizer(Plain(tokenizer))
    out = ""
    for i, t in enumerate(ids):
        out += detokenizer.push(t)
        assert out == Plain(tokenizer).decode(ids[: i + 1]).rstrip("\ufffd")
    assert detokenizer.finish() == ""


class _Counting(Plain):
    longest = 0

    def decode(self, ids: Sequence[int]) -> str:
        self.longest = max(self.longest, len(ids))
        return super().decode(ids)


@pytest.mark.parametrize("data", [b"\xff" * 400, b"\xf0\x9f\x98" * 130, b"abc" * 100], ids=["ff", "cut", "ascii"])
def test_a_push_looks_at_a_bounded_number_of_tokens(data: bytes) -> None:
    text = _Counting(BYTE_LEVEL)
    detokenizer = Detokenizer(text)
    for t in byte_ids(data):
        detokenizer.push(t)
    assert text.longest <= 2 * Detokenizer.WINDOW + 2


def test_a_long_run_of_tokens_without_text_does_not_pile_up() -> None:
    text = _Counting(BYTE_LEVEL)
    detokenizer = Detokenizer(text)
    special = token(BYTE_LEVEL, "</s>")
    ids = [*byte_ids(b"he"), *[special] * 300, *byte_ids("é".encode())]
    assert "".join(detokenizer.push(t) for t in ids) + detokenizer.finish() == "heé"
    assert text.longest <= 2 * Detokenizer.WINDOW + 2
