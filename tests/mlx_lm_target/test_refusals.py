"""What cannot be run is refused before it is run, in one sentence that names the thing."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.models import cache as kinds
from tests.mlx_lm_target import tiny

from sparkwright.core.contracts import Site
from sparkwright.core.errors import AssemblyError, ModelError, PluginError, SparkwrightError
from sparkwright.plugins.targets import mlx_lm

DirectoryOf = Callable[[str], Path]


@pytest.fixture
def directory(directory_of: DirectoryOf, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory_of("llama"), tmp_path / "model"))


def refusal(directory: Path, kind: type[SparkwrightError] = ModelError, **more: Any) -> str:
    with pytest.raises(kind) as caught:
        tiny.load(directory, **more)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_describing_reads_json_and_headers_and_imports_no_mlx(directory: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from sparkwright.core.contracts import Site;"
        "from sparkwright.plugins.targets import mlx_lm as m;"
        f"f = m.describe(m.Options(), Site(model=Path({str(directory)!r})));"
        "print(f.vocab_size, f.context, f.hidden, f.layers, f.eos, f.model_type, f.weight_bytes > 0);"
        "assert not {'mlx.core', 'mlx_lm', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.split("\n")[0] == "270 512 64 4 (263,) llama True"


def test_facts_come_from_a_nested_text_config_too(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    text = {k: config.pop(k) for k in ("hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings")}
    (directory / "config.json").write_text(json.dumps({**config, "text_config": text}))
    facts = mlx_lm.describe(mlx_lm.Options(), tiny.site(directory))
    assert (facts.hidden, facts.layers, facts.vocab_size, facts.context) == (64, 4, 270, 512)


def test_the_fingerprint_is_of_config_and_headers(directory: Path) -> None:
    first = mlx_lm.describe(mlx_lm.Options(), tiny.site(directory)).fingerprint
    assert first == mlx_lm.describe(mlx_lm.Options(), tiny.site(directory)).fingerprint
    tiny.edit_config(directory, rope_theta=5.0)
    assert first != mlx_lm.describe(mlx_lm.Options(), tiny.site(directory)).fingerprint


def test_a_missing_model(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "nowhere")
    with pytest.raises(ModelError, match="no model was named"):
        mlx_lm.describe(mlx_lm.Options(), Site())


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file(directory: Path, name: str) -> None:
    (directory / name).unlink()
    assert name in refusal(directory) or "safetensors" in name


@pytest.mark.parametrize("keep", [0, 5, 400, 0.5, 0.999])
def test_a_truncated_safetensors_file(directory: Path, keep: float) -> None:
    path = directory / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(keep if keep >= 1 or keep == 0 else keep * len(data))])
    assert "model.safetensors" in refusal(directory)


def test_a_missing_shard(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "model-00001-of-00002.safetensors")
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002.safetensors" in refusal(directory)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden_size": 32}, "shape"),
        ({"vocab_size": 999}, "shape"),
        ({"num_hidden_layers": 3}, "layers.3"),
        ({"num_hidden_layers": 5}, "layers.4"),
        ({"num_key_value_heads": 4}, "shape"),
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": None}, "hidden_size"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"num_attention_heads": 3}, ""),
        ({"model_file": "evil.py"}, "evil.py"),
    ],
)
def test_a_config_that_does_not_fit_the_weights(directory: Path, change: dict[str, Any], named: str) -> None:
    tiny.edit_config(directory, **change)
    assert named in refusal(directory)


def test_a_layer_cache_that_cannot_be_taken_back_is_refused_by_name(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class GrowingMemory:
        offset = 0

        def __init__(self) -> None:
            self.journal = iter(())

    monkeypatch.setattr("mlx_lm.models.llama.KVCache", GrowingMemory)
    message = refusal(directory, AssemblyError)
    assert "GrowingMemory" in message
    assert "iterator" in message


def test_a_ring_that_keeps_first_rows_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rings: Any = kinds.RotatingKVCache
    monkeypatch.setattr("mlx_lm.models.llama.KVCache", lambda: rings(12, keep=2))
    assert "RotatingKVCache that keeps its first 2 rows" in refusal(directory, AssemblyError)


def test_unknown_taps(directory: Path) -> None:
    assert "[4, -2]" in refusal(directory, AssemblyError, taps=(0, 4, -2))


def test_row_exact_is_refused_with_what_to_do_instead(directory: Path) -> None:
    assert "SPARKWRIGHT_OPENBLAS=0" in refusal(directory, AssemblyError, row_exact=True)


def test_without_mlx_lm_the_command_to_install_it_is_given(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "mlx_lm" else real(name, *a))
    assert "pip install 'sparkwright[mlx-lm]'" in refusal(directory, PluginError)


@pytest.mark.parametrize(
    ("files", "score"), [(["config.json", "model.safetensors"], 1), (["config.json"], 0), (["model.safetensors"], 0)]
)
def test_a_directory_is_recognised_by_its_config_and_weights(
    directory: Path, tmp_path: Path, files: list[str], score: int
) -> None:
    part = tmp_path / "part"
    part.mkdir()
    for name in files:
        shutil.copy(directory / name, part / name)
    assert mlx_lm.recognises(part) == score


@pytest.mark.parametrize(
    ("asked", "size", "device", "expected"),
    [
        ("auto", 10, "cpu", "float32"),
        ("auto", 51, "cpu", "mixed"),
        ("auto", 10, "gpu", "stored"),
        ("bfloat16", 10, "cpu", "bfloat16"),
    ],
)
def test_auto_chooses_by_device_and_memory(asked: str, size: int, device: str, expected: str) -> None:
    from sparkwright.plugins.targets.mlx_lm_model import choose_dtype

    assert choose_dtype(asked, size, device, memory=100)[0] == expected
