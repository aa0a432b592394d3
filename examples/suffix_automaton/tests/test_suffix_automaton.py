"""The drafter keeps its contract, and finds what a search of the whole text would find."""

from __future__ import annotations

import random

from sparkwright.core.testing import Check, parametrize_with_checks
from sparkwright_suffix_automaton import Automaton, Drafter, Options, sparkwright_register_drafters


@parametrize_with_checks(sparkwright_register_drafters())
def test_conformance(check: Check) -> None:
    check.run()


def by_search(tokens: list[int], anchor: int, limit: int, min_match: int) -> list[int]:
    """The longest suffix of tokens + [anchor] that occurs in tokens, and what followed its first occurrence."""
    text = [*tokens, anchor]
    for n in range(len(tokens), min_match - 1, -1):
        for end in range(n, len(tokens) + 1):
            if tokens[end - n : end] == text[len(text) - n :]:
                grown = list(text)
                for k in range(limit):
                    grown.append(grown[end + k])
                return grown[len(text) :]
    return []


def test_drafts_are_those_of_a_search_of_the_whole_text() -> None:
    rng = random.Random(3)
    found = 0
    for vocabulary in (2, 4, 8):
        for _ in range(100):
            tokens = [rng.randrange(vocabulary) for _ in range(rng.randrange(60))]
            automaton = Automaton()
            for token in tokens:
                automaton.add(token)
            anchor, limit, shortest = rng.randrange(vocabulary), rng.randrange(1, 8), rng.randrange(1, 4)
            drafts = automaton.continuation(anchor, limit, shortest)
            assert drafts == by_search(tokens, anchor, limit, shortest)
            found += bool(drafts)
    assert found > 100


def test_drafting_leaves_the_state_alone() -> None:
    drafter, state = Drafter(Options()), Automaton()
    drafter.sparkwright_drafter_observe(state, [1, 2, 3, 1, 2])
    assert len(drafter.sparkwright_drafter_draft(state, 3, 4)) == 4
    assert state.tokens == [1, 2, 3, 1, 2] and state.last == 5


def test_it_has_at_most_two_states_a_token() -> None:
    rng = random.Random(5)
    automaton = Automaton()
    for _ in range(2000):
        automaton.add(rng.randrange(3))
    assert len(automaton.link) <= 2 * 2000
