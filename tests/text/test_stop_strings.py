"""Stop strings: the text is cut where the first one completes, and no part of one is let through."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkwright.core.errors import RequestError
from sparkwright.core.text import StopScanner

AB = st.text(alphabet="ab", max_size=6)


def by_definition(stops: list[str], pieces: list[str]) -> tuple[str, int | None]:
    """The text before the stop string whose end comes first (the longest of those), and the piece that completed it."""
    text = "".join(pieces)
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            seen = 0
            for index, piece in enumerate(pieces):
                seen += len(piece)
                if seen >= end:
                    return text[: end - max(map(len, ending))], index
    return text, None


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.lists(AB.filter(bool), max_size=4), st.lists(AB, max_size=10))
def test_scanning_piece_by_piece_is_the_definition(stops: list[str], pieces: list[str]) -> None:
    expected, when = by_definition(stops, pieces)
    scanner = StopScanner(stops)
    out, done_at = "", None
    for index, piece in enumerate(pieces):
        safe, done = scanner.push(piece)
        out += safe
        assert expected.startswith(out), "something of a stop string was printed"
        if done and done_at is None:
            done_at = index
        assert done == (done_at is not None)
    assert done_at == when
    assert out + scanner.finish() == expected


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(AB.filter(bool), min_size=1, max_size=4), st.lists(AB, max_size=10))
def test_nothing_is_held_back_that_cannot_begin_a_stop_string(stops: list[str], pieces: list[str]) -> None:
    scanner = StopScanner(stops)
    seen = out = ""
    for piece in pieces:
        safe, done = scanner.push(piece)
        if done:
            return
        seen, out = seen + piece, out + safe
        held = seen[len(out) :]
        longest = max(
            (k for k in range(len(seen) + 1) if any(s.startswith(seen[len(seen) - k :]) for s in stops)), default=0
        )
        assert len(held) == longest


def test_without_stop_strings_text_passes_through() -> None:
    scanner = StopScanner([])
    assert scanner.push("abc") == ("abc", False)
    assert scanner.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty string"):
        StopScanner(["a", ""])
