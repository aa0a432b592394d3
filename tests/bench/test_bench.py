"""`bench` on toy engines: every combination, plain decoding beside it, refusals with their reason."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sparkwright.core import bench as module
from sparkwright.core.bench import at_temperature, bench
from sparkwright.core.cli import bench as command
from sparkwright.core.compare.records import CompareError, Prompt
from sparkwright.core.plugins import Catalogue, discover
from sparkwright.core.testing.toys import markov_target, table_drafter

TABLE = np.random.default_rng(0).normal(0, 1.5, (12, 12))
PROMPTS = [Prompt(f"{kind}{i}", kind, text) for kind in ("code", "chat") for i, text in enumerate(("abc", "cab", "fd"))]
BASE: dict[str, Any] = {
    "target": {"use": "markov"},
    "drafter": {"use": "table"},
    "scheduler": {"use": "fixed"},
    "verifier": {"use": "stochastic"},
    "sampler": {"use": "chain"},
    "engine": {"costs": "none"},
}


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    rough = TABLE + np.random.default_rng(1).normal(0, 1.0, TABLE.shape)
    return discover().with_providers(markov_target(TABLE, context=64), table_drafter(rough))


def test_every_combination_has_a_rate_beside_plain_decodings_on_the_same_prompts(catalogue: Catalogue) -> None:
    told: list[tuple[str, int, int]] = []
    result = bench(
        BASE, prompts=PROMPTS, temperatures=(0.0, 1.0), contexts=(0, 20), repeats=2, tokens=8, catalogue=catalogue,
        progress=lambda *a: told.append(a),
    )  # fmt: skip
    assert [(c.temperature, c.context, c.kind) for c in result.cells] == [
        (t, n, kind) for t in (0.0, 1.0) for n in (0, 20) for kind in ("code", "chat")
    ]
    assert told[-1] == ("cells", 8, 8)
    for cell in result.cells:
        assert cell.refused == "" and cell.own is not None and cell.plain is not None and cell.ratio is not None
        assert cell.ratio.n == 2 and len(cell.pairs) == 2
        assert all(run.prompt_tokens == 20 for pair in cell.pairs for run in pair) or cell.context == 0
        assert {len(run.tokens) for pair in cell.pairs for run in pair} == {8}
        assert all(own.drafting_rounds and not plain.drafting_rounds for own, plain in cell.pairs)
        logs = [np.log(own.decode_rate / plain.decode_rate) for own, plain in cell.pairs]  # type: ignore[operator]
        assert cell.ratio.ratio == pytest.approx(float(np.exp(np.mean(logs))))
        assert cell.own.tau is not None and cell.plain.tau is None
        assert cell.own.stages is not None and cell.own.stages.apart and cell.own.stages.draft > 0
    greedy = result.cells[0]
    assert all(own.tokens == plain.tokens for own, plain in greedy.pairs)  # T = 0 reached the sampler
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["cells"][0]["pairs"][0]["own"]["tokens"] == list(greedy.pairs[0][0].tokens)
    assert data["config"]["drafter.use"] == "table" and data["environment"]["versions"]["mlx"]


def test_what_does_not_fit_or_go_together_is_refused_with_its_reason_and_the_rest_measured(
    catalogue: Catalogue,
) -> None:
    base = BASE | {"verifier": {"use": "greedy"}}
    result = bench(
        base, prompts=PROMPTS[:3], temperatures=(0, 1), contexts=(0, 60), repeats=1, tokens=8, catalogue=catalogue
    )
    reasons = {(c.temperature, c.context): c.refused for c in result.cells}
    assert reasons[(0, 0)] == ""
    assert "60 prompt tokens and 8 more do not fit the model's context of 64" in reasons[(0, 60)]
    assert "greedy" in reasons[(1, 0)] and reasons[(1, 0)] == reasons[(1, 60)]


def test_a_sampler_without_a_temperature_is_replaced_above_zero_only() -> None:
    chain = {"sampler.use": "chain", "sampler.chain.temperature": 1.0}
    assert at_temperature(chain, 0) == ["sampler.chain.temperature=0.0"]
    assert at_temperature({"sampler.use": "greedy"}, 0) == []
    assert at_temperature({"sampler.use": "greedy"}, 0.7) == ["sampler.use=chain", "sampler.chain.temperature=0.7"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperatures": ()}, "--temps is"),
        ({"temperatures": (-1.0,)}, "temperatures of 0 or more"),
        ({"contexts": (-5,)}, "--contexts is"),
        ({"repeats": 0}, "--repeats is 0"),
        ({"tokens": 1}, "--tokens is 1"),
    ],
)
def test_impossible_numbers_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CompareError, match=message):
        bench(BASE, prompts=PROMPTS, **options)


def test_the_command_prints_a_table_or_json(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def fake(config: Any, **options: Any) -> Any:
        asked.update(options, config=config)
        return bench(
            BASE, prompts=PROMPTS, temperatures=options["temperatures"], contexts=options["contexts"], repeats=2,
            tokens=8, catalogue=catalogue,
        )  # fmt: skip

    monkeypatch.setattr(module, "bench", fake)
    run = CliRunner().invoke(command.bench, ["x.toml", "--model", "m", "--temps", "0,1.5", "--contexts", "0,60"])
    assert run.exit_code == 0, run.output
    assert asked["temperatures"] == (0.0, 1.5) and asked["contexts"] == (0, 60)
    assert asked["sets"] == ("target.model=m",) and str(asked["config"]) == "x.toml"
    flat = re.sub(r"\s+", " ", run.output)
    assert (
        "ratio" in flat
        and "refused: code at T = 0, 60 tokens; chat at T = 0, 60 tokens; code at T = 1.5, 60 tokens;" in flat
    )
    assert flat.count("60 prompt tokens and 8 more do not fit") == 1
    run = CliRunner().invoke(command.bench, ["--json", "--temps", "0"])
    assert json.loads(run.output)["cells"][0]["kind"] == "code"
    run = CliRunner().invoke(command.bench, ["--temps", "hot"])
    assert run.exit_code == 2 and "'hot' is not a list of numbers such as 0,1" in run.output
