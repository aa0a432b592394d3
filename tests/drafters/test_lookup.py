"""Prompt lookup against a search of the whole text, and its options."""

from __future__ import annotations

import random

import mlx.core as mx
import pytest

from sparkwright.core.contracts import DrafterFacts, PointMass, Site
from sparkwright.core.errors import ConfigError
from sparkwright.plugins.drafters import lookup, none


def by_search(history: list[int], anchor: int, limit: int, min_n: int, max_n: int) -> list[int]:
    text = [*history, anchor]
    for n in range(min(max_n, len(text)), min_n - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):  # the most recent first; never the suffix itself
            if text[end - n : end] == text[-n:]:
                grown = list(text)
                for k in range(limit):
                    grown.append(grown[end + k])
                return grown[len(text) :]
    return []


def drafts(options: lookup.LookupOptions, chunks: list[list[int]], anchor: int, limit: int) -> list[int]:
    plugin = lookup.Lookup(options)
    state = plugin.sparkwright_drafter_start([], lambda logits: logits)
    for chunk in chunks:
        plugin.sparkwright_drafter_observe(state, chunk, None)
    draft = plugin.sparkwright_drafter_draft(state, anchor, limit, mx.zeros((limit, 2), dtype=mx.uint32))
    assert isinstance(draft.proposal, PointMass) and draft.confidence is None
    assert draft.tokens.dtype == mx.int32 and draft.tokens.shape == (len(draft),)
    return [int(t) for t in draft.tokens.tolist()]  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (2, 4), (3, 3)])
@pytest.mark.parametrize("vocabulary", [2, 4, 6])
def test_drafts_are_those_of_a_search_of_the_whole_text(sizes: tuple[int, int], vocabulary: int) -> None:
    rng = random.Random(vocabulary)
    options = lookup.LookupOptions(min_n=sizes[0], max_n=sizes[1], block=7)
    found = 0
    for _ in range(150):
        text = [rng.randrange(vocabulary) for _ in range(rng.randrange(120))]
        cut = rng.randrange(len(text) + 1)
        anchor, limit = rng.randrange(vocabulary), rng.randrange(1, 8)
        got = drafts(options, [text[:cut], text[cut:]], anchor, limit)
        assert got == by_search(text, anchor, limit, *sizes)
        found += bool(got)
    assert found > 15


def test_the_longest_match_beats_a_more_recent_shorter_one() -> None:
    options = lookup.LookupOptions(min_n=1, max_n=3, block=2)
    assert drafts(options, [[1, 2, 3, 50, 51, 3, 60, 61, 1, 2]], 3, 2) == [50, 51]


def test_among_equal_matches_the_most_recent_wins() -> None:
    options = lookup.LookupOptions(min_n=2, max_n=2, block=2)
    assert drafts(options, [[1, 2, 50, 51, 1, 2, 60, 61, 1]], 2, 2) == [60, 61]


def test_a_loop_fills_a_whole_block() -> None:
    assert drafts(lookup.LookupOptions(block=7), [[7, 8, 9, 7]], 8, 7) == [9, 7, 8, 9, 7, 8, 9]
    assert drafts(lookup.LookupOptions(block=7), [[7, 8, 8]], 8, 7) == [8, 8, 8, 8, 8, 8, 8]


def test_the_block_and_the_limit_both_bound_a_draft() -> None:
    text = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 1]]
    assert drafts(lookup.LookupOptions(block=3), text, 2, 7) == [3, 4, 5]
    assert drafts(lookup.LookupOptions(block=3), text, 2, 1) == [3]


def test_the_index_holds_one_entry_a_token_and_length() -> None:
    history = lookup.History(2, 4)
    history.observe(range(5000))
    assert len(history.after) == 4999 + 4998 + 4997
    before = len(history.after)
    history.observe(range(5000))  # nothing new but the seam: the same n-grams take their later place
    assert len(history.after) == before + 1 + 2 + 3


def test_sizes_that_exclude_each_other_are_refused() -> None:
    (provider,) = lookup.sparkwright_register_drafters()
    assert provider.describe is not None
    with pytest.raises(ConfigError, match=r"min_n is 5 and .*max_n is 4"):
        provider.describe(lookup.LookupOptions(min_n=5), Site())
    with pytest.raises(ValueError):
        lookup.LookupOptions(block=8)
    assert provider.describe(lookup.LookupOptions(), Site()) == DrafterFacts(block=5)


def test_none_never_drafts() -> None:
    (provider,) = none.sparkwright_register_drafters()
    assert provider.describe is not None
    assert provider.describe(provider.options(), Site()) == DrafterFacts(block=0)
    plugin = provider.build(provider.options(), Site())
    assert isinstance(plugin, none.NoDrafter)
    state = plugin.sparkwright_drafter_start([], lambda logits: logits)
    plugin.sparkwright_drafter_observe(state, [1, 2], None)
    assert len(plugin.sparkwright_drafter_draft(state, 1, 3, mx.zeros((3, 2), dtype=mx.uint32))) == 0
