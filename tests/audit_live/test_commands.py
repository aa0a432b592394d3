"""`sparkwright audit`, `kernels list` and `calibrate`: exit statuses, what every audit says, and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner, Result
from tests.audit_live.test_reference import ape_off_by_one

from sparkwright.core import costs
from sparkwright.core.cli import cli, shared
from sparkwright.core.cli.audit import FAILED, UNDECIDED
from sparkwright.plugins.deepseek_v4.step import Step

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(" ".join(f"w{(7 * i * i + i) % 250}" for i in range(300)))
    (tmp_path / "prompts.txt").write_text("w1 w2 w3 w4 w5\n\nw9 w8 w7\n")

    def call(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, list(arguments), catch_exceptions=False)
        assert result.exit_code == code, result.output
        return result

    return call


def said(result: Result, name: str) -> Any:
    """The JSON of an audit, which always has the promise, the hash and the meaning."""
    data = json.loads(result.stdout)
    assert data["audit"] == name and len(data["config_sha256"]) == 64
    assert data["promise"] and data["meaning"].endswith((".", ".\n")) and isinstance(data["passed"], bool)
    return data


def test_law_audits_the_configured_plugins(run: Run) -> None:
    law = ("audit", "law", "--trials", "6000", "--set", "scheduler.use=fixed")
    data = said(run(*law, "--json"), "law")
    assert data["promise"] == "law" and [r["trials"] for r in data["results"]] == [6000] * 3
    one = run(*law, "--drafts", "point", "--set", "verifier.use=coupled")
    assert "promise: identity-up-to-ties; configuration" in one.stdout and "audit law: passed" in one.stdout
    assert "100%" in one.stdout and "point" in one.stdout and "dense" not in one.stdout


def test_a_law_that_is_broken_leaves_with_its_own_status(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkwright.core import audit

    real = audit.audit_law

    def broken(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        return attrs.evolve(result, tests=tuple(attrs.evolve(t, adjusted=0.0) for t in result.tests))

    monkeypatch.setattr(audit, "audit_law", broken)
    failed = run("audit", "law", "--trials", "500", code=FAILED)
    assert "audit law: NOT PASSED" in failed.stdout and "A failure says" in failed.stdout


@pytest.mark.parametrize("promise", ["law", "identity"])
def test_a_failure_says_how_many_tests_and_names_the_first_within_80_columns(
    run: Run, monkeypatch: pytest.MonkeyPatch, promise: str
) -> None:
    """With the widest numbers and the longest names of tests there are."""
    from sparkwright.core import audit

    names = ["joint", *(f"token 3 after [{i}, {j}]" for i in range(8) for j in range(8))]

    def broken(*arguments: Any, **named: Any) -> Any:
        result = real(*arguments, **named)
        tests = tuple(
            attrs.evolve(result.joint, name=n, adjusted=0.0, p_value=1.23e-55, statistic=1.2e6) for n in names
        )
        return attrs.evolve(
            result,
            tests=tests,
            variation_bound=0.9999,
            smallest_bias=0.9999,
            identical=3 if promise == "identity" else None,
        )

    real = audit.audit_law
    monkeypatch.setattr(audit, "audit_law", broken)
    command = ("audit", "law", "--trials", "500")
    shown = run(*command, code=FAILED).stdout.splitlines()
    table = shown[: next(i for i, line in enumerate(shown) if line.startswith("promise:"))]
    count = len(names) + (promise == "identity")
    assert [line.split()[-1] for line in table if "NOT PASSED" in line] == [f"({count})"] * 3
    for kind in ("dense", "sparse", "point"):
        first = f"{kind}: joint; token 3 after [0, 0]; token 3 after [0, 1] (+{count - 3})"
        assert first in table
    assert max(map(len, table)) <= 80 and len(table) == 2 + 3 + 1 + 3, table
    assert all(len(r["failed"]) == count for r in said(run(*command, "--json", code=FAILED), "law")["results"])


def test_progress_in_a_log_says_each_kind_of_draft_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "EVERY", 0.0)
    lines = run("audit", "law", "--trials", "40", code=UNDECIDED).stderr.splitlines()
    assert lines == [f"trials with {kind} drafts 40/40" for kind in ("dense", "sparse", "point")]


def test_who_takes_one_text_at_a_time_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sparkwright.plugins.samplers.chain import Chain

    command = ("audit", "law", "--trials", "40", "--drafts", "point")
    assert "at a time" not in run(*command, code=UNDECIDED).stderr
    monkeypatch.setattr(Chain, "leading_axes", False)
    line = "one text at a time: sampler 'chain' does not take leading axes; this is slow"
    assert line in run(*command, code=UNDECIDED).stderr.splitlines()
    data = said(run(*command, "--json", code=UNDECIDED), "law")
    assert data["one_text_at_a_time"] == ["sampler 'chain'"]


def test_consistency_passes_and_fails(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = ("audit", "consistency", "--model", str(folder), "--text", "text.txt", "--tokens", "21")
    passed = run(*audit)
    assert "promise: law; configuration" in passed.stdout and "verdict: equal" in passed.stdout
    assert "around positions 4, 8, 20" in passed.stdout
    assert "over 21 of them that function is the model's by its float64 reference" in passed.stdout
    with monkeypatch.context() as patch:
        ape_off_by_one(patch)
        alike = said(run(*audit, "--json", code=FAILED), "consistency")
        assert alike["verdict"] == "reference" and "not with the model's definition" in alike["meaning"]
        blind = run(*audit, "--reference", "0").stdout
        assert "switched off: faults that every width makes alike are not seen" in blind
    right = Step.visible
    monkeypatch.setattr(Step, "visible", lambda self, ratio: right(self, ratio) * 0 + self.most(ratio))
    failed = said(run(*audit, "--json", code=FAILED), "consistency")
    assert failed["verdict"] == "structural" and failed["findings"][0]["op"]


def test_identity_rollback_and_kernels(run: Run, folder: Path) -> None:
    model = ("--model", str(folder))
    coupled = ("--set", "verifier.use=coupled", "--set", "scheduler.use=fixed", "--prompts", "prompts.txt")
    data = said(run("audit", "identity", *model, *coupled, "--tokens", "12", "--seeds", "2", "--json"), "identity")
    assert data["texts"] == data["identical"] == 4 and data["promise"] == "identity-up-to-ties"
    text = run("audit", "rollback", *model, "--text", "text.txt", "--tokens", "60").stdout
    assert "audit rollback: passed" in text and "promise: law; configuration" in text
    nothing = run("audit", "kernels", *model, "--prompts", "prompts.txt", "--tokens", "2", code=UNDECIDED)
    assert "othing was compared" in nothing.stdout and "attend_rows" in nothing.stdout


def test_too_little_is_neither_a_pass_nor_a_failure(run: Run, folder: Path) -> None:
    """Nor mistaken for either: its own status, its own word, and what would be enough."""
    few = said(run("audit", "law", "--trials", "5", "--json", code=UNDECIDED), "law")
    assert not few["passed"] and few["undecided"] and "Not enough trials to say anything" in few["meaning"]
    needed = few["results"][0]["needed"]
    assert f"at least {needed:,} trials" in few["meaning"] and 1000 < needed < 10_000
    assert "audit law: UNDECIDED" in run("audit", "law", "--trials", "5", code=UNDECIDED).stdout
    model = ("--model", str(folder), "--prompts", "prompts.txt", "--set", "verifier.use=coupled")
    plain = run("audit", "identity", *model, "--set", "drafter.use=none", "--tokens", "4", code=UNDECIDED).stdout
    assert "nothing was compared" in plain
    once = ("--set", "scheduler.use=fixed", "--set", "scheduler.fixed.depth=1", "--tokens", "3", "--json")
    data = said(run("audit", "identity", *model, *once, code=UNDECIDED), "identity")
    assert data["undecided"] and 0 < data["submitted"] < 8 and "at least 8 are needed" in data["meaning"]


def test_kernels_list_says_what_runs_and_why(run: Run, folder: Path) -> None:
    data = json.loads(run("kernels", "list", "--json").stdout)
    ops = {op["op"]: op for op in data["ops"]}
    assert ops["markov_chain"]["of"] == ["drafter dspark"] and ops["attend_rows"]["asked"][-1] == "unfused"
    arguments = ("kernels", "list", "--model", str(folder), "--set", "kernels.ops.attend_rows=unfused")
    chosen = json.loads(run(*arguments, "--json").stdout)["ops"]
    why = {op["op"]: op["why"] for op in chosen}
    assert why["attend_rows"] == "kernels.ops names it" and "the reference" in why["small_rows_matmul"]
    assert {tuple(op["widths"]) for op in chosen if op["op"] == "attend_rows"} == {(4, 32, 8)}
    assert "attend_rows" in run(*arguments).stdout


def test_calibrate_keeps_curves_that_engines_then_use(run: Run, folder: Path) -> None:
    arguments = ("calibrate", "--model", str(folder), "--repeats", "1", "--context", "20")
    data = json.loads(run(*arguments, "--no-fit", "--json").stdout)
    kept = costs.load(Path(data["file"]))
    assert len(kept.verify) == 8 and kept.draft > 0 and not kept.temperatures
    (one, two) = (run("generate", "w1", "--model", str(folder), "-m", "2", "--json", *more).stdout
                  for more in ((), ("--set", "engine.costs=none")))  # fmt: skip
    assert json.loads(one)["config_sha256"] != json.loads(two)["config_sha256"], "frozen curves are in the hash"
    few = run(*arguments, "--prompts", "prompts.txt", "--tokens", "3").stdout
    assert "confidences not fitted" in few and "verify of 8 rows" in few and "#" in few
    plain = run(*arguments, "--set", "drafter.use=lookup", "--set", "scheduler.use=fixed").stdout
    assert "the drafter has no confidences" in plain
