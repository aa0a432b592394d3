"""The order of the runs, and the proof that arms differ in what was asked only."""

from __future__ import annotations

from collections import Counter

import pytest

from sparkwright.core.compare.difference import ABSENT, check, described, diff
from sparkwright.core.compare.plan import make_plan, orders
from sparkwright.core.compare.records import ArmSpec, CompareError, Prompt

PROMPTS = [Prompt(f"{kind}-{i}", kind, "text") for kind in ("code", "prose", "chat") for i in range(3)]


def test_two_arms_go_in_abba_order_whose_coin_is_the_seeds() -> None:
    for seed in range(20):
        sequence = orders("AB", 10, seed)
        for even, odd in zip(sequence[::2], sequence[1::2], strict=True):
            assert odd == even[::-1]
    first = Counter(orders("AB", 1, seed)[0] for seed in range(400))
    assert 150 < first[("A", "B")] < 250
    assert orders("AB", 10, 3) == orders("AB", 10, 3) != orders("AB", 10, 4)


@pytest.mark.parametrize("names", ["AB", "ABC", "ABCDE"])
def test_a_linear_drift_cancels_in_every_pair_of_groups(names: str) -> None:
    for first, second in zip(orders(names, 8, 5)[::2], orders(names, 8, 5)[1::2], strict=True):
        time = {name: first.index(name) + len(names) + second.index(name) for name in names}
        assert len(set(time.values())) == 1


def test_kinds_take_turns_and_prompts_that_run_out_come_again_with_the_next_seed() -> None:
    plan = make_plan("AB", PROMPTS, 12, seed=7)
    kinds = [PROMPTS[group.prompt].kind for group in plan.groups]
    assert kinds[:6] == ["code", "prose", "chat"] * 2
    assert [group.seed for group in plan.groups] == [7] * 9 + [8] * 3
    assert [group.prompt for group in plan.groups[:3]] == [group.prompt for group in plan.groups[9:]]
    assert plan.references[0] == 0 and plan.references[-1] == 12


def test_a_plan_needs_pairs_and_prompts() -> None:
    with pytest.raises(CompareError, match="--pairs is 0, but a comparison needs at least one pair"):
        make_plan("AB", PROMPTS, 0, 0)
    with pytest.raises(CompareError, match="there are no prompts"):
        make_plan("AB", [], 5, 0)


BASE = {
    "drafter.use": "lookup",
    "drafter.lookup.max_n": 4,
    "verifier.use": "stochastic",
    "sampler.use": "chain",
    "sampler.chain.temperature": 1.0,
    "kernels.use": ["fused", "unfused"],
}


def arm(name: str, **changes: object) -> ArmSpec:
    config: dict[str, object] = dict(BASE)
    for key, value in changes.items():
        dotted = key.replace("__", ".")
        if value is ABSENT:
            config.pop(dotted, None)
        else:
            config[dotted] = value
    return ArmSpec(name, f"candidate {name}", config, "0" * 64)


A = arm("A")


def test_the_option_tables_that_leave_and_come_with_a_swapped_plugin_are_not_a_second_difference() -> None:
    b = arm("B", drafter__use="none", drafter__lookup__max_n=ABSENT)
    found = check(A, b, ["drafter.use"])
    assert [d.key for d in found] == ["drafter.lookup.max_n", "drafter.use"]
    assert "drafter.use: 'lookup' -> 'none'" in "\n".join(described(b, found))
    assert "drafter.lookup.max_n: 4 -> (absent)" in "\n".join(described(b, found))


@pytest.mark.parametrize(
    ("hidden", "named"),
    [
        ({"kernels__use": ["unfused"]}, "kernels.use"),
        ({"kernels__ops__gather": "unfused"}, "kernels.ops.gather"),
        ({"sampler__chain__temperature": 0.9}, "sampler.chain.temperature"),
        ({"sampler__chain__temperature": 1}, "sampler.chain.temperature"),  # an int is not the float
        ({"drafter__lookup__max_n": 5}, "drafter.lookup.max_n"),
        ({"engine__row_exact": True}, "engine.row_exact"),
        ({"observers__use": ["trace"]}, "observers.use"),
        ({"target__model": "other"}, "target.model"),
    ],
)
def test_a_hidden_second_difference_is_refused_by_name(hidden: dict[str, object], named: str) -> None:
    b = arm("B", verifier__use="block", **hidden)
    with pytest.raises(CompareError, match=f"second difference: only verifier.use was to differ.*\n  {named}: "):
        check(A, b, ["verifier.use"])
    with pytest.raises(CompareError, match="may differ in one slot"):
        check(A, b, None)
    assert len(check(A, b, ["verifier.use"], allow=[named.partition(".")[0]])) == 2
    assert len(check(A, b, ["verifier.use"], allow=[named])) == 2


def test_another_version_of_the_same_plugins_options_beside_a_swap_in_its_slot_is_refused() -> None:
    b = arm("B", drafter__lookup__max_n=5, drafter__model="x")
    with pytest.raises(CompareError, match=r"drafter\.lookup\.max_n"):
        check(A, b, ["drafter.model"])


def test_files_may_differ_in_one_slot_in_several_options() -> None:
    b = arm("B", sampler__chain__temperature=0.5, sampler__chain__top_p=0.9)
    assert len(check(A, b, None)) == 2


def test_equal_arms_and_unknown_allowances_are_refused() -> None:
    with pytest.raises(CompareError, match=r"same configuration as the base.*--self-test"):
        check(A, arm("B"), None)
    with pytest.raises(CompareError, match=r"--allow sampelr: no such slot or key"):
        check(A, arm("B", verifier__use="block"), None, ["sampelr"])


def test_a_key_that_one_side_lacks_is_a_difference() -> None:
    assert [(d.key, d.base, d.candidate) for d in diff({"a.x": 1}, {"a.y": None})] == [
        ("a.x", 1, ABSENT),
        ("a.y", ABSENT, None),
    ]
