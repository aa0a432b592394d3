"""The round loop on toy plugins: identity with plain decoding, transactions, observing, limits, transfers, repeats."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import attrs
import mlx.core as mx
import pytest
from tests.core.engines import GREEDY, SAMPLED, V, letters, near, rounds_observer, table, toy_engine, watched

from sparkwright.core.contracts import (
    INCOMPLETE,
    WIDEST_VERIFY,
    Distribution,
    Draft,
    DrafterFacts,
    PointMass,
    Provider,
    RoundReport,
    SamplerFacts,
    SchedulerFacts,
)
from sparkwright.core.engine import Host
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing import toys

PROMPTS = ["a", "abc", "kjihgfedcba", "abababababab", "hh", "cdefghcdefgh"]
DRAFTERS = ["table", "lookup", "random"]


@pytest.mark.parametrize("base", [GREEDY, SAMPLED], ids=["greedy", "coupled at T=1"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_speculative_text_is_plain_text_for_every_block_length(base: dict[str, Any], drafter: str) -> None:
    accepted = 0
    with toy_engine({}, base=base) as plain:
        expected = [plain.complete(prompt, seed=5).tokens for prompt in PROMPTS]
    assert len({tokens for tokens in expected}) > 1
    for depth in range(1, WIDEST_VERIFY):
        settings = {"drafter": {"use": drafter}, "scheduler": {"fixed": {"depth": depth}}}
        with toy_engine(settings, base=base) as engine:
            for prompt, tokens in zip(PROMPTS, expected, strict=True):
                result = engine.complete(prompt, seed=5)
                assert result.tokens == tokens, (drafter, depth, prompt)
                accepted += result.stats.accepted
                assert result.stats.drafted > 0 or drafter == "lookup"
    assert accepted > 0  # or nothing was tested


def test_a_sampler_chain_with_penalties_agrees_with_plain_decoding_under_coupled() -> None:
    chain = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.4}
    settings: dict[str, Any] = {"sampler": {"use": "chain", "chain": chain}}
    with toy_engine(settings, base=SAMPLED) as plain:
        expected = plain.complete("abc", seed=3).tokens
    with toy_engine(settings | {"drafter": {"use": "table"}}, base=SAMPLED) as engine:
        result = engine.complete("abc", seed=3)
    assert result.tokens == expected
    assert 0 < result.stats.accepted < result.stats.submitted


@pytest.mark.parametrize("drafter", ["none", *DRAFTERS])
@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_the_target_holds_exactly_the_committed_tokens(drafter: str, chunk: int) -> None:
    target, built = watched(toys.markov_target(table()))
    with toy_engine({"drafter": {"use": drafter}, "engine": {"prefill_chunk": chunk}}, target) as engine:
        for prompt, max_tokens in itertools.product(PROMPTS, (1, 2, 7, 20)):
            result = engine.complete(prompt, max_tokens=max_tokens)
            state = built[0].states[-1]
            assert state.tokens == [*letters(prompt), *result.tokens[:-1]]
            assert not state.open


def test_what_plain_decoding_began_ahead_is_taken_back_where_a_text_ends() -> None:
    """The forward of a row that turns out not to be wanted: after an EOS, a stop string, and a cancelled request."""
    target, built = watched(toys.markov_target(table(), eos=(3,)))
    with toy_engine({}, target) as engine:
        ends = {engine.complete("abc", max_tokens=40).finish}
        ends.add(engine.complete("abc", max_tokens=40, stop=["h"], ignore_eos=True).finish)
        with engine.stream("a", max_tokens=10**6, ignore_eos=True) as stream:
            next(iter(stream))
            stream.cancel()
            ends.add(stream.result.finish)
        texts = [[*state.tokens] for state in built[0].states]
    assert ends == {"eos", "stop", "cancelled"}
    assert not any(state.open for state in built[0].states)
    assert texts[-1] == [*letters("a"), *stream.result.tokens[:-1]]


@pytest.mark.parametrize("depth", [0, 1, 4])
@pytest.mark.parametrize("chunk", [1, 2, 512])
def test_the_drafter_observes_every_committed_position_once_and_in_order(depth: int, chunk: int) -> None:
    drafter, built = watched(toys.table_drafter(near(table()), proposal="point", block=7))
    settings = {
        "drafter": {"use": "table"},
        "scheduler": {"fixed": {"depth": depth}},
        "engine": {"prefill_chunk": chunk},
    }
    with toy_engine(settings, drafter) as engine:
        for prompt in PROMPTS:
            result = engine.complete(prompt)
            assert built[0].states[-1] == [*letters(prompt), *result.tokens[:-1]]
            assert (result.stats.drafted > 0) == (depth > 0)


@attrs.define(eq=False)
class TapDrafter:
    """Reads taps; keeps what it is told."""

    told: list[tuple[list[int], Any]] = attrs.field(factory=list)
    proposed: int = 0

    @hookimpl
    def sparkwright_drafter_start(self) -> None:
        return None

    @hookimpl
    def sparkwright_drafter_draft(self, anchor: int, limit: int) -> Draft:
        self.proposed += 1
        return Draft(mx.array([(anchor + k) % V for k in range(1, limit + 1)], dtype=mx.int32), PointMass())

    @hookimpl
    def sparkwright_drafter_observe(self, tokens: Sequence[int], taps: mx.array | None) -> None:
        assert taps is not None
        self.told.append((list(tokens), taps.tolist()))


def test_taps_of_an_observation_are_those_of_its_tokens() -> None:
    drafter = TapDrafter()
    provider = Provider(
        kind="drafter", name="tapped", summary="toy", build=lambda options, site: drafter,
        describe=lambda options, site: DrafterFacts(block=4, taps=(0, -1)),
    )  # fmt: skip
    with toy_engine({"drafter": {"use": "tapped"}}, provider) as engine:
        result = engine.complete("abcabc")
    tokens = [token for chunk, _ in drafter.told for token in chunk]
    assert tokens == [*letters("abcabc"), *result.tokens[:-1]]
    for chunk, rows in drafter.told:
        assert [[i % V for i, x in enumerate(row) if x] for row in rows] == [[t, t] for t in chunk]


# ------------------------------------------------------------------------------------------------------------ limits


@attrs.define(eq=False)
class Limits:
    """A scheduler that keeps the limits it is given, and plans all of it."""

    limits: list[int] = attrs.field(factory=list)
    reports: list[RoundReport] = attrs.field(factory=list)

    @hookimpl
    def sparkwright_scheduler_start(self) -> int:
        return 0

    @hookimpl
    def sparkwright_scheduler_plan(self, limit: int) -> int:
        self.limits.append(limit)
        return limit

    @hookimpl
    def sparkwright_scheduler_learn(self, report: RoundReport) -> None:
        self.reports.append(report)


def scheduler(plugin: object, **facts: Any) -> Provider:
    return Provider(
        kind="scheduler", name="toy", summary="toy", build=lambda options, site: plugin,
        describe=lambda options, site: SchedulerFacts(**facts),
    )  # fmt: skip


@pytest.mark.parametrize("context", [None, 1000])
def test_no_block_is_longer_than_the_tokens_that_remain(context: int | None) -> None:
    limits, (observer, seen) = Limits(), rounds_observer()
    drafter = toys.random_drafter()
    drafter = attrs.evolve(drafter, describe=lambda options, site: DrafterFacts(block=7, context=context))
    settings = {"drafter": {"use": "random"}, "scheduler": {"use": "toy"}, "observers": {"use": ["rounds"]}}
    with toy_engine(settings, scheduler(limits), observer, drafter) as engine:
        engine.complete("abc", max_tokens=12)
    left = 11  # the first token comes from the prefill
    limited = iter(limits.limits)
    for trace in seen:
        expected = min(7, left - 1)
        if expected:
            assert next(limited) == expected
        assert trace.submitted == expected
        left -= len(trace.tokens)
    assert left == 0 and next(limited, None) is None


def test_the_widest_verify_bounds_a_longer_block() -> None:
    limits = Limits()
    settings = {"drafter": {"use": "random"}, "scheduler": {"use": "toy"}}
    with toy_engine(settings, scheduler(limits), toys.random_drafter(block=20)) as engine:
        engine.complete("abc", max_tokens=60)
    assert max(limits.limits) == WIDEST_VERIFY - 1


def test_the_targets_context_is_filled_and_never_overrun() -> None:
    positions: list[int] = []

    class Watching(toys.MarkovTarget):
        @hookimpl
        def sparkwright_target_forward(self, tokens: mx.array, state: toys.ToyState, logits: Any) -> Any:
            positions.append(len(state.tokens) + tokens.shape[0])
            return super().sparkwright_target_forward(tokens, state, logits)

    for drafter, context in itertools.product(("none", "random", "table"), range(4, 16)):
        positions.clear()
        target, _ = watched(toys.markov_target(table(), context=context), lambda made: Watching(made.table, made.taps))
        with toy_engine({"drafter": {"use": drafter}}, target) as engine:
            result = engine.complete("abc", max_tokens=100)
        assert result.finish == "context"
        assert len(result.tokens) == context - 3
        assert max(positions) <= context


def test_a_drafters_context_bounds_its_blocks_and_then_ends_them() -> None:
    limits = Limits()
    room = 14
    drafter = toys.table_drafter(near(table()), proposal="point", block=7, context=room)
    settings = {"drafter": {"use": "table"}, "scheduler": {"use": "toy"}, "observers": {"use": ["rounds"]}}
    observer, seen = rounds_observer()
    with toy_engine(settings, drafter, scheduler(limits), observer) as engine:
        result = engine.complete("abc", max_tokens=30)
    assert len(result.tokens) == 30
    for trace in seen:
        assert trace.drafted == 0 or trace.position + 1 + trace.drafted <= room
    assert any(trace.drafted for trace in seen) and seen[-1].drafted == 0
    assert any(trace.position + 1 + trace.drafted == room for trace in seen)  # none of the room is given away


# --------------------------------------------------------------------------------------------------------- transfers


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of all arrays that the engine reads to the host."""
    shapes: list[tuple[int, ...]] = []
    read = Host.read

    def spy(self: Host, array: mx.array) -> list[Any]:
        shapes.append(tuple(array.shape))
        return read(self, array)

    monkeypatch.setattr(Host, "read", spy)
    return shapes


@attrs.define(eq=False)
class Confident(Limits):
    asked: list[tuple[int, float]] = attrs.field(factory=list)
    submitted: int = 2

    @hookimpl
    def sparkwright_scheduler_more(self, depth: int, confidence: float) -> bool:
        self.asked.append((depth, round(confidence, 3)))
        return depth <= self.submitted


CONFIDENCES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)


@pytest.mark.parametrize("wants", [False, True])
def test_a_round_reads_once_without_confidences_and_twice_with(reads: list[tuple[int, ...]], wants: bool) -> None:
    drafter = toys.table_drafter(near(table()), proposal="point", block=7, confidences=CONFIDENCES)
    settings = {"drafter": {"use": "table"}, "scheduler": {"use": "toy"}, "observers": {"use": ["rounds"]}}
    observer, seen = rounds_observer()
    with toy_engine(settings, drafter, scheduler(Confident(), confidences=wants), observer) as engine:
        result = engine.complete("abc", max_tokens=40)
    drafting = [trace for trace in seen if trace.drafted]
    assert {trace.transfers for trace in drafting} == {2 if wants else 1}
    assert {trace.transfers for trace in seen if not trace.drafted} <= {1}
    assert result.stats.transfers == len(reads) == 1 + sum(trace.transfers for trace in seen)
    assert all(len(shape) == 1 and shape[0] <= 3 + 7 for shape in reads)


def test_no_other_way_to_the_host_is_used(monkeypatch: pytest.MonkeyPatch, reads: list[tuple[int, ...]]) -> None:
    """Host.read is what the engine counts; nothing in a round may go past it (the toy target reads through NumPy)."""
    seen = []
    for name in ("tolist", "item"):
        original = getattr(mx.array, name)

        def spy(self: mx.array, original: Any = original) -> Any:
            seen.append(tuple(self.shape))
            return original(self)

        monkeypatch.setattr(mx.array, name, spy)
    chain = {"temperature": 0.8, "top_p": 0.9, "top_k": 5, "repetition_penalty": 1.2}
    settings = {"drafter": {"use": "table"}, "sampler": {"use": "chain", "chain": chain}}
    for verifier in ("coupled", "stochastic", "block"):
        seen.clear()
        reads.clear()
        with toy_engine(settings | {"verifier": {"use": verifier}}) as engine:
            result = engine.complete("abc", max_tokens=25)
        assert seen == reads and len(reads) == result.stats.transfers


# --------------------------------------------------------------------------------------------------------- schedulers


def test_confidences_are_replayed_in_order_and_stop_at_the_first_no() -> None:
    plugin = Confident()
    drafter = toys.table_drafter(near(table()), proposal="point", block=7, confidences=CONFIDENCES)
    settings = {"drafter": {"use": "table"}, "scheduler": {"use": "toy"}, "observers": {"use": ["rounds"]}}
    observer, seen = rounds_observer()
    with toy_engine(settings, drafter, scheduler(plugin, confidences=True), observer) as engine:
        engine.complete("abc", max_tokens=9)
    asked = iter(plugin.asked)
    for trace, report in zip(seen, plugin.reports, strict=True):
        expected = [(k + 1, CONFIDENCES[k]) for k in range(min(trace.drafted, plugin.submitted + 1))]
        assert [next(asked) for _ in expected] == expected
        assert trace.submitted == min(trace.drafted, plugin.submitted)
        assert len(report.confidences) <= trace.submitted + 1  # nothing of drafts that it never decided on
        assert (report.planned, report.drafted, report.submitted) == (
            trace.planned, trace.drafted, trace.submitted,
        )  # fmt: skip
    assert next(asked, None) is None


def test_a_scheduler_that_submits_nothing_gets_plain_decoding() -> None:
    plugin = Confident(submitted=0)
    drafter = toys.table_drafter(near(table()), proposal="point", block=7, confidences=CONFIDENCES)
    settings = {"drafter": {"use": "table"}, "scheduler": {"use": "toy"}}
    with toy_engine({}) as plain, toy_engine(settings, drafter, scheduler(plugin, confidences=True)) as engine:
        result = engine.complete("abc")
        assert result.tokens == plain.complete("abc").tokens
    assert result.stats.drafted > 0 == result.stats.submitted == result.stats.drafting_rounds
    assert result.stats.tau is None


@attrs.define(eq=False)
class Resting(Limits):
    """Two rounds with drafts, then a plain one and `gap` that are given away, and so on; its plans are kept."""

    gap: int = 3
    rounds: int = 0
    plans: list[tuple[int, int]] = attrs.field(factory=list)

    @property
    def phase(self) -> int:
        return self.rounds % (3 + self.gap)

    @hookimpl
    def sparkwright_scheduler_start(self) -> int:
        self.rounds = 0
        return 0

    @hookimpl
    def sparkwright_scheduler_plan(self, limit: int) -> int:
        planned = 0 if self.phase >= 2 else limit
        self.plans.append((self.rounds, planned))
        return planned

    @hookimpl
    def sparkwright_scheduler_rests(self) -> bool:
        return 2 <= self.phase < 2 + self.gap

    @hookimpl
    def sparkwright_scheduler_learn(self, report: RoundReport) -> None:
        assert not (report.planned and self.phase >= 2)
        self.rounds += 1


@pytest.mark.parametrize("base", [GREEDY, SAMPLED], ids=["greedy", "coupled at T=1"])
def test_rounds_that_were_given_away_are_plain_decoding_and_everybody_learns_them(base: dict[str, Any]) -> None:
    target, targets = watched(toys.markov_target(table()))
    drafter, drafters = watched(toys.table_drafter(near(table()), proposal="point", block=7))
    settings = {"drafter": {"use": "table"}, "scheduler": {"use": "toy"}, "observers": {"use": ["rounds"]}}
    with toy_engine({}, base=base) as plain:
        expected = {p: plain.complete(p, seed=5, max_tokens=40).tokens for p in PROMPTS}
    for gap in (0, 1, 3):
        for prompt, tokens in expected.items():
            scheduling, (observer, seen) = Resting(gap=gap), rounds_observer()
            with toy_engine(settings, target, drafter, scheduler(scheduling), observer, base=base) as engine:
                result = engine.complete(prompt, seed=5, max_tokens=40)
            assert result.tokens == tokens
            processed = [*letters(prompt), *tokens[:-1]]
            assert targets[-1].states[-1].tokens == drafters[-1].states[-1] == processed
            assert not targets[-1].states[-1].open
            assert [trace.position for trace in seen] == [
                len(processed) - sum(len(t.tokens) for t in seen[i:]) for i in range(len(seen))
            ]
            assert {trace.transfers for trace in seen} == {1}
            assert result.stats.accepted > 0
            # Asked for a plan only in rounds that it did not give away, while there was room for drafts.
            given = {r for r in range(len(seen)) if r % (3 + gap) > 2}
            assert not given & {r for r, _ in scheduling.plans}
            assert {r for r, _ in scheduling.plans} | given | {len(seen) - 1} == set(range(len(seen)))


def test_the_forward_of_a_round_that_was_given_away_begins_before_the_token_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    read = Host.read

    def spy(self: Host, array: mx.array) -> list[Any]:
        events.append("read")
        return read(self, array)

    monkeypatch.setattr(Host, "read", spy)

    class Watching(toys.MarkovTarget):
        @hookimpl
        def sparkwright_target_forward(self, tokens: mx.array, state: toys.ToyState, logits: Any) -> Any:
            events.append(f"forward {tokens.shape[0]}")
            return super().sparkwright_target_forward(tokens, state, logits)

    target, _ = watched(toys.markov_target(table()), lambda made: Watching(made.table, made.taps))
    settings = {"drafter": {"use": "random"}, "scheduler": {"use": "toy"}}
    with toy_engine(settings, target, scheduler(Resting(gap=2))) as engine:
        engine.complete("abc", max_tokens=200)
    rounds = " ".join(events[2:]).split("forward 8 read forward 8 read ")[1]
    assert rounds == "forward 1 forward 1 read forward 1 read read "
    events.clear()
    with toy_engine({}, target) as plain:
        plain.complete("abc", max_tokens=4)
    # Without a drafter in every round but the last, behind which nothing comes.
    assert " ".join(events) == "forward 3 read forward 1 forward 1 read forward 1 read read"


@pytest.mark.parametrize("gap", [1, 1000])
def test_what_a_resting_round_began_ahead_is_taken_back_where_a_text_ends(gap: int) -> None:
    target, built = watched(toys.markov_target(table(), eos=(3,)))
    settings = {"drafter": {"use": "random"}, "scheduler": {"use": "toy"}}
    with toy_engine({}, target) as plain, toy_engine(settings, target, scheduler(Resting(gap=gap))) as engine:
        ends = set()
        cut: list[dict[str, Any]] = [{"max_tokens": n, "ignore_eos": True} for n in range(1, 12)]
        cut += [{"max_tokens": 40}, {"max_tokens": 40, "stop": ["h"], "ignore_eos": True}]
        for how in cut:
            result, expected = (one.complete("abc", **how) for one in (engine, plain))
            assert (result.tokens, result.finish) == (expected.tokens, expected.finish)
            ends.add(result.finish)
            for made in built:
                assert made.states[-1].tokens == [*letters("abc"), *result.tokens[:-1]]
    assert ends == {"eos", "stop", "max_tokens"}
    assert not any(state.open for made in built for state in made.states)


# ------------------------------------------------------------------------------------------------- repeats in full


@attrs.define(eq=False)
class Shortcut:
    """Says that its first answer did not suffice, whatever it was; and that answer is wrong."""

    plain: toys.PlainSampler = attrs.field(factory=toys.PlainSampler)
    calls: list[bool] = attrs.field(factory=list)

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
        return logits

    @hookimpl
    def sparkwright_sampler_distribution(self, logits: mx.array, full: bool) -> Distribution:
        self.calls.append(full)
        p = self.plain.sparkwright_sampler_distribution(logits if full else -logits)
        return p if full else attrs.evolve(p, flags=mx.full(p.flags.shape, INCOMPLETE, dtype=mx.int32))


@pytest.mark.parametrize("drafter", ["table", "none"])
def test_an_incomplete_round_is_repeated_once_with_the_same_keys(drafter: str, reads: list[tuple[int, ...]]) -> None:
    plugin = Shortcut()
    provider = Provider(
        kind="sampler", name="shortcut", summary="toy", build=lambda options, site: plugin,
        describe=lambda options, site: SamplerFacts(),
    )  # fmt: skip
    settings = {"drafter": {"use": drafter}}
    target, built = watched(toys.markov_target(table()))
    with toy_engine(settings, base=SAMPLED) as engine:
        expected = engine.complete("abc", seed=4)
    with toy_engine(settings | {"sampler": {"use": "shortcut"}}, provider, target, base=SAMPLED) as engine:
        reads.clear()
        result = engine.complete("abc", seed=4)
    assert built[0].states[-1].tokens == [*letters("abc"), *result.tokens[:-1]]
    assert result.tokens == expected.tokens
    assert result.stats.repeated_rounds == result.stats.rounds
    assert plugin.calls == [False, True] * (1 + result.stats.rounds)
    assert len(reads) == result.stats.transfers == 2 * (1 + result.stats.rounds)


# --------------------------------------------------------------------------------------------------- a sampler's state


@attrs.define(eq=False)
class Remembering(Shortcut):
    """Its state is the prompt and every emitted token; keeps the states that rows are asked for."""

    asked: list[tuple[tuple[int, ...], int]] = attrs.field(factory=list)

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Sequence[int]) -> Any:  # type: ignore[override]
        return tuple(prompt)

    @hookimpl
    def sparkwright_sampler_rows(self, state: tuple[int, ...], drafts: mx.array) -> None:  # type: ignore[override]
        self.asked.append((state, drafts.shape[0]))

    @hookimpl
    def sparkwright_sampler_advance(self, state: tuple[int, ...], tokens: Sequence[int]) -> Any:  # type: ignore[override]
        return (*state, *tokens)


def test_a_samplers_state_is_the_prompt_and_every_emitted_token_the_anchor_included() -> None:
    plugin = Remembering()
    provider = Provider(
        kind="sampler", name="remembering", summary="toy", build=lambda options, site: plugin,
        describe=lambda options, site: SamplerFacts(),
    )  # fmt: skip
    settings = {"drafter": {"use": "table"}, "sampler": {"use": "remembering"}, "observers": {"use": ["rounds"]}}
    observer, seen = rounds_observer()
    with toy_engine(settings, provider, observer, base=SAMPLED) as engine:
        result = engine.complete("abc", seed=4)
    whole = (*letters("abc"), *result.tokens)
    assert [state for state, _ in plugin.asked] == [
        whole[:n] for n in (3, *(trace.position + 1 for trace in seen))
    ]  # fmt: skip
    assert [n for _, n in plugin.asked] == [0, *(trace.submitted for trace in seen)]
