"""What a comparison says, and that every form of it says the same."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from sparkwright.core.compare import statistics as st
from sparkwright.core.compare.analysis import drift, self_test
from sparkwright.core.compare.difference import Difference
from sparkwright.core.compare.records import ArmSpec, CompareError, Prompt, RunRecord, first_difference
from sparkwright.core.compare.result import CompareResult, idle
from sparkwright.core.compare.runner import Settings
from sparkwright.core.compare.simulated import Machine, SimulatedArm, SimulatedOpener, simulated_spec
from sparkwright.core.compare.store import Entry
from sparkwright.core.compare.verdict import decide

Compare = Callable[..., CompareResult]
A = simulated_spec("A")


@pytest.mark.parametrize(
    ("effect", "pairs", "kind", "words"),
    [
        (0.10, 8, "faster", r"^swap is faster \(\+.*%, interval \+.*%, 8 pairs\)$"),
        (-0.10, 8, "slower", r"^swap is slower \(-.*%, interval -.*%, 8 pairs\)$"),
        (0.0, 24, "no-difference", r"^swap: no difference larger than [0-2]\.\d% "),
        (
            0.0,
            3,
            "not-enough",
            r"not enough pairs to tell .* to find a difference of 3% with power 80% takes about \d+",
        ),
        (0.0, 1, "not-enough", r"not enough pairs \(one pair has no interval"),
    ],
)
def test_the_verdict_is_in_words(simulated: Compare, effect: float, pairs: int, kind: str, words: str) -> None:
    result = simulated(
        A, simulated_spec("B", "swap", effect=effect), pairs=pairs, settings=Settings(24, seed=5, profile=0)
    )
    verdict = result.comparisons[0].verdict
    assert verdict.kind == kind
    assert re.search(words, verdict.words), verdict.words
    assert result.verdict == verdict.words
    assert (verdict.pairs_needed > pairs) == (kind == "not-enough")


def test_the_numbers_are_those_of_the_raw_pairs(simulated: Compare) -> None:
    result = simulated()
    c = result.comparisons[0]
    rates = [(e.runs["A"].decode_rate or 0, e.runs["B"].decode_rate or 0) for e in result.pairs]
    logs = [math.log(b / a) for a, b in rates]
    assert c.decode.ratio == pytest.approx(math.exp(np.mean(logs)))
    assert c.wilcoxon == st.wilcoxon(logs)
    assert (c.wins, c.losses, c.ties) == (6, 0, 0)
    b = result.arms[1]
    runs = [e.runs["B"] for e in result.pairs]
    drafting = sum(r.tau_rounds for r in runs)
    assert b.tau is not None and b.tau.value == pytest.approx(1 + sum(r.accepted for r in runs) / drafting)
    assert b.tau_at[-1] == b.tau
    share = b.acceptance[0]
    assert share is not None
    assert share.value == sum(r.accepted_at[0] for r in runs) / sum(r.submitted_at[0] for r in runs)
    assert result.arms[0].tau is None and result.arms[0].acceptance == ()
    assert b.stages is not None and b.stages.apart


def test_arms_say_in_how_many_rounds_they_drafted_and_a_note_says_when_none_really_did(simulated: Compare) -> None:
    result = simulated()
    drafted = f"{sum(e.runs['B'].drafting_rounds for e in result.pairs)} of {result.arms[1].rounds}"
    assert f"| {drafted} |" in result.to_markdown() and f"<td>{drafted}</td>" in result.to_html()
    swapped = attrs.evolve(
        result.question, differences={"B": (Difference("drafter.use", "none", "lookup"),)}, stretch=0
    )
    base, b = (attrs.evolve(arm, rounds=1008, rounds_without_drafts=1008) for arm in result.arms)
    assert idle(swapped, result.arms) == []  # it drafted
    (note,) = idle(swapped, (base, attrs.evolve(b, rounds_without_drafts=1007)))
    assert note.startswith("A and B did the same work in 99.9 % of rounds: A drafted in 0 of 1008, B in 1 of 1008")
    sampler = attrs.evolve(swapped, differences={"B": (Difference("sampler.use", "greedy", "standard"),)})
    assert idle(sampler, (base, b)) == []  # drafts were not the question


def test_a_long_value_is_shown_without_its_middle() -> None:
    shown = str(Difference("drafter.p.words", ("first", *["word"] * 500, "last"), ()))
    assert "'first'" in shown and "'last') (502 entries) -> ()" in shown and len(shown) < 250


def test_several_candidates_are_corrected_for_their_number(simulated: Compare) -> None:
    specs = [A, *(simulated_spec(name, f"swap {name}", effect=e) for name, e in (("B", 0.1), ("C", 0.0), ("D", -0.1)))]
    result = simulated(*specs, pairs=10)
    assert [c.verdict.kind for c in result.comparisons][::2] == ["faster", "slower"]
    assert result.comparisons[1].decode.level > 0.95 or result.comparisons[1].p_adjusted > 0.05
    assert all(c.p_adjusted >= c.decode.p for c in result.comparisons)
    assert result.comparisons[0].decode.level > 0.95
    assert {len(e.runs) for e in result.pairs} == {4}


@attrs.define(eq=False)
class Watched:
    """An opener whose arms write down what they were asked; `texts` makes an arm's text its own."""

    promise: str = "identity"
    texts: bool = False
    asked: list[tuple[str, str, int, int]] = attrs.field(factory=list)
    open: set[str] = attrs.field(factory=set)
    machine: Machine = attrs.field(factory=Machine)
    effective: dict[str, dict[str, str]] = attrs.field(factory=dict)

    def __call__(self, spec: ArmSpec, *, stages: bool = False) -> Any:
        salt = spec.name if self.texts else ""
        inner = SimulatedArm(spec.name, self.machine, promise=self.promise, salt=salt)
        watched = self
        watched.open.add(spec.name)

        class Arm:
            effective = watched.effective.get(spec.name, {})

            def complete(self, prompt: Prompt, *, max_tokens: int, seed: int, ignore_eos: bool) -> RunRecord:
                watched.asked.append((spec.name, prompt.id, max_tokens, seed))
                return inner.complete(prompt, max_tokens=max_tokens, seed=seed, ignore_eos=ignore_eos)

            def close(self) -> None:
                watched.open.discard(spec.name)

        return Arm()


def test_a_pair_is_one_prompt_and_one_seed_in_the_planned_order_after_the_gate(simulated: Compare) -> None:
    opener = Watched()
    naps: list[float] = []
    settings = Settings(tokens=24, gate=2, gate_tokens=8, profile=0, cooldown=0.5)
    result = simulated(opener=opener, pairs=4, settings=settings, sleep=naps.append)
    gate, timed = opener.asked[:4], opener.asked[4:]
    assert {asked[2] for asked in gate} == {8} and {asked[2] for asked in timed} == {24}
    references = [run for run in timed if run[0] == "A" and run[1] == "code-0" and timed.count(run) > 1]
    assert len(timed) == 8 + len(result.question.plan.references)
    assert references
    orders = [tuple(e.runs) for e in result.pairs]
    assert orders[1] == orders[0][::-1] and orders[3] == orders[2][::-1]
    assert naps == [0.5] * 8
    assert opener.open == set()


def test_arms_are_closed_also_when_a_later_one_cannot_be_assembled(simulated: Compare) -> None:
    opener = Watched()

    def refusing(spec: ArmSpec, *, stages: bool = False) -> Any:
        if spec.name == "B":
            raise ValueError("no")
        return opener(spec, stages=stages)

    with pytest.raises(
        CompareError, match=r"arm B \(swap\) cannot be assembled: ValueError: no\. Nothing was measured yet"
    ):
        simulated(opener=refusing)
    assert opener.open == set()


@pytest.mark.parametrize(
    ("a", "b", "refused"),
    [
        ({"drafter": "x"}, {"drafter": "y"}, False),  # what was asked
        ({"scheduler": "fixed"}, {"scheduler": "cost_aware"}, True),
        ({"kernels.gather": "fused"}, {"kernels.gather": "unfused"}, True),
        ({"kernels.gather": "fused"}, {"kernels.topk": "unfused"}, False),  # an op of the plugin that was swapped
    ],
)
def test_a_difference_that_only_assembly_shows_is_refused(
    simulated: Compare, a: dict[str, str], b: dict[str, str], refused: bool
) -> None:
    opener = Watched(effective={"A": a, "B": b})
    if refused:
        with pytest.raises(CompareError, match=r"arm B \(swap\) was assembled with a second difference: .* in one and"):
            simulated(opener=opener)
        assert opener.asked == [] and opener.open == set()
    else:
        assert simulated(opener=opener).complete


def test_texts_that_differ_under_identity_stop_everything_before_timing(simulated: Compare, tmp_path: Path) -> None:
    opener = Watched(texts=True)
    same = ArmSpec("A", "base", {"sampler.use": "greedy", "drafter.use": "x"}, "a")
    other = ArmSpec("B", "drafter.use=y", {"sampler.use": "greedy", "drafter.use": "y"}, "b")
    with pytest.raises(
        CompareError,
        match=r"gate before timing failed on prompt 'code-0'.*both promise identity.*differ from token 0 on",
    ):
        simulated(same, other, opener=opener)
    assert {asked[2] for asked in opener.asked} == {8}  # nothing was timed
    with pytest.raises(CompareError, match="gate before timing failed"):
        simulated(same, other, opener=opener)


@pytest.mark.parametrize("promise", ["identity-up-to-ties", "law"])
def test_texts_that_may_differ_are_reported_and_timed(simulated: Compare, promise: str) -> None:
    result = simulated(opener=Watched(promise=promise, texts=True))
    assert result.complete and {check.first for check in result.gate} == {0}
    assert any("gate texts differ although identity (up to ties)" in note for note in result.notes) == (
        promise == "identity-up-to-ties"
    )
    assert result.comparisons[0].same_texts == 0
    assert result.gate[0].lengths == (8, 8) and len(set(result.gate[0].sha256)) == 2


@pytest.mark.parametrize("slot", ["sampler", "kernels", "target", "engine"])
def test_texts_are_not_owed_when_the_sampler_or_the_kernels_differ(simulated: Compare, slot: str) -> None:
    specs = [ArmSpec("A", "base", {f"{slot}.use": "one"}, "a"), ArmSpec("B", "other", {f"{slot}.use": "two"}, "b")]
    result = simulated(*specs, opener=Watched(texts=True), pairs=2)
    assert result.complete and not any(check.owed for check in result.gate)


def test_a_timed_text_that_breaks_the_promise_leaves_no_verdict() -> None:
    e = st.estimate([0.1, 0.11, 0.12])
    verdict = decide("swap", e, st.holm([e.p])[0], 0.03, 0.05, wrong_texts=2)
    assert verdict.kind == "invalid"
    assert "the texts of 2 pairs differ although both arms promise identity" in verdict.words


def test_first_difference_finds_the_token_or_the_end() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 5, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_a_drifting_machine_is_noted_and_a_steady_one_is_not(simulated: Compare, tmp_path: Path) -> None:
    two = [Prompt("one", "k", "one"), Prompt("two", "k", "two")]
    drifting = simulated(opener=SimulatedOpener(Machine(drift=0.004)), pairs=20, prompts=two)
    assert drifting.drift is not None and drifting.drift.noted
    runs = sum(len(e.runs) for e in drifting.entries if e.kind in ("pair", "reference"))
    assert drifting.drift.low <= -0.004 * (runs - 1) <= drifting.drift.high
    assert any(note.startswith("the machine drifted: -") for note in drifting.notes)
    assert any("20 pairs share 2 prompts" in note for note in drifting.notes)
    steady = simulated(pairs=20, prompts=two, out=tmp_path / "steady")
    assert steady.drift is not None and not steady.drift.noted
    assert drift(steady.entries[:1]) is None


def test_a_self_test_shows_the_false_alarm_rate_beside_the_nominal_one(simulated: Compare) -> None:
    """30 repetitions of 4 pairs; the runs dealt anew 2010 times: nominal 5%, standard error about 0.5 points."""
    result = simulated(A, pairs=4, self_test=30, settings=Settings(tokens=8, gate=1, profile=0))
    t = result.self_test
    assert t is not None and (t.repeats, t.pairs, t.nominal) == (30, 4, 0.05)
    assert t.alarms / 30 == t.rate and t.low <= 0.05 <= t.high
    assert 0.02 < t.redrawn < 0.08
    assert "A against A, 30 times 4 pairs" in result.verdict and "5% is nominal" in result.verdict
    assert [spec.label for spec in result.question.specs] == ["base", "base again"]
    assert "False alarms as they should be" in result.to_html()


def test_a_self_test_can_fail() -> None:
    """Arms that are not the same: every repetition alarms, though the coin drawn anew cannot know."""
    fast = RunRecord((0,) * 9, "max_tokens", "law", 1, 0.1, 1.0)
    wobble = np.random.default_rng(0).normal(0, 0.01, 80)
    entries = []
    for i in range(40):
        runs = {"A": attrs.evolve(fast, decode_seconds=1 + wobble[i]), "B": attrs.evolve(fast, decode_seconds=1.2)}
        entries.append(Entry("pair", i, "p", runs if i % 2 else dict(reversed(runs.items()))))
    t = self_test(entries, "A", "B", 4, 0.05, 0)
    assert t is not None and t.rate == 1.0 and t.low > 0.05 and "too unsteady" in t.words
    assert self_test(entries[:3], "A", "B", 4, 0.05, 0) is None


def test_runs_without_a_decode_rate_are_left_out_and_said_so(simulated: Compare) -> None:
    class Stops(SimulatedOpener):
        def __call__(self, spec: ArmSpec, *, stages: bool = False) -> Any:
            inner = super().__call__(spec, stages=stages)

            class Arm:
                effective: dict[str, str] = {}  # noqa: RUF012

                def complete(self, prompt: Prompt, **options: Any) -> RunRecord:
                    run = inner.complete(prompt, **options)
                    return attrs.evolve(run, tokens=run.tokens[:1]) if prompt.id in short else run

                def close(self) -> None:
                    return None

            return Arm()

    short = {"code-1"}
    result = simulated(opener=Stops(), pairs=4)
    assert result.left_out == 1 and result.comparisons[0].decode.n == 3
    assert any("1 pairs had a text of one token" in note for note in result.notes)


def test_without_any_decode_rate_there_is_no_verdict_but_a_report(simulated: Compare) -> None:
    result = simulated(pairs=2, settings=Settings(tokens=24, gate=1, gate_tokens=8, profile=0))
    nothing = [
        attrs.evolve(entry, runs={name: attrs.evolve(run, tokens=run.tokens[:1]) for name, run in entry.runs.items()})
        for entry in result.entries
    ]
    from sparkwright.core.compare.result import conclude

    empty = conclude(result.question, nothing)
    assert empty.verdict == "no verdict: no pair was measured" and not empty.complete
    assert "there is no verdict" in empty.to_html() and "no pair has a decode rate" in empty.to_markdown()


# ------------------------------------------------------------------------------------------------ the page


class Page(HTMLParser):
    """Elements, ids, texts, and whether every tag is closed."""

    VOID = frozenset({"meta", "br", "line", "circle", "rect", "path", "polyline"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.data: dict[str, float | None] = {}
        self.stack: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.elements.append((tag, given))
        if tag == "data":
            self.data[given["id"]] = float(given["value"]) if given["value"] else None
        if tag not in ("meta",):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack and self.stack.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def three(simulated: Compare, tmp_path: Path) -> tuple[Page, dict[str, Any], CompareResult]:
    specs = [A, simulated_spec("B", "drafter.use=<b>&", effect=0.06, block=5), simulated_spec("C", "c|d", block=2)]
    result = simulated(*specs, pairs=8, command="sparkwright compare x.toml", environment={"device": "simulated"})
    html = (tmp_path / "out" / "report.html").read_text()
    return Page(html), json.loads((tmp_path / "out" / "result.json").read_text()), result


def test_the_page_is_well_formed_self_contained_and_named_for_screen_readers(
    three: tuple[Page, dict[str, Any], CompareResult],
) -> None:
    page, _, result = three
    assert page.stack == []
    ids = [given["id"] for _, given in page.elements if "id" in given]
    assert len(ids) == len(set(ids))
    for tag, given in page.elements:
        assert tag not in ("script", "link", "iframe", "img", "object")
        assert not {"src", "xlink:href", "srcset", "onclick", "onload"} & set(given)
        assert given.get("href", "#").startswith("#") and given.get("href", "#")[1:] in [*ids, ""]
        for name in given.get("aria-labelledby", "").split():
            assert name in ids
        if given.get("role") in ("img", "region"):
            assert given.get("aria-label") or given.get("aria-labelledby")
        if "tabindex" in given:
            assert given["tabindex"] == "0"
    html = result.to_html()
    assert not re.search(r"https?://|//[a-z]|@import|url\(", html.replace("http-equiv", ""))
    assert "default-src 'none'" in html and "prefers-color-scheme:dark" in html
    assert html.startswith('<!DOCTYPE html><html lang="en">')
    assert "<b>&<" not in html and "drafter.use=&lt;b&gt;&amp;" in html
    tags = [tag for tag, _ in page.elements]
    assert tags.count("svg") == 2 + 3 and tags.count("details") >= 5 + 3
    assert {"title", "desc"} <= set(tags) and tags.count("h1") == 1


def test_every_plot_stands_beside_a_table_and_the_numbers_are_those_of_result_json(
    three: tuple[Page, dict[str, Any], CompareResult],
) -> None:
    page, data, result = three
    measured = {m["index"]: m["runs"] for m in data["measurements"] if m["kind"] == "pair"}
    for c in data["comparisons"]:
        name = c["name"]
        assert page.data[f"ratio-{name}"] == c["decode"]["ratio"]
        assert (page.data[f"low-{name}"], page.data[f"high-{name}"]) == (c["decode"]["low"], c["decode"]["high"])
        for pair in c["pairs"]:
            assert page.data[f"pair-{name}-{pair['index']}"] == pair["ratio"]
            a, b = (measured[pair["index"]][arm]["decode_rate"] for arm in ("A", name))
            assert pair["ratio"] == pytest.approx(b / a)
    for arm in data["arms"]:
        for k, tau in enumerate(arm["tau_at"], 1):
            assert page.data[f"tau-{arm['name']}-{k}"] == tau["value"]
    plots = [given["aria-labelledby"].split()[0] for tag, given in page.elements if tag == "svg"]
    assert plots == ["ratio-B-title", "ratio-C-title", "tau-title", "stages-title", "runs-title"]
    marks = sum(tag in ("circle", "rect", "path") for tag, _ in page.elements)
    assert marks > 8 * 3 * 2
    assert result.verdict in data["verdict"] and data["complete"] is True


def test_result_json_holds_everything_that_was_promised(three: tuple[Page, dict[str, Any], CompareResult]) -> None:
    _, data, _ = three
    assert {"format", "verdict", "command", "environment", "settings", "arms", "differences", "comparisons", "gate",
            "drift", "notes", "prompts", "measurements"} <= set(data)  # fmt: skip
    assert all({"config", "config_sha256"} <= set(arm) for arm in data["arms"])
    run = data["measurements"][-1]["runs"]["A"]
    assert {"tokens", "tokens_sha256", "decode_rate", "prefill_rate", "draft_seconds", "accepted_at"} <= set(run)
    assert {m["kind"] for m in data["measurements"]} == {"gate", "reference", "pair", "profile"}


def test_markdown_tables_keep_their_columns_whatever_the_labels(
    three: tuple[Page, dict[str, Any], CompareResult],
) -> None:
    text = three[2].to_markdown()
    for block in re.findall(r"(?:^\|.*\n)+", text, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1
    assert "c\\|d" in text and "&lt;b>" in text and "`sparkwright compare x.toml`" in text
    assert three[2]._repr_markdown_() == text


def test_one_pair_and_endless_intervals_still_make_strict_json_and_a_page(simulated: Compare, tmp_path: Path) -> None:
    result = simulated(pairs=1)
    data = json.loads((tmp_path / "out" / "result.json").read_text(), parse_constant=lambda c: pytest.fail(c))
    assert data["comparisons"][0]["decode"]["high"] is None
    assert Page(result.to_html()).stack == []


def test_a_result_without_a_folder_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkwright.core.compare.api import compare_specs

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    prompts = [Prompt("p", "k", "text")]
    specs = [A, simulated_spec("B", effect=0.1)]
    result = compare_specs(specs, prompts, SimulatedOpener(), Settings(tokens=8, profile=0), pairs=2, out=None)
    assert result.complete and result.directory is None and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("low", "high"), [(0.97, 1.12), (0.999, 1.001), (0.14, 4.2), (0.02, 1.2), (0.9, 40.0), (0.5, 1.4)]
)
def test_the_marks_of_a_ratio_axis_are_few_round_and_cover_it(low: float, high: float) -> None:
    from sparkwright.core.compare.report.svg import ratio_ticks

    marks = ratio_ticks(low, high)
    assert marks == sorted(set(marks)) and 3 <= len(marks) <= 12
    assert marks[0] <= low * (1 + 1e-9) and marks[-1] >= high * (1 - 1e-9) and marks[0] > 0
    assert all(len(f"{m:g}") <= 7 for m in marks)
