"""Requests from outside: bad ones, cancelled ones, many at once, the same again; plugins that fail in the middle."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from tests.core.engines import SAMPLED, V, letters, near, table, toy_config, toy_engine, watched

from sparkwright.core.contracts import (
    Dense,
    Draft,
    DrafterFacts,
    Forward,
    PointMass,
    Provider,
    Verdict,
)
from sparkwright.core.errors import NumericError, PluginError, RequestError
from sparkwright.core.generation import Result
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing import toys

ENDLESS = 1_000_000

# -------------------------------------------------------------------------------------------------------- bad requests


@pytest.mark.parametrize(
    ("prompt", "asked", "says"),
    [
        ("", {}, "empty"),
        ([], {}, "empty"),
        ("abc", {"max_tokens": 0}, "max_tokens is 0"),
        ("abc", {"max_tokens": -3}, "max_tokens is -3"),
        ("abc", {"max_tokens": True}, "max_tokens is True"),
        ("abc", {"max_tokens": 2.5}, "max_tokens is 2.5"),
        ("abc", {"stop": [""]}, "non-empty"),
        ("abc", {"stop": [3]}, "non-empty"),
        ("abc", {"stop": 3}, "stop is 3"),
        ("abc", {"seed": "x"}, "seed is 'x'"),
        ("abc", {"choice": -1}, "choice -1"),
        ("z", {}, "token id 25, outside the vocabulary of 11"),
        ([1, -1], {}, "token id -1"),
        ([1, 2.5], {}, "the prompt must be"),
        ([True], {}, "the prompt must be"),
        (None, {}, "the prompt must be"),
        (7, {}, "the prompt must be"),
        ("abcdefghij", {}, "10 tokens and the model's context is 10"),
        ("a\udcff", {}, "not valid text"),
        ([{"role": "user", "content": "\udcff"}], {}, "not valid text"),
        ([{"role": "user", "content": 3}], {}, "'content' is int"),
        ([{"role": "user", "content": "hi"}], {}, "no chat format"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_at_once(prompt: Any, asked: Any, says: str) -> None:
    with toy_engine({}, toys.markov_target(table(), context=10)) as engine:
        with pytest.raises(RequestError, match=says):
            engine.stream(prompt, **asked)
        assert engine.complete("abc", max_tokens=2).finish == "max_tokens"


def test_the_longest_prompt_leaves_room_for_one_token() -> None:
    with toy_engine({}, toys.markov_target(table(), context=10)) as engine:
        result = engine.complete("abcdefghi")
    assert (len(result.tokens), result.finish) == (1, "context")


def test_a_closed_engine_refuses_and_closes_once() -> None:
    closed: list[int] = []

    class Watching:
        @hookimpl
        def sparkwright_engine_closed(self) -> None:
            closed.append(1)

    engine = toy_engine({"observers": {"use": ["watching"]}}, observer("watching", Watching()))
    with engine:
        engine.complete("abc", max_tokens=2)
    engine.close()
    assert closed == [1]
    with pytest.raises(RequestError, match="closed"):
        engine.complete("abc")
    with pytest.raises(RequestError, match="closed"):
        engine.run(lambda parts: 1)


def test_requests_accepted_before_closing_are_served() -> None:
    engine = toy_engine({})
    streams = [engine.stream("abc", max_tokens=50) for _ in range(5)]
    engine.close()
    assert {stream.result.finish for stream in streams} == {"max_tokens"}


# -------------------------------------------------------------------------------------------------------- cancellation


def observer(name: str, plugin: object) -> Provider:
    return Provider(kind="observer", name=name, summary="toy", build=lambda options, site: plugin)


def test_cancelling_mid_text_ends_after_the_round_at_hand() -> None:
    target, built = watched(toys.markov_target(table()))
    with toy_engine({"drafter": {"use": "table"}}, target) as engine:
        stream = engine.stream("abc", max_tokens=ENDLESS)
        pieces = []
        for piece in stream:
            pieces.append(piece)
            if len(pieces) == 5:
                stream.cancel()
        result = stream.result
        assert result.finish == "cancelled"
        assert result.text == "".join(piece.text for piece in pieces)
        assert result.tokens == tuple(token for piece in pieces for token in piece.tokens)
        assert built[0].states[-1].tokens == [*letters("abc"), *result.tokens[:-1]]
        assert list(stream) == []  # a second loop ends at once
        assert engine.complete("abc", max_tokens=3).tokens == result.tokens[:3]


def test_a_request_cancelled_while_it_waits_has_a_result_without_tokens() -> None:
    with toy_engine({}) as engine:
        first = engine.stream("abc", max_tokens=ENDLESS)
        second = engine.stream("abc", max_tokens=ENDLESS)
        second.cancel()
        first.cancel()
        result = second.result
        assert (result.finish, result.tokens, result.text) == ("cancelled", (), "")
        assert next(iter(second)).tokens == ()


def test_cancelling_during_prefill_computes_no_further_chunk() -> None:
    started = threading.Event()
    chunks: list[int] = []

    @attrs.define(eq=False)
    class Cancelling:
        stream: Any = None

        @hookimpl
        def sparkwright_progress(self, what: str, done: int) -> None:
            if what == "prefill":
                assert started.wait(30)
                chunks.append(done)
                if done == 4:
                    self.stream.cancel()

    plugin = Cancelling()
    settings = {"engine": {"prefill_chunk": 2}, "observers": {"use": ["cancelling"]}}
    with toy_engine(settings, observer("cancelling", plugin)) as engine:
        plugin.stream = engine.stream("abcdefghijk", max_tokens=5)
        started.set()
        result = plugin.stream.result
    assert (result.finish, result.tokens, chunks) == ("cancelled", (), [2, 4])
    assert result.warnings == ()


def test_leaving_the_block_or_dropping_a_stream_ends_its_request() -> None:
    finishes: list[str] = []

    class Keeping:
        @hookimpl
        def sparkwright_request_finished(self, result: Result) -> None:
            finishes.append(result.finish)

    with toy_engine({"observers": {"use": ["keeping"]}}, observer("keeping", Keeping())) as engine:
        with engine.stream("abc", max_tokens=ENDLESS) as stream:
            next(iter(stream))
        stream = engine.stream("abc", max_tokens=ENDLESS)
        next(iter(stream))
        del stream
        gc.collect()
        engine.complete("abc", max_tokens=1)
    assert finishes == ["cancelled", "cancelled", "max_tokens"]


# ----------------------------------------------------------------------------------------------- the same text again


def test_a_seed_gives_one_text_alone_and_after_other_requests() -> None:
    settings = {"drafter": {"use": "table"}}
    with toy_engine(settings, base=SAMPLED) as engine:
        first = engine.complete("abc", seed=1)
        other = engine.complete("abc", seed=2)
        engine.complete("kkkk", seed=77)
        again = engine.complete("abc", seed=1)
    assert first.tokens == again.tokens != other.tokens
    with toy_engine(settings, base=SAMPLED) as engine:
        assert engine.complete("abc", seed=1).tokens == first.tokens
        assert engine.complete("abc", seed=1 + 2**64).tokens == first.tokens
        engine.complete("abc", seed=-5)


@pytest.mark.parametrize("verifier", ["stochastic", "block", "coupled"])
def test_choices_of_one_seed_differ(verifier: str) -> None:
    settings = {"drafter": {"use": "table"}, "verifier": {"use": verifier}}
    with toy_engine(settings, toys.table_drafter(near(table())), base=SAMPLED) as engine:
        texts = [engine.complete("abc", seed=1, choice=choice).text for choice in (0, 1, 2, 0)]
    assert texts[0] == texts[3] and len(set(texts)) == 3


def test_any_prefill_chunk_gives_the_same_text() -> None:
    texts = set()
    for chunk in (1, 2, 3, 5, 11, 100):
        settings = {"drafter": {"use": "lookup"}, "engine": {"prefill_chunk": chunk}}
        with toy_engine(settings, base=SAMPLED) as engine:
            texts.add(engine.complete("abcabcabcabcabc", seed=3, max_tokens=50).text)
    assert len(texts) == 1


PROMPTS = ["abc", "kkk", "fa", "dh", "abcabc", "j"]


def in_threads(work: Callable[[int], Any], n: int) -> list[Any]:
    results: list[Any] = [None] * n

    def run(i: int) -> None:
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_concurrent_requests_queue_and_give_the_text_they_give_alone() -> None:
    with toy_engine({"drafter": {"use": "lookup"}}, base=SAMPLED) as engine:
        alone = [engine.complete(prompt, seed=i).tokens for i, prompt in enumerate(PROMPTS)]
        together = in_threads(lambda i: engine.complete(PROMPTS[i], seed=i).tokens, len(PROMPTS))
    assert together == alone


def test_two_engines_in_two_threads_are_independent() -> None:
    tables = [table(1), table(2)]

    def texts(i: int) -> list[str]:
        target = toys.markov_target(tables[i % 2])
        with toy_engine({"drafter": {"use": "lookup"}}, target, base=SAMPLED) as engine:
            return [engine.complete(prompt, seed=4, max_tokens=40).text for prompt in PROMPTS]

    alone = [texts(0), texts(1)]
    assert alone[0] != alone[1]
    assert in_threads(texts, 4) == alone * 2


# ------------------------------------------------------------------------------------------------- plugins that fail


def faulty(provider: Provider, hook: str, fault: Callable[[], Any]) -> tuple[Provider, dict[str, bool]]:
    """The provider's plugin, whose `hook` does `fault` while the returned switch is on."""
    switch = {"on": False}

    class Proxy:
        pass

    def build(options: Any, site: Any) -> object:
        real, proxy = provider.build(options, site), Proxy()
        for name in dir(real):
            if name.startswith("sparkwright_"):
                setattr(proxy, name, getattr(real, name))
        good = getattr(real, hook)

        def call(*args: Any) -> Any:
            return fault() if switch["on"] else good(*args)

        names = [name for name in good.__func__.__code__.co_varnames[: good.__func__.__code__.co_argcount]][1:]
        scope: dict[str, Any] = {"call": call}
        exec(f"def {hook}({', '.join(names)}):\n    return call({', '.join(names)})", scope)
        setattr(proxy, hook, hookimpl(scope[hook]))
        return proxy

    return attrs.evolve(provider, build=build), switch


def raising() -> Any:
    raise ZeroDivisionError("on purpose")


CONFIDENT = toys.table_drafter(near(table()), proposal="point", block=5, confidences=(0.9,) * 5)
HOOKS = [
    ("target", "new_state"),
    ("target", "forward"),
    ("drafter", "start"),
    ("drafter", "draft"),
    ("drafter", "observe"),
    ("scheduler", "start"),
    ("scheduler", "plan"),
    ("scheduler", "more"),
    ("scheduler", "learn"),
    ("sampler", "start"),
    ("sampler", "rows"),
    ("sampler", "distribution"),
    ("sampler", "advance"),
    ("verifier", "verify"),
]
CONFIDENT_SETTINGS: dict[str, Any] = {"drafter": {"use": "table"}, "scheduler": {"use": "threshold"}}


def with_fault(kind: Any, method: str, fault: Callable[[], Any]) -> tuple[Any, dict[str, bool], str]:
    config = toy_config(CONFIDENT_SETTINGS, CONFIDENT)
    name = config.slots[kind].use
    provider, switch = faulty(config.catalogue.get(kind, name, "").provider, f"sparkwright_{kind}_{method}", fault)
    return toy_engine(CONFIDENT_SETTINGS, CONFIDENT, provider), switch, name


@pytest.mark.parametrize("fault", [raising, lambda: (_ for _ in ()).throw(SystemExit(3))], ids=["error", "exit"])
@pytest.mark.parametrize(("kind", "method"), HOOKS)
def test_a_plugin_that_raises_is_named_with_its_hook_and_the_engine_goes_on(
    kind: str, method: str, fault: Callable[[], Any]
) -> None:
    engine, switch, name = with_fault(kind, method, fault)
    with engine:
        before = engine.complete("abcabc").tokens
        switch["on"] = True
        with pytest.raises(PluginError, match=f"{kind} plugin '{name}' raised in sparkwright_{kind}_{method}: "):
            engine.complete("abcabc")
        stream = engine.stream("abcabc")
        with pytest.raises(PluginError):
            list(stream)
        switch["on"] = False
        assert engine.complete("abcabc").tokens == before


WRONG: list[tuple[str, str, Callable[[], Any], str]] = [
    ("target", "forward", lambda: None, "returned NoneType, expected a Forward"),
    ("target", "forward", lambda: Forward(None, None), "logits of shape None"),
    ("target", "forward", lambda: Forward(mx.zeros((1, V - 1)), None), r"expected \(1, 11\)"),
    ("target", "forward", lambda: Forward(mx.zeros((9, V)), None), "logits of shape"),
    ("drafter", "draft", lambda: [1, 2], "returned list, expected a Draft"),
    ("drafter", "draft", lambda: Draft(mx.zeros((9,), dtype=mx.int32), PointMass()), "9 drafts, its limit"),
    ("drafter", "draft", lambda: Draft(mx.zeros((1,), dtype=mx.int32), Dense(mx.zeros((1, V)))), "Dense proposal"),
    ("drafter", "draft", lambda: Draft(mx.array([V], dtype=mx.int32), PointMass()), "drafted token 11, outside"),
    (
        "drafter", "draft", lambda: Draft(mx.zeros((2,), dtype=mx.int32), PointMass(), mx.ones((3,))),
        "3 confidences for 2 drafts",
    ),
    ("scheduler", "plan", lambda: 99, "planned 99 drafts, expected 0"),
    ("scheduler", "plan", lambda: -1, "planned -1"),
    ("scheduler", "plan", lambda: None, "planned None"),
    ("sampler", "distribution", lambda: 3, "returned int, expected a Distribution"),
    ("verifier", "verify", lambda: None, "returned NoneType, expected a Verdict"),
    ("verifier", "verify", lambda: Verdict(mx.zeros((2,), dtype=mx.int32)), "verdict of shape"),
    (
        "verifier", "verify", lambda: Verdict(mx.array([9, 0, 0, 0, 0, 0, 0, 0], dtype=mx.int32)), "accepted 9 of 5",
    ),
    (
        "verifier", "verify", lambda: Verdict(mx.array([0, V, 0, 0, 0, 0, 0, 0], dtype=mx.int32)), "token 11",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "method", "fault", "says"), WRONG, ids=[f"{w[0]} {w[3]}" for w in WRONG])
def test_what_a_plugin_may_not_return_is_refused_by_name(
    kind: str, method: str, fault: Callable[[], Any], says: str
) -> None:
    engine, switch, name = with_fault(kind, method, fault)
    with engine:
        switch["on"] = True
        with pytest.raises(PluginError, match=says) as caught:
            engine.complete("abcabc")
        assert f"{kind} plugin '{name}'" in str(caught.value)
        switch["on"] = False
        engine.complete("abcabc")


@pytest.mark.parametrize("method", ["begin", "commit", "position"])
def test_a_state_that_raises_is_the_targets_fault(method: str) -> None:
    def position(state: Any) -> int:
        raise ValueError("on purpose")

    own = {"position": property(position), "begin": position, "commit": lambda state, m: position(state)}
    broken = type("Broken", (toys.ToyState,), {method: own[method]})

    @attrs.define(eq=False)
    class Target(toys.MarkovTarget):
        @hookimpl
        def sparkwright_target_new_state(self) -> Any:
            return broken()

    target, _ = watched(toys.markov_target(table()), lambda made: Target(made.table))
    with toy_engine({}, target) as engine, pytest.raises(PluginError, match=f"target plugin 'markov' .*{method}"):
        engine.complete("abc")


@pytest.mark.parametrize("method", ["encode", "decode"])
def test_a_tokenizer_that_raises_is_the_targets_fault(method: str) -> None:
    def fault(text: Any, what: Any) -> Any:
        raise OverflowError("on purpose")

    broken = type("Broken", (toys.ToyText,), {method: fault})()

    class Target(toys.MarkovTarget):
        @hookimpl
        def sparkwright_target_text(self) -> Any:
            return broken

    target, _ = watched(toys.markov_target(table()), lambda made: Target(made.table))
    with toy_engine({}, target) as engine, pytest.raises(PluginError, match="'markov' raised in its tokenizer: Overf"):
        engine.complete("abc")


def test_a_transaction_is_aborted_when_the_round_fails() -> None:
    target, built = watched(toys.markov_target(table()))
    config = toy_config({})
    verifier, switch = faulty(
        config.catalogue.get("verifier", "greedy", "").provider, "sparkwright_verifier_verify", raising
    )
    with toy_engine({"drafter": {"use": "table"}}, target, verifier) as engine:
        switch["on"] = True
        with pytest.raises(PluginError):
            engine.complete("abc")
        state = built[0].states[-1]
        assert not state.open and state.tokens == letters("abc")


def test_a_graph_that_fails_on_the_device_is_one_error() -> None:
    """MLX is lazy: a plugin's mistake can surface where the engine reads, far from the plugin."""

    class Late:
        @hookimpl
        def sparkwright_drafter_start(self) -> int:
            return 0

        @hookimpl
        def sparkwright_drafter_draft(self, limit: int) -> Draft:
            inverse = mx.linalg.inv(mx.zeros((2, 2)), stream=mx.cpu)  # raises when it is computed
            confidence = inverse.sum() * mx.zeros((limit,))
            return Draft(mx.zeros((limit,), dtype=mx.int32), PointMass(), confidence)

        @hookimpl
        def sparkwright_drafter_observe(self) -> None:
            return None

    provider = Provider(
        kind="drafter", name="late", summary="toy", build=lambda options, site: Late(),
        describe=lambda options, site: DrafterFacts(block=3, confidence=True),
    )  # fmt: skip
    settings = {"drafter": {"use": "late"}, "scheduler": {"use": "threshold"}}
    with toy_engine(settings, provider) as engine, pytest.raises(PluginError, match="the device could not compute"):
        engine.complete("abc")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("sampler", ["greedy", "chain", "plain"])
def test_logits_that_are_not_finite_are_a_numeric_error(bad: float, sampler: str) -> None:
    broken = table()
    broken[letters("e")[0], 3] = bad
    settings = {"sampler": {"use": sampler}, "drafter": {"use": "random"}}
    with toy_engine(settings, toys.markov_target(broken), base=SAMPLED) as engine:
        with pytest.raises(NumericError, match="target plugin 'markov' gave logits that are not finite"):
            engine.complete("abe")  # the first row
        with pytest.raises(NumericError, match="after position"):
            for seed in range(30):
                engine.complete("abc", seed=seed, max_tokens=40)


def test_a_row_that_decides_nothing_may_be_anything() -> None:
    """A rejected draft's row is computed and never used."""
    broken = table()
    greedy = int(np.argmax(broken[letters("c")[0]]))
    wrong = (greedy + 1) % V
    broken[wrong] = np.nan
    always = np.full((V, V), -9.0, dtype=np.float32)
    always[:, wrong] = 9.0
    drafter = toys.table_drafter(always, proposal="point", block=2)
    with toy_engine({"drafter": {"use": "table"}}, toys.markov_target(broken), drafter) as engine:
        result = engine.complete("abc", max_tokens=2 if greedy != wrong else 1)
    assert result.stats.accepted == 0


def test_a_drafter_of_dense_drafts_may_give_deterministic_ones() -> None:
    made = toys.table_drafter(near(table()), proposal="point", block=3)
    facts = DrafterFacts(block=3, proposal="dense", vocab_size=V)
    drafter = attrs.evolve(made, describe=lambda options, site: facts)
    with toy_engine({"drafter": {"use": "table"}}, drafter) as engine, toy_engine({}) as plain:
        assert engine.complete("abc").tokens == plain.complete("abc").tokens


# --------------------------------------------------------------------------------------------------------- observers

WATCHED_HOOKS = ["request_started", "progress", "round_finished", "request_finished", "plugin_broken", "engine_closed"]


@pytest.mark.parametrize("method", WATCHED_HOOKS)
def test_an_observer_that_raises_is_switched_off_reported_and_costs_nothing(method: str) -> None:
    told: list[tuple[str, str]] = []
    calls: list[int] = []

    class Good:
        @hookimpl
        def sparkwright_plugin_broken(self, name: str, error: str) -> None:
            told.append((name, error))

        @hookimpl
        def sparkwright_round_finished(self) -> None:
            calls.append(1)

    class Bad:
        pass

    def fault() -> None:
        raise OSError("disk full")

    bad = Bad()
    setattr(bad, f"sparkwright_{method}", hookimpl(fault))
    settings = {"observers": {"use": ["bad", "other", "good"]}}
    other = Bad()
    if method == "plugin_broken":  # somebody else must break first
        other.sparkwright_request_started = hookimpl(lambda: fault())  # type: ignore[attr-defined]
    with toy_engine({}) as plain:
        expected = plain.complete("abc")
    engine = toy_engine(settings, observer("bad", bad), observer("good", Good()), observer("other", other))
    with engine:
        result = engine.complete("abc")
        again = engine.complete("abc")
    assert result.tokens == again.tokens == expected.tokens
    assert len(calls) == expected.stats.rounds * 2
    assert ("bad", "OSError: disk full") in told
    if method != "engine_closed":
        warning = f"observer plugin 'bad' raised in sparkwright_{method} and was switched off: OSError: disk full"
        assert warning in again.warnings


def test_an_engine_without_observers_never_makes_up_warnings() -> None:
    with toy_engine({}) as engine:
        assert engine.complete("abc").warnings == engine.warnings == ()
