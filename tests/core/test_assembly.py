"""What is refused before anything is loaded, which promise is in force, and what an assembly chooses and shares."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from tests.core.engines import GREEDY, V, table, toy_config, toy_engine, watched

from sparkwright.core.assembly import assemble, load_target, promise_in_force
from sparkwright.core.config import load_config
from sparkwright.core.contracts import (
    CostCurves,
    DrafterFacts,
    Provider,
    SamplerFacts,
    SchedulerFacts,
    Site,
    TargetFacts,
    VerifierFacts,
)
from sparkwright.core.costs import file_for, load, save
from sparkwright.core.errors import AssemblyError, ConfigError, ModelError, PluginError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.plugins import Catalogue, discover
from sparkwright.core.store import WeightStore
from sparkwright.core.testing import toys

TARGET = TargetFacts(V, 100, V, 1, (), "markov", "exact")


def never(options: Any, site: Site) -> object:
    raise AssertionError("nothing is built before the plugins are known to fit")


def described(kind: Any, facts: Any, **more: Any) -> Provider:
    return Provider(kind=kind, name="odd", summary="toy", build=never, describe=lambda options, site: facts, **more)


def refusal(*providers: Provider, **settings: Any) -> str:
    target, built = watched(toys.markov_target(table()))
    chosen: dict[str, Any] = {p.kind: {"use": p.name} for p in providers if p.kind != "target"}
    used = {p.kind for p in providers}
    if "target" in used:
        chosen["target"] = {"use": "odd"}
    with pytest.raises(AssemblyError) as caught:
        toy_engine({**chosen, **settings}, target, *providers)
    assert not built
    return str(caught.value)


BLOCK = DrafterFacts(block=3)


@pytest.mark.parametrize(
    ("providers", "says"),
    [
        (
            [described("drafter", attrs.evolve(BLOCK, vocab_size=7))],
            ["drafter 'odd' has a vocabulary of 7", "target 'markov' of 11"],
        ),
        (
            [described("drafter", attrs.evolve(BLOCK, taps=(0, 5)))],
            ["drafter 'odd' reads the outputs of layers [5]", "target 'markov' has layers 0..0"],
        ),
        (
            [described("drafter", attrs.evolve(BLOCK, taps=(-2,)))],
            ["layers [-2]"],
        ),
        (
            [
                described("drafter", attrs.evolve(BLOCK, taps=(0,))),
                described("target", attrs.evolve(TARGET, tappable=False)),
            ],
            ["drafter 'odd' reads layers [0]", "target 'odd' gives out no layer outputs"],
        ),
        (
            [described("drafter", BLOCK), described("target", attrs.evolve(TARGET, rollback=None))],
            ["drafter 'odd' needs a target that takes rejected rows back", "target 'odd' (markov) cannot", "'none'"],
        ),
        (
            [
                described("drafter", attrs.evolve(BLOCK, proposal="dense")),
                described("verifier", VerifierFacts("law", proposals=frozenset({"point"}))),
            ],
            ["drafter 'odd' proposes dense drafts", "verifier 'odd' takes point"],
        ),
        (
            [
                described("scheduler", SchedulerFacts(anticipates=True)),
                described("verifier", VerifierFacts("law", causal=True)),
                described("sampler", SamplerFacts()),
            ],
            ["scheduler 'odd' looks at later confidences", "verifier 'odd'", "'coupled'"],
        ),
        (
            [described("sampler", SamplerFacts(deterministic=False))],
            ["verifier 'greedy' is exact only without randomness", "sampler 'odd' samples", "'stochastic'"],
        ),
        (
            [described("drafter", BLOCK, requires=frozenset({"telepathy"}))],
            ["drafter 'odd' requires telepathy, which no other plugin"],
        ),
    ],
)  # fmt: skip
def test_plugins_that_do_not_fit_are_refused_with_both_sides_named(providers: list[Provider], says: list[str]) -> None:
    text = refusal(*providers)
    for part in says:
        assert part in text
    assert "\n" not in text


def test_row_exact_is_refused_by_a_target_without_it() -> None:
    assert "engine.row_exact is set, target 'markov' (markov) does not offer it" in refusal(
        engine={"row_exact": True, "costs": "none"}
    )


def test_all_that_does_not_fit_is_said_at_once() -> None:
    text = refusal(
        described("drafter", attrs.evolve(BLOCK, vocab_size=7, taps=(9,)), requires=frozenset({"x"})),
        described("sampler", SamplerFacts()),
    )
    assert len(text.splitlines()) == 4


def test_what_fits_is_not_refused() -> None:
    """The same plugins, one fact changed each: no refusal is a matter of course."""
    anticipating = described("scheduler", SchedulerFacts(anticipates=True))
    for providers in (
        [described("drafter", attrs.evolve(BLOCK, vocab_size=V, taps=(-1, 0)))],
        [described("drafter", attrs.evolve(BLOCK, vocab_size=None))],
        [described("drafter", DrafterFacts(block=0)), described("target", attrs.evolve(TARGET, rollback=None))],
        [anticipating],  # greedy needs no causality, nor does any verifier under a sampler without randomness
        [anticipating, described("verifier", VerifierFacts("law", causal=True))],
        [anticipating, described("sampler", SamplerFacts()), described("verifier", VerifierFacts("law", causal=False))],
        [
            described("drafter", BLOCK, requires=frozenset({"x"})),
            described("scheduler", SchedulerFacts(), provides=frozenset({"x"})),
        ],
    ):  # fmt: skip
        with pytest.raises(AssertionError, match="nothing is built"):
            try:
                toy_engine({p.kind: {"use": "odd"} for p in providers}, *providers)
            except PluginError as error:
                assert error.__cause__ is not None
                raise error.__cause__ from None


# --------------------------------------------------------------------------------------------------------- promises


@pytest.mark.parametrize(
    ("verifier", "sampler", "drafter", "row_exact", "promise"),
    [
        (VerifierFacts("law"), SamplerFacts(), BLOCK, False, "law"),
        (VerifierFacts("law"), SamplerFacts(), BLOCK, True, "law"),
        (VerifierFacts("law"), SamplerFacts(deterministic=True), BLOCK, False, "identity-up-to-ties"),
        (VerifierFacts("law"), SamplerFacts(deterministic=True), BLOCK, True, "identity"),
        (VerifierFacts("identity-up-to-ties"), SamplerFacts(), BLOCK, False, "identity-up-to-ties"),
        (VerifierFacts("identity-up-to-ties"), SamplerFacts(), BLOCK, True, "identity"),
        (VerifierFacts("lossy", deterministic_promise="lossy"), SamplerFacts(True), BLOCK, True, "lossy"),
        (VerifierFacts("lossy"), SamplerFacts(), BLOCK, False, "lossy"),
        (VerifierFacts("lossy"), SamplerFacts(), DrafterFacts(block=0), False, "identity"),
    ],
)
def test_the_promise_in_force(verifier: Any, sampler: Any, drafter: Any, row_exact: bool, promise: str) -> None:
    config = toy_config({"engine": {"row_exact": row_exact}})
    assert promise_in_force({"verifier": verifier, "sampler": sampler, "drafter": drafter}, config) == promise


def test_a_result_carries_its_promise() -> None:
    with toy_engine({"drafter": {"use": "lookup"}}) as engine:
        assert engine.promise == engine.complete("abc", max_tokens=2).promise == "identity-up-to-ties"


# ---------------------------------------------------------------------------------------------------------- choosing


def recognising(name: str, sure: int | Callable[[Path], int], facts: TargetFacts | None = None) -> Provider:
    made = toys.markov_target(table(), name=name)
    answer = sure if callable(sure) else lambda path: sure
    describe = made.describe if facts is None else lambda options, site: facts
    return attrs.evolve(made, recognises=answer, describe=describe)


def test_auto_takes_the_target_that_is_surest_and_says_why(tmp_path: Path) -> None:
    settings = {"target": {"use": "auto", "model": str(tmp_path)}}
    with toy_engine(settings, recognising("zed", 2), recognising("able", 1)) as engine:
        report = engine.slots["target"]
        assert (report.requested, report.effective, report.reason) == ("auto", "zed", "made for this model")
    with toy_engine(settings, recognising("zed", 1), recognising("able", 1)) as engine:
        assert engine.slots["target"].effective == "able"


def test_a_model_that_is_missing_or_that_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        toy_engine({"target": {"use": "auto", "model": str(tmp_path / "no")}})
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="is a file"):
        toy_engine({"target": {"use": "auto", "model": str(tmp_path / "file")}})
    with pytest.raises(AssemblyError, match="no target plugin recognises"):
        toy_engine({"target": {"use": "auto", "model": str(tmp_path)}}, recognising("zed", 0))

    def broken(path: Path) -> int:
        raise ValueError("on purpose")

    with pytest.raises(PluginError, match="target plugin 'zed' raised in recognises: ValueError"):
        toy_engine({"target": {"use": "auto", "model": str(tmp_path)}}, recognising("zed", broken))


def test_auto_drafters_are_reported_with_the_reason() -> None:
    def effective(**facts: Any) -> tuple[str, str]:
        target = recognising("markov", 0, attrs.evolve(TARGET, **facts))
        with toy_engine({"drafter": {"use": "auto"}}, target) as engine:
            report = engine.complete("abc", max_tokens=2).slots["drafter"]
            assert report.requested == "auto"
            return report.effective, report.reason

    assert effective() == ("lookup", "the checkpoint holds no drafter of its own")
    assert effective(rollback=None) == ("none", "the target cannot take rows back")
    assert effective(drafter="table") == ("table", "the checkpoint holds this drafter")
    with pytest.raises(PluginError, match=r"no drafter plugin is named 'absent' .asked by drafter.use = auto"):
        effective(drafter="absent")


# ---------------------------------------------------------------------------------------- plugins that do not build


@pytest.mark.parametrize("kind", ["target", "drafter", "scheduler", "sampler", "verifier"])
@pytest.mark.parametrize("step", ["build", "describe"])
def test_a_plugin_that_raises_while_it_is_described_or_built_is_named(kind: Any, step: str) -> None:
    config = toy_config({})
    name = config.slots[kind].use

    def raising(options: Any, site: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    change: dict[str, Any] = {step: raising}
    broken = attrs.evolve(config.catalogue.get(kind, name, "").provider, **change)
    with pytest.raises(PluginError, match=f"{kind} plugin '{name}' raised in {step}: ZeroDivisionError: on purpose"):
        toy_engine({}, broken)
    change[step] = lambda options, site: None
    wrong = attrs.evolve(broken, **change)
    expected = "describe gave NoneType, expected" if step == "describe" else "is implemented by nobody"
    with pytest.raises(PluginError, match=f"{kind} plugin '{name}'.*{expected}"):
        toy_engine({}, wrong)


def test_a_built_plugin_with_a_misspelt_or_missing_hook_is_named() -> None:
    class Misspelt:
        @hookimpl
        def sparkwright_drafter_drafts(self) -> None:
            return None

    class Missing:
        @hookimpl
        def sparkwright_drafter_start(self) -> int:
            return 0

    class Greedy:
        @hookimpl
        def sparkwright_drafter_start(self, wanted: int) -> int:
            return 0

    def engine(plugin: object) -> None:
        build: Any = lambda options, site: plugin  # noqa: E731
        toy_engine({"drafter": {"use": "odd"}}, attrs.evolve(described("drafter", BLOCK), build=build))

    with pytest.raises(PluginError, match=r"'odd' has hooks that do not fit: .*_drafts; did you mean '\w+_draft'"):
        engine(Misspelt())
    with pytest.raises(PluginError, match="its hook sparkwright_drafter_observe is implemented by nobody"):
        engine(Missing())
    with pytest.raises(PluginError, match=r"hooks that do not fit.*wanted"):
        engine(Greedy())


def test_a_plugin_that_answers_for_another_slot_is_refused() -> None:
    class Both(toys.PlainSampler):
        @hookimpl
        def sparkwright_verifier_verify(self) -> None:
            return None

    sampler, _ = watched(toys.plain_sampler(0), lambda made: Both(0))
    with pytest.raises(PluginError, match=r"verifier plugin 'greedy': its hook .*verify comes from .*sampler:plain"):
        toy_engine({"sampler": {"use": "plain"}}, sampler)


# ------------------------------------------------------------------------------------------ store, costs, the rest


def test_engines_with_one_store_load_weights_once_and_without_one_apart() -> None:
    loads: list[str] = []
    made = toys.markov_target(table())

    def build(options: Any, site: Site) -> object:
        assert site.store is not None

        def load() -> object:
            loads.append("once")
            return made.build(options, site)

        return site.store(("markov", "f32"), load)

    config = toy_config({}, attrs.evolve(made, build=build))
    store = WeightStore()
    with assemble(config, store=store) as one, assemble(config, store=store) as two:
        assert one.complete("abc").tokens == two.complete("abc").tokens
    assert loads == ["once"]
    assemble(config).close()
    assert loads == ["once", "once"]


def test_two_engines_never_share_a_plugin_instance() -> None:
    drafter, built = watched(toys.table_drafter(table(), proposal="point"))
    config = toy_config({"drafter": {"use": "table"}}, drafter)
    with assemble(config), assemble(config):
        assert len(built) == 2 and built[0] is not built[1]


CURVES = CostCurves(0.1, (0.1, 0.2), 0.01, (1.0,))


def test_cost_curves_reach_the_scheduler_and_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    base = toy_config({}).catalogue.get("scheduler", "fixed", "").provider

    def build(options: Any, site: Site) -> object:
        seen.append(site.costs)
        return base.build(options, site)

    provider = attrs.evolve(base, build=build)
    save(tmp_path / "there/costs.json", CURVES, {"model": "toy"})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there/run.toml").write_text('[engine]\ncosts = "costs.json"')
    hashes = set()
    for settings in ({"costs": "none"}, {"costs": "there/costs.json"}):
        with toy_engine({"engine": settings}, provider) as engine:
            hashes.add(engine.config_sha256)
    assert seen == [None, CURVES] and len(hashes) == 2

    catalogue = toy_config({}, provider).catalogue
    sets = tuple(
        f"{kind}.use={GREEDY[kind]['use']}" for kind in ("target", "drafter", "scheduler", "verifier", "sampler")
    )
    config = load_config(tmp_path / "there/run.toml", sets=sets, environ={}, catalogue=catalogue)
    assemble(config).close()  # the path starts from the file's folder
    assert seen[-1] == CURVES

    cached = file_for(f"markov{V}", "none", "cpu")
    with toy_engine({"engine": {"costs": "auto"}}, provider):
        assert seen[-1] is None
    save(cached, CURVES, {})
    with toy_engine({"engine": {"costs": "auto"}}, provider):
        assert seen[-1] == CURVES


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"curves": {}}', '{"curves": {"plain": 0, "verify": [1], "draft": 0, "temperatures": []}}'],
)
def test_a_file_without_cost_curves_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"costs\.json holds no cost curves"):
        load(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "nowhere.json")


def test_progress_is_told_and_may_not_break_a_request() -> None:
    told: list[tuple[str, int, int]] = []
    with toy_engine(
        {"engine": {"prefill_chunk": 2}}, progress=lambda what, done, total: told.append((what, done, total))
    ) as engine:
        engine.complete("abcde")
    assert told == [("prefill", 2, 5), ("prefill", 4, 5), ("prefill", 5, 5)]

    def raising(what: str, done: int, total: int) -> None:
        raise OSError("no terminal")

    with toy_engine({}, progress=raising) as engine:
        result = engine.complete("abc")
    assert result.finish == "max_tokens" and "observer plugin 'progress'" in result.warnings[0]


def test_a_failed_assembly_closes_its_observers() -> None:
    closed: list[str] = []

    class Watching:
        @hookimpl
        def sparkwright_engine_closed(self) -> None:
            closed.append("closed")

    def observer(name: str, build: Any) -> Provider:
        return Provider(kind="observer", name=name, summary="toy", build=build)

    good, bad = observer("good", lambda options, site: Watching()), observer("bad", never)
    with pytest.raises(PluginError, match="observer plugin 'bad' raised in build"):
        toy_engine({"observers": {"use": ["good", "bad"]}}, good, bad)
    assert closed == ["closed"]
    broken = described("drafter", BLOCK)
    with pytest.raises(PluginError):
        toy_engine({"observers": {"use": ["good"]}, "drafter": {"use": "odd"}}, good, broken)
    assert closed == ["closed"] * 2


def test_an_interrupted_assembly_ends_at_the_next_report_of_progress() -> None:
    """Ctrl-C reaches the thread that waits; the one that loads must not go on for minutes."""
    import signal
    import threading

    made = toys.markov_target(table())
    steps: list[int] = []

    def build(options: Any, site: Site) -> object:
        for done in range(10_000_000):
            if done == 100_000:  # by now the main thread waits
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            steps.append(done)
            site.progress("load", done, 10_000_000)
        return made.build(options, site)

    with pytest.raises(KeyboardInterrupt):
        toy_engine({}, attrs.evolve(made, build=build))
    assert 0 < len(steps) < 10_000_000


def test_a_target_can_be_loaded_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import mlx.core as mx

    import sparkwright.core.assembly as assembly

    found: Catalogue = toy_config({}, recognising("markov", 2)).catalogue
    original = load_config
    monkeypatch.setattr(assembly, "load_config", lambda *args, **how: original(*args, **how, catalogue=found))
    target = load_target(tmp_path)
    state = target.new_state()
    forward = target.forward(mx.array([1, 2, 3]), state)
    assert forward.logits is not None and forward.logits.shape == (3, V) and state.position == 3
    transaction = state.begin()
    target.forward(mx.array([4, 5]), state, logits="none")
    transaction.commit(1)
    assert state.position == 4 and target.text.encode("b") == [1]


def test_a_target_alone_needs_no_other_plugin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The default scheduler, sampler and verifier may be missing; a name that was given may not."""
    import sparkwright.core.assembly as assembly

    alone = discover(entries=[], allow="").with_providers(toys.markov_target(table()))
    original = load_config
    monkeypatch.setattr(assembly, "load_config", lambda *args, **how: original(*args, **how, catalogue=alone))
    assert load_target(tmp_path, "markov").facts.vocab_size == V
    with pytest.raises(ConfigError, match="no scheduler plugin is named 'fixed'"):
        load_target(tmp_path, "markov", sets=("scheduler.use=fixed",))


def test_the_engines_hash_follows_what_decides_the_text() -> None:
    def sha(settings: Any, *providers: Provider) -> str:
        with toy_engine(settings, *providers) as engine:
            result = engine.complete("a", max_tokens=1)
            assert result.config_sha256 == engine.config_sha256
            return result.config_sha256

    assert sha({}) == sha({}) != sha({"generation": {"seed": 1}})
    assert sha({"drafter": {"use": "auto"}}) != sha(
        {"drafter": {"use": "auto"}}, recognising("markov", 0, attrs.evolve(TARGET, rollback=None))
    )
