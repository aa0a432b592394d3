"""`sparkwright models`: reaches the family through its Provider's tools, prints what it says, refuses in one line."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from tests.deepseek_v4_checkpoint import tinyq
from tests.deepseek_v4_checkpoint.test_contract import FLASH

from sparkwright.core.cli import models as command
from sparkwright.core.contracts import Provider, TargetFacts
from sparkwright.core.errors import ModelError, PluginError, SparkwrightError
from sparkwright.core.plugins import Catalogue
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.contract import expected
from sparkwright.plugins.deepseek_v4.headers import ITEM_BITS
from sparkwright.plugins.deepseek_v4.tools import TOOLS, claims


def provider(name: str, tools: dict[str, str], sure: int) -> Provider:
    facts = TargetFacts(vocab_size=1, context=1, hidden=1, layers=1, eos=(), model_type="x", rollback=None)
    return Provider(
        kind="target",
        name=name,
        summary="for this test",
        build=lambda options, site: object(),
        describe=lambda options, site: facts,
        tools=tools,
        recognises=lambda path: sure if claims(path) else 0,
    )


@pytest.fixture(autouse=True)
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Catalogue().with_providers(
        provider("bare", {}, 2), provider("bad", {"inspect": "no:no"}, 1), provider("deepseek_v4", dict(TOOLS), 2)
    )
    monkeypatch.setattr(command, "discover", lambda strict=False: there)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command.models, [str(argument) for argument in arguments])


def refusal(*arguments: object) -> SparkwrightError:
    result = run(*arguments)
    assert isinstance(result.exception, SparkwrightError), result.output
    assert "\n" not in str(result.exception)
    return result.exception


def test_inspect_says_what_a_checkpoint_is(tmp_path: Path) -> None:
    tinyq.write(tmp_path)
    result = run("inspect", tmp_path)
    assert result.exit_code == 0
    shown = " ".join(result.output.split())
    for words in (
        "DeepseekV4ForCausalLM",
        "DSpark, 7 layers, 3 drafter stages",
        "official, FP8 and FP4",
        "13,151,264 bytes",
        "contract complete",
        "cpu has",
        ": fits",
    ):
        assert words in shown, words


def test_inspect_as_json_lists_every_problem_and_exits_with_the_models_code(tmp_path: Path) -> None:
    raw, _ = tinyq.make()
    for e in range(8):
        for which in ("w1", "w2", "w3"):
            del raw[f"layers.1.ffn.experts.{e}.{which}.weight"]
    raw["norm.weight"] = ("BF16", np.zeros(7, np.uint16))
    raw["stray"] = ("F32", np.zeros(1, np.float32))
    tinyq.save(tmp_path, raw)
    result = run("inspect", tmp_path, "--json")
    assert result.exit_code == ModelError.exit_code
    data: dict[str, Any] = json.loads(result.stdout)
    assert len([name for name in data["contract"]["missing"] if name.endswith("weight")]) == 24
    assert data["contract"]["extra"] == ["stray"] and "norm.weight" in data["contract"]["misshapen"][0]
    shown = run("inspect", tmp_path)
    assert shown.exit_code == ModelError.exit_code
    assert "missing (24):" in shown.output and "and 4 more (--json lists all)" in shown.output
    assert "extra (1):\n  stray" in shown.output and "NOT met" in shown.output


def test_convert_writes_a_model_that_inspect_accepts(tmp_path: Path) -> None:
    tinyq.write(tmp_path / "source")
    arguments = ("--experts", "affine2", "--dense", "affine8", "--json")
    result = run("convert", tmp_path / "source", tmp_path / "mlx", *arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["recipe"] == {"experts": "affine2", "dense": "affine8", "drafter_experts": "mxfp4"}
    data = json.loads(run("inspect", tmp_path / "mlx", "--json").stdout)
    assert data["contract"]["fits"] and data["layout"] == "MLX, quantised"
    assert data["formats"] == {
        "dense": ["affine8"],
        "drafter dense": ["affine8"],
        "drafter experts": ["mxfp4"],
        "experts": ["affine2"],
    }
    assert data["bytes_by_part"]["routed experts"] < 0.6 * 7 * 8 * 3 * 128 * 256 * 17 / 32


def test_refusals_are_one_line_each(tmp_path: Path) -> None:
    tinyq.write(tmp_path / "q")
    assert "'int4' is not one of mxfp4" in str(refusal("convert", tmp_path / "q", tmp_path / "o", "--experts", "int4"))
    assert "no such directory" in str(refusal("inspect", tmp_path / "absent"))
    (tmp_path / "empty").mkdir()
    assert "holds no config.json that can be read" in str(refusal("inspect", tmp_path / "empty"))
    assert "target 'bare' has no tool 'inspect'" in str(refusal("inspect", tmp_path / "q", "--target", "bare"))
    assert "cannot be loaded" in str(refusal("inspect", tmp_path / "q", "--target", "bad"))
    assert isinstance(refusal("inspect", tmp_path / "q", "--target", "nobody"), PluginError)
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    (tmp_path / "q" / "config.json").write_text(json.dumps(config | {"model_type": "deepseek_v41"}))
    assert "DeepSeek-V4.1" in str(refusal("inspect", tmp_path / "q"))


@pytest.mark.slow
def test_inspect_reads_nothing_but_headers_of_a_checkpoint_of_full_size(tmp_path: Path) -> None:
    """Flash-0731's 48 shards as files with a hole where the payload would be: 167 GB that nobody could read in time."""
    entries = list(expected(ModelConfig.from_json(FLASH), stages=3).items())
    weight_map: dict[str, str] = {}
    for i in range(48):
        file = f"model-{i + 1:05d}-of-00048.safetensors"
        header: dict[str, Any] = {}
        at = 0
        for name, (dtype, shape) in entries[i::48]:
            size = math.prod(shape) * ITEM_BITS[dtype] // 8
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
            at += size
            weight_map[name] = file
        text = json.dumps(header).encode()
        with (tmp_path / file).open("wb") as shard:
            shard.write(struct.pack("<Q", len(text)) + text)
            shard.truncate(8 + len(text) + at)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (tmp_path / "config.json").write_text(json.dumps(FLASH))
    data = json.loads(run("inspect", tmp_path, "--json").stdout)
    assert data["contract"] == {"fits": True, "official_tensors": 72_317, "missing": [], "extra": [], "misshapen": []}
    assert (data["tensors"], data["bytes"], data["files"]) == (72_317, 166_878_536_440, 48)
    assert data["memory"]["weights"] > 166e9
