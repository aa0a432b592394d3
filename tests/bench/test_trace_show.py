"""Summaries of traces: the numbers of the engine's own result, and damaged files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sparkwright.core.assembly import assemble
from sparkwright.core.cli import trace as command
from sparkwright.core.config import load_config
from sparkwright.core.errors import OutputError
from sparkwright.core.generation import Result
from sparkwright.core.plugins import discover
from sparkwright.core.testing.toys import markov_target, table_drafter
from sparkwright.core.trace_show import TraceError, read_trace

ROUND: dict[str, Any] = {
    "event": "round", "index": 0, "position": 3, "planned": 3, "drafted": 3, "submitted": 2, "accepted": 1,
    "tokens": [5, 6], "confidences": [], "flags": 0, "repeated": False, "cut": False, "transfers": 1,
    "draft_seconds": 0.001, "verify_seconds": 0.006, "rest_seconds": 0.001,
}  # fmt: skip


def write(path: Path, *events: Any) -> Path:
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Result]]:
    """Two requests of a real engine with the trace observer."""
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    table = np.random.default_rng(0).normal(0, 1.5, (12, 12))
    catalogue = discover().with_providers(markov_target(table), table_drafter(table + 0.3))
    config = load_config(
        {
            "target": {"use": "markov"}, "drafter": {"use": "table"}, "scheduler": {"use": "fixed"},
            "engine": {"costs": "none"}, "observers": {"use": ["trace"], "trace": {"path": str(path)}},
        },
        catalogue=catalogue,
    )  # fmt: skip
    with assemble(config) as engine:
        results = [engine.complete("abc", max_tokens=n, seed=n) for n in (12, 20)]
    return path, results


def test_the_summary_of_a_real_trace_is_the_engines_own_count(traced: tuple[Path, list[Result]]) -> None:
    path, results = traced
    summaries = read_trace(path)
    assert len(summaries) == 2
    for summary, result in zip(summaries, results, strict=True):
        stats = result.stats
        for name in ("tokens", "transfers", "rounds", "drafting_rounds", "drafted", "submitted", "accepted", "tau",
                     "repeated_rounds", "empty_residuals", "config_sha256"):  # fmt: skip
            want = result.config_sha256 if name == "config_sha256" else getattr(stats, name)
            assert getattr(summary, name) == want, name
        assert summary.acceptance == tuple(a for a in stats.acceptance if a is not None)
        assert summary.seconds == pytest.approx(stats.decode_seconds)
        assert summary.decode_rate == pytest.approx(stats.decode_rate)
        assert (summary.prompt_tokens, summary.seed, summary.finish) == (3, result.seed, result.finish)
        assert sum(n * count for n, count in enumerate(summary.lengths, 1)) == summary.tokens - 1  # 1 is the prefill's


def test_show_prints_the_summary_and_json_holds_it(traced: tuple[Path, list[Result]]) -> None:
    path, results = traced
    run = CliRunner().invoke(command.trace, ["show", str(path)])
    assert run.exit_code == 0, run.output
    assert "request 1 of 2: 3 prompt tokens, seed 12; 12 tokens in" in run.output
    assert f"tau {results[0].stats.tau:.2f}" in run.output and "tokens a round" in run.output
    run = CliRunner().invoke(command.trace, ["show", str(path), "--json"])
    assert [r["rounds"] for r in json.loads(run.output)] == [r.stats.rounds for r in results]


def test_a_killed_trace_is_summarised_as_far_as_it_goes(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", {"event": "request", "prompt": [1, 2], "seed": 4}, ROUND)
    with path.open("a") as file:
        file.write(json.dumps(ROUND)[:40])
    (summary,) = read_trace(path)
    assert (summary.rounds, summary.finish, summary.tau) == (1, None, 2.0)
    assert "the trace ends before the request did" in CliRunner().invoke(command.trace, ["show", str(path)]).output


def test_rounds_without_events_are_rounds_and_cut_ones_are_not_in_tau(tmp_path: Path) -> None:
    bare = {key: value for key, value in ROUND.items() if key != "event"}
    path = write(
        tmp_path / "t.jsonl", bare, bare | {"index": 1, "cut": True, "accepted": 2, "flags": 2},
        bare | {"index": 2, "submitted": 0, "drafted": 0, "accepted": 0, "tokens": [1], "verify_seconds": 0.5},
    )  # fmt: skip
    (summary,) = read_trace(path)
    assert (summary.tau, summary.acceptance, summary.cut_rounds) == (2.0, (1.0, 0.0), 1)
    assert (summary.drafting_rounds, summary.empty_residuals, summary.lengths) == (2, 1, (1, 2))
    assert summary.slowest[0][0] == 2 and summary.slowest[0][1] == pytest.approx(0.502)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no rounds; write one with `sparkwright generate --trace FILE`"),
        ("[1]\n", "line 1 is a JSON list; expected an object"),
        ("{}\n", "line 1: the round's 'index' is None, expected a number; is this a trace of sparkwright?"),
        (json.dumps(ROUND | {"tokens": 3}) + "\n", "'tokens' is 3, expected a list of tokens"),
        ("nonsense\n" + json.dumps(ROUND) + "\n", "line 1 is not JSON"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert message in str(caught.value)


def test_rounds_without_drafts_say_who_gave_none(tmp_path: Path) -> None:
    kinds = {"drafted": (3, 3, 3), "declined": (3, 0, 0), "unsubmitted": (3, 3, 0), "parked": (0, 0, 0)}
    rounds = [
        {"event": "round", **{**ROUND, "accepted": 0, "tokens": [1]}, "planned": p, "drafted": d, "submitted": s}
        for p, d, s in kinds.values()
    ]
    path = write(
        tmp_path / "t.jsonl", {"event": "request"}, *rounds, {"event": "result", "stats": {"parked_rounds": 1}}
    )
    said = CliRunner().invoke(command.trace, ["show", str(path)]).output
    assert (
        "rounds without drafts: the drafter was asked in 1 round and gave none; the scheduler planned none in 1 round; "
        "the scheduler submitted none of those drafted in 1 round"
    ) in said


def test_a_missing_file_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none")
