"""`compare(...)` on assembled engines: toy plugins for what is exact, child processes for `--isolate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from tests.core.engines import merged

from sparkwright.core import costs
from sparkwright.core.compare import CompareError, compare
from sparkwright.core.compare.difference import check_effective
from sparkwright.core.compare.engine_arm import EngineOpener, engine_specs
from sparkwright.core.compare.isolated import IsolatedOpener
from sparkwright.core.compare.records import Prompt
from sparkwright.core.compare.simulated import SimulatedOpener, simulated_spec
from sparkwright.core.contracts import CostCurves
from sparkwright.core.errors import ConfigError
from sparkwright.core.plugins import Catalogue, discover
from sparkwright.core.testing.toys import markov_target, random_drafter, table_drafter

TABLE = np.random.default_rng(0).normal(0, 1.5, (12, 12))
PROMPTS = [Prompt(f"p{i}", "toy", text) for i, text in enumerate(("abc", "cab", "ffd", "eab", "lka", "bbb"))]
BASE: dict[str, Any] = {
    "target": {"use": "markov"},
    "drafter": {"use": "table"},
    "scheduler": {"use": "fixed"},
    "verifier": {"use": "stochastic"},
    "sampler": {"use": "chain", "chain": {"temperature": 1.0}},
    "engine": {"costs": "none"},
}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    rough = TABLE + np.random.default_rng(1).normal(0, 1.0, TABLE.shape)
    return discover().with_providers(
        markov_target(TABLE), table_drafter(rough, target_noise=True), random_drafter(block=4)
    )


def run(catalogue: Catalogue, base: dict[str, Any] = BASE, **options: Any) -> Any:
    given: dict[str, Any] = {"prompts": PROMPTS, "pairs": 3, "tokens": 10, "gate": 2, "profile": 1}
    return compare(base, catalogue=catalogue, **(given | options))


def test_a_swap_of_the_drafter_on_real_engines_gives_pairs_tau_and_stages(catalogue: Catalogue, tmp_path: Path) -> None:
    said: list[str] = []
    result = run(catalogue, swap="drafter.use=none", out=tmp_path / "out", announce=said.extend)
    assert said[0].startswith("arm B (drafter.use=none) differs from the base in 1 resolved values")
    assert said[1].strip() == "drafter.use: 'table' -> 'none'"
    assert result.complete and result.comparisons[0].decode.n == 3
    table, none = result.arms
    assert table.tau is not None and table.tau.value > 1 and none.tau is None
    assert table.promise == "law" and not any(check.owed for check in result.gate)
    assert table.stages is not None and table.stages.apart and table.stages.draft > 0
    data = json.loads((tmp_path / "out" / "result.json").read_text())
    assert data["environment"]["versions"]["mlx"] and data["environment"]["plugins"]["drafter:none"]
    assert data["arms"][0]["config"]["drafter.use"] == "table"


def test_two_drafters_under_coupled_at_temperature_one_give_identical_texts_and_a_paired_rate(
    catalogue: Catalogue,
) -> None:
    base = BASE | {"verifier": {"use": "coupled"}}
    result = run(catalogue, base, swap="drafter.use=random", pairs=4, tokens=24)
    assert result.comparisons[0].same_texts == 4 and result.comparisons[0].texts_owed
    assert all(check.first is None for check in result.gate)
    assert result.comparisons[0].decode.n == 4
    texts = {e.runs["A"].tokens for e in result.pairs}
    assert len(texts) > 1  # they are texts, not one constant


def test_the_arms_share_no_plugin_instance(catalogue: Catalogue) -> None:
    from sparkwright.core.compare.engine_arm import EngineOpener, engine_specs

    specs = engine_specs(BASE, ["drafter.use=none"], [], (), catalogue)
    opener = EngineOpener(catalogue=catalogue)
    arms: list[Any] = [opener(spec) for spec in specs]
    try:
        a, b = (arm.engine._parts for arm in arms)
        assert arms[0].effective["drafter"] == "table" and arms[1].effective["drafter"] == "none"
        assert a.target is not b.target and a.sampler is not b.sampler and a.drafter is not b.drafter
    finally:
        for arm in arms:
            arm.close()


def test_hidden_differences_between_two_given_configurations_are_refused(catalogue: Catalogue) -> None:
    hot = BASE | {"verifier": {"use": "block"}, "sampler": {"use": "chain", "chain": {"temperature": 0.7}}}
    with pytest.raises(CompareError, match=r"sampler\.chain\.temperature: 1\.0 -> 0\.7") as caught:
        run(catalogue, b=hot)
    assert "--allow sampler --allow verifier" in str(caught.value)
    kernels = BASE | {"verifier": {"use": "block"}, "engine": {"costs": "none", "row_exact": True}}
    with pytest.raises(CompareError, match=r"engine\.row_exact"):
        run(catalogue, b=kernels)
    assert run(catalogue, b=hot, allow=["sampler"], pairs=2).complete


def test_what_cannot_be_compared_is_refused_in_one_sentence(catalogue: Catalogue) -> None:
    with pytest.raises(CompareError, match="same configuration as the base"):
        run(catalogue, swap="drafter.use=table")
    with pytest.raises(CompareError, match=r"--swap 'drafter' is not KEY=VALUE"):
        run(catalogue, swap="drafter")
    with pytest.raises(CompareError, match="leave out --swap and --b"):
        run(catalogue, swap="drafter.use=none", self_test=2)
    with pytest.raises(CompareError, match="nothing to compare"):
        run(catalogue)
    with pytest.raises(ConfigError, match="nope"):
        run(catalogue, swap="drafter.use=nope")
    with pytest.raises(CompareError, match=r"arm B \(verifier.use=greedy\) cannot be assembled: .*temperature|sampler"):
        run(catalogue, swap="verifier.use=greedy")
    with pytest.raises(CompareError, match=r"failed in the gate before timing, prompt 'bad': .*outside the vocabulary"):
        run(catalogue, swap="drafter.use=none", prompts=[Prompt("bad", "toy", "xyz")])
    with pytest.raises(CompareError, match="isolated arms find installed plugins only"):
        run(catalogue, swap="drafter.use=none", isolate=True)
    with pytest.raises(CompareError, match="prompt-1 is empty"):
        run(catalogue, swap="drafter.use=none", prompts=[" "])


def test_a_self_test_of_real_engines_ends_with_its_rate(catalogue: Catalogue) -> None:
    result = run(catalogue, self_test=2, pairs=2, tokens=6, gate=1, profile=0)
    assert result.self_test is not None and result.self_test.repeats == 2
    assert result.comparisons[0].same_texts == 4


def test_chat_prompts_without_a_chat_format_are_given_as_text_and_said_so(catalogue: Catalogue) -> None:
    result = run(catalogue, swap="drafter.use=none", prompts=[Prompt("c", "chat", "abc", True)], pairs=2, profile=0)
    assert any("no chat format" in note for note in result.arms[0].notes)


def test_isolated_arms_give_the_records_of_arms_in_this_process() -> None:
    spec = simulated_spec("A", block=3, effect=0.1)
    here = SimulatedOpener()(spec)
    there = IsolatedOpener("sparkwright.core.compare.simulated:SimulatedOpener")(spec)
    try:
        assert there.effective == here.effective
        for prompt in PROMPTS[:2]:
            asked: dict[str, Any] = {"max_tokens": 9, "seed": 3, "ignore_eos": True}
            assert there.complete(prompt, **asked) == here.complete(prompt, **asked)
    finally:
        there.close()


def test_an_isolated_arm_that_fails_or_dies_is_a_sentence() -> None:
    opener = IsolatedOpener("sparkwright.core.compare.simulated:SimulatedOpener")
    with pytest.raises(CompareError, match="vocabularies differ"):
        opener(simulated_spec("A", refuse="vocabularies differ"))
    arm = opener(simulated_spec("A", fail_at=0))
    with pytest.raises(CompareError, match="raised in the middle of a round"):
        arm.complete(PROMPTS[0], max_tokens=4, seed=0, ignore_eos=True)
    child: Any = arm
    child._child.kill()
    with pytest.raises(CompareError, match=r"ended without an answer \(signal 9"):
        arm.complete(PROMPTS[0], max_tokens=4, seed=0, ignore_eos=True)
    arm.close()
    broken = IsolatedOpener("sparkwright.core.compare.nothing:Here")
    with pytest.raises(CompareError, match="ModuleNotFoundError"):
        broken(simulated_spec("A"))


def test_arms_under_other_cost_curves_than_their_configurations_say_are_refused(
    catalogue: Catalogue, tmp_path: Path
) -> None:
    """Both name one file; it is measured anew between the assembly of the two."""
    file = tmp_path / "costs.json"
    curves = CostCurves(1.0, (1.0,) * 8, 0.1)
    costs.save(file, curves, {})
    base = merged(BASE, {"scheduler": {"use": "cost_aware"}, "engine": {"costs": str(file)}})
    (spec, other) = engine_specs(base, ["verifier.use=block"], [], [], catalogue)
    first = EngineOpener(catalogue=catalogue)(spec)
    costs.save(file, attrs.evolve(curves, draft=0.2), {})
    second = EngineOpener(catalogue=catalogue)(other)
    try:
        with pytest.raises(CompareError, match=r"a second difference: costs is '\w{12}' in one and '\w{12}' in"):
            check_effective(spec, other, first.effective, second.effective)
        check_effective(spec, other, first.effective, first.effective)
    finally:
        first.close()
        second.close()
