"""Stop rules alone against a brute-force definition, in the engine, and what is counted when they cut a round."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
from tests.core.engines import letters, merged, near, rounds_observer, table, toy_engine

from sparkwright.core.errors import RequestError
from sparkwright.core.generation import RequestInfo, Result, RoundTrace, StopRules
from sparkwright.core.testing import toys

# ------------------------------------------------------------------------------------------------ StopRules alone


class Bytes:
    """Each token is a byte: characters are split over tokens, and broken ones come as U+FFFD."""

    has_chat = False

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        raise RequestError("no chat")

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


def request(stop: tuple[str, ...] = (), eos: frozenset[int] = frozenset(), **limits: int) -> RequestInfo:
    sizes = {"max_tokens": 10**6, "context": 10**6} | limits
    return RequestInfo((1, 2, 3), sizes["max_tokens"], 0, 0, stop, eos, sizes["context"])


def definition(tokens: list[int], asked: RequestInfo, text: Any) -> tuple[int, str, str | None]:
    """(tokens kept, text, finish): the first prefix at which a rule holds, the rules asked in their order."""
    room = asked.context - len(asked.prompt)
    for m in range(1, len(tokens) + 1):
        prefix = tokens[:m]
        if prefix[-1] in asked.eos:
            return m, cut(text.decode(prefix[:-1]), asked.stop), "eos"
        whole = text.decode(prefix)
        if cut(whole, asked.stop) != whole and (m == asked.max_tokens or m == room or whole[-1:] != "\ufffd"):
            return m, cut(whole, asked.stop), "stop"
        if m == asked.max_tokens:
            return m, whole, "max_tokens"
        if m == room:
            return m, whole, "context"
    return len(tokens), text.decode(tokens), None


def cut(text: str, stops: tuple[str, ...]) -> str:
    """Before the stop string whose end comes first; of two that end together, the longer."""
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    return text[: min(ends)[1]] if ends else text


@pytest.mark.parametrize("seed", range(4))
def test_stop_rules_are_their_definition_however_the_tokens_are_cut_into_rounds(seed: int) -> None:
    rng = random.Random(seed)
    finishes = set()
    for _ in range(400):
        tokens = [rng.choice(b"abcde") for _ in range(rng.randrange(1, 25))]
        stops = tuple("".join(rng.choice("abc") for _ in range(rng.randrange(1, 5))) for _ in range(rng.randrange(3)))
        eos = frozenset(b"e") if rng.random() < 0.5 else frozenset()
        limits = {}
        if rng.random() < 0.5:
            limits["max_tokens"] = rng.randrange(1, 25)
        if rng.random() < 0.5:
            limits["context"] = 3 + rng.randrange(1, 25)
        asked = request(stops, eos, **limits)
        kept, text, finish = definition(tokens, asked, Bytes())
        emitted: list[int] = []
        rules, shown, at = StopRules(asked, Bytes()), "", 0
        while at < len(tokens) and rules.finish is None:
            step = rng.randrange(1, 8)
            piece = rules.keep(tokens[at : at + step])
            assert rules.finish is not None or len(piece.tokens) == len(tokens[at : at + step])
            shown, at = shown + piece.text, at + step
            emitted += piece.tokens
            assert text.startswith(shown)  # nothing is shown that is not in the text
        assert emitted == rules.tokens == tokens[:kept]
        assert rules.finish == finish
        if finish is None:
            shown += rules.cancel().text
        assert shown == rules.text == text
        finishes.add(finish)
    assert finishes == {"eos", "stop", "max_tokens", "context", None}


@pytest.mark.parametrize("seed", range(3))
def test_characters_split_over_tokens_are_never_half_shown(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(150):
        whole = "".join(rng.choice("aé漢😀b") for _ in range(rng.randrange(1, 12)))
        stops = tuple("".join(rng.choice("aé漢b") for _ in range(rng.randrange(1, 3))) for _ in range(rng.randrange(2)))
        rules, shown = StopRules(request(stops), Bytes()), ""
        for token in whole.encode():
            shown += rules.keep([token]).text
            assert "\ufffd" not in shown
            if rules.finish:
                break
        expected = cut(whole, stops)
        assert rules.finish == ("stop" if expected != whole else None)
        if rules.finish is None:
            shown += rules.cancel().text
        assert shown == rules.text == expected


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    rules = StopRules(request(max_tokens=3), Bytes())
    assert rules.keep(list("a漢".encode())[:3]).text == "a\ufffd"
    assert rules.finish == "max_tokens"


def test_a_stop_string_completed_by_what_was_held_back_is_a_stop() -> None:
    rules = StopRules(request(("\ufffd",), max_tokens=2), Bytes())
    assert rules.keep([ord("a"), 0xE6]).text == "a"
    assert rules.finish == "stop"


def test_a_beginning_of_a_stop_string_is_held_back_and_shown_when_it_was_none() -> None:
    rules = StopRules(request(("abc",)), Bytes())
    assert rules.keep(list(b"xab")).text == "x"
    assert rules.keep(list(b"d")).text == "abd"
    assert rules.keep(list(b"ab")).text == ""
    assert rules.cancel().text == "ab"


# ---------------------------------------------------------------------------------------------------- in the engine

# After a comes b, after b c, ... and after k a: drafts of the same table are all accepted.
RING = np.full((11, 11), -5.0, dtype=np.float32)
for _token in range(11):
    RING[_token, (_token + 1) % 11] = 5.0

SETTINGS: dict[str, Any] = {"drafter": {"use": "table"}, "observers": {"use": ["rounds"]}}


def ring(
    settings: Mapping[str, Any] | None = None, *, target: Mapping[str, Any] | None = None, block: int = 5, **asked: Any
) -> tuple[Result, list[RoundTrace], list[Any]]:
    """The result, the rounds and the target's state for the prompt "a", whose text is bcdefghijkabc..."""
    observer, seen = rounds_observer()
    states: list[toys.ToyState] = []

    def keep(made: toys.MarkovTarget) -> toys.MarkovTarget:
        made.states = states
        return made

    providers = (
        toys.markov_target(RING, build=keep, **(target or {})),
        toys.table_drafter(RING, proposal="point", block=block),
        observer,
    )
    with toy_engine(merged(SETTINGS, settings or {}), *providers) as engine:
        result = engine.complete("a", **asked)
    return result, seen, states[-1].tokens


def test_eos_inside_an_accepted_prefix_ends_the_text_there() -> None:
    result, seen, state = ring(target={"eos": (letters("e")[0],)})
    assert (result.text, result.finish) == ("bcd", "eos")
    assert list(result.tokens) == letters("bcde")  # the token that stops is kept as a token
    assert seen[-1].cut and seen[-1].accepted == 3
    assert state == letters("abcd")


def test_ignore_eos_goes_on() -> None:
    result, _, _ = ring(target={"eos": (letters("e")[0],)}, ignore_eos=True, max_tokens=9)
    assert (result.text, result.finish) == ("bcdefghij", "max_tokens")


def test_eos_as_the_first_token_ends_without_a_round() -> None:
    result, seen, state = ring(target={"eos": (letters("b")[0],)})
    assert (result.text, result.finish, len(seen), state) == ("", "eos", 0, letters("a"))
    assert result.stats.tokens == 1 and result.stats.decode_rate is None


@pytest.mark.parametrize("stop", ["fg", "efgh", "b", "kab", "bcdefghijka"])
@pytest.mark.parametrize("block", [1, 3, 7])
def test_a_stop_string_across_tokens_and_rounds_cuts_before_it(stop: str, block: int) -> None:
    result, seen, state = ring(block=block, stop=stop)
    endless = "bcdefghijka" * 5
    end = endless.index(stop) + len(stop)
    assert result.text == endless[: end - len(stop)]
    assert (result.finish, list(result.tokens)) == ("stop", letters(endless[:end]))
    assert state == letters("a" + endless[: end - 1])
    assert sum(len(trace.tokens) for trace in seen) == end - 1


def test_max_tokens_inside_a_block_is_exact() -> None:
    for block in (1, 2, 3, 5, 7):
        for most in range(1, 15):
            result, _, state = ring(block=block, max_tokens=most)
            assert result.text == ("bcdefghijka" * 2)[:most] and result.finish == "max_tokens"
            assert len(state) == most


def test_a_stop_in_the_last_allowed_token_beats_max_tokens_and_the_context() -> None:
    result, _, _ = ring(stop=["de"], max_tokens=4)
    assert (result.text, result.finish) == ("bc", "stop")
    result, _, _ = ring(target={"context": 5}, stop=["de"])
    assert (result.text, result.finish) == ("bc", "stop")
    result, _, _ = ring(target={"eos": (letters("e")[0],)}, max_tokens=4)
    assert result.finish == "eos"


def test_max_tokens_and_the_context_at_once_is_max_tokens() -> None:
    result, _, _ = ring(target={"context": 5}, max_tokens=4)
    assert (len(result.tokens), result.finish) == (4, "max_tokens")


# ---------------------------------------------------------------------------------------------------------- counting


CONFIDENT = toys.table_drafter(
    near(table()), name="confident", proposal="point", block=7, confidences=(0.9, 0.8, 0.7, 0.4, 0.9, 0.9, 0.9)
)


@pytest.mark.parametrize("drafter", ["none", "table", "lookup", "random", "confident"])
@pytest.mark.parametrize("stop", [(), ("ab",), ("h",)])
def test_statistics_are_a_recount_of_the_rounds(drafter: str, stop: tuple[str, ...]) -> None:
    observer, seen = rounds_observer()
    settings: dict[str, Any] = {"drafter": {"use": drafter}, "observers": {"use": ["rounds"]}}
    if drafter == "confident":
        settings["scheduler"] = {"use": "threshold"}  # submits three of seven
    with toy_engine(settings, toys.markov_target(table(), eos=(7,)), CONFIDENT, observer) as engine:
        for prompt in ("abcabcabc", "k", "fgfg", "dhdh", "cj"):
            seen.clear()
            result = engine.complete(prompt, max_tokens=40, stop=stop)
            recount(result, seen)


def recount(result: Result, seen: list[RoundTrace]) -> None:
    stats = result.stats
    assert [trace.index for trace in seen] == list(range(len(seen)))
    assert list(result.tokens[1:]) == [token for trace in seen for token in trace.tokens]
    position = stats.prompt_tokens
    for trace in seen:
        assert trace.position == position
        position += len(trace.tokens)
        assert trace.cut == (len(trace.tokens) != trace.accepted + 1)
        assert trace.accepted <= trace.submitted <= trace.drafted <= trace.planned
    drafting = [trace for trace in seen if trace.submitted]
    whole = [trace for trace in drafting if not trace.cut]
    assert stats.rounds == len(seen) and stats.drafting_rounds == len(drafting)
    assert stats.uncut_drafting_rounds == len(whole)
    for name in ("drafted", "submitted", "accepted", "transfers"):
        extra = 1 if name == "transfers" else 0
        assert getattr(stats, name) == extra + sum(getattr(trace, name) for trace in seen)
    for k, (submitted, accepted) in enumerate(zip(stats.submitted_at, stats.accepted_at, strict=True)):
        assert submitted == sum(trace.submitted > k for trace in whole)
        assert accepted == sum(trace.accepted > k for trace in whole)
    if whole:
        assert stats.tau == pytest.approx(sum(len(trace.tokens) for trace in whole) / len(whole))
    else:
        assert stats.tau is None
    for share, submitted in zip(stats.acceptance, stats.submitted_at, strict=True):
        assert (share is None) == (submitted == 0) and (share is None or 0 <= share <= 1)


def test_a_round_that_is_cut_does_not_count_for_tau() -> None:
    result, seen, _ = ring(block=5, stop="i")  # b | cdefgh | i...
    assert [trace.cut for trace in seen] == [False, True]
    assert result.stats.tau == 6.0 and result.stats.uncut_drafting_rounds == 1
    assert result.stats.accepted == 6 and seen[-1].accepted == 1


def test_a_rejection_counts_against_the_draft_that_was_rejected_only() -> None:
    observer, seen = rounds_observer()
    wrong = RING.copy()
    wrong[letters("d")[0]] = RING[0]  # after d the drafter says b
    providers = (toys.markov_target(RING), toys.table_drafter(wrong, proposal="point", block=4), observer)
    with toy_engine(SETTINGS, *providers) as engine:
        result = engine.complete("a", max_tokens=5)  # b | c d [b -> e]
    first = seen[0]
    assert (first.submitted, first.accepted, first.tokens) == (3, 2, tuple(letters("cde")))
    assert result.stats.submitted_at[:4] == (1, 1, 1, 0) and result.stats.accepted_at[:4] == (1, 1, 0, 0)


def test_a_result_as_a_dict_is_json() -> None:
    import json

    result, _, _ = ring(max_tokens=8)
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["stats"]["tau"] == result.stats.tau and data["text"] == result.text
    assert data["slots"]["drafter"] == {"requested": "table", "effective": "table", "reason": ""}
    assert set(attrs.asdict(result)) <= set(data)


def test_a_near_drafter_has_both_outcomes() -> None:
    """The tests above need rounds with acceptances and with rejections."""
    drafter = toys.table_drafter(near(table()), proposal="point", block=7)
    with toy_engine({"drafter": {"use": "table"}}, drafter) as engine:
        stats = engine.complete("abcabc", max_tokens=60).stats
    assert 0 < stats.accepted < stats.submitted
