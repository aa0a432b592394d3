"""Conversion for MLX: right values, the same bytes however often it was killed, bounded memory, nothing overwritten."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4_checkpoint import conversions, tinyq
from tests.deepseek_v4_checkpoint.test_reading import assert_reads, stacked, values

from sparkwright.core.errors import ConfigError, ModelError, OutputError
from sparkwright.plugins.deepseek_v4.checkpoint import open_checkpoint
from sparkwright.plugins.deepseek_v4.convert import STATE, convert
from sparkwright.plugins.deepseek_v4.linear import Linear
from sparkwright.plugins.deepseek_v4.recipe import Recipe
from sparkwright.plugins.deepseek_v4.weights import CheckpointWeights

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source")
    tinyq.write(path)
    (path / "tokenizer.json").write_text("{}")
    (path / "modeling.py").write_text("raise SystemExit")
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def parts_of(linear: Linear) -> dict[str, mx.array]:
    parts = {"weight": linear.weight, "scales": linear.scales, "biases": linear.biases}
    return {suffix: array for suffix, array in parts.items() if array is not None}


def test_the_default_keeps_every_value_and_the_drafter(source: Path, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    done = convert(source, tmp_path / "mlx", Recipe(), lambda *step: steps.append(step))
    checkpoint = open_checkpoint(tmp_path / "mlx")
    assert checkpoint.report.fine and checkpoint.layout == "MLX, quantised"
    assert (checkpoint.variant, checkpoint.stages, checkpoint.confidence) == ("DSpark", 3, True)
    linears = assert_reads(checkpoint, stacked(tinyq.make()[1]), expand=False)
    assert (linears["layers.2.ffn.experts.w1"].format, linears["layers.2.attn.wq_a"].format) == ("mxfp4", "mxfp8")
    assert steps[0][1:] == (0, steps[0][2]) and steps[-1][1] == steps[-1][2] == steps[0][2]
    assert [step[1] for step in steps] == sorted(step[1] for step in steps)
    assert done["shards"] == 11 and done["resumed_after"] == 0 and done["bytes"] == checkpoint.nbytes
    names = set(contents(tmp_path / "mlx"))
    assert "tokenizer.json" in names and not names & {"modeling.py", STATE}
    assert not any(name.endswith(".partial") for name in names)


@pytest.mark.parametrize(
    ("experts", "dense", "drafter"),
    [("affine4", "affine8", "mxfp4"), ("affine3", "bf16", "affine4"), ("affine2", "mxfp8", "mxfp4")],
)
def test_each_form_is_what_mlx_quantises_the_exact_values_to(
    source: Path, tmp_path: Path, experts: str, dense: str, drafter: str
) -> None:
    convert(source, tmp_path / "mlx", Recipe(experts, dense, drafter))
    checkpoint = open_checkpoint(tmp_path / "mlx")
    weights, exact = CheckpointWeights(checkpoint), stacked(tinyq.make()[1])
    dense = "bfloat16" if dense == "bf16" else dense
    found = {
        "layers.3.ffn.experts.w1": (weights.experts("layers.3.ffn").w1, experts),
        "mtp.1.ffn.experts.w2": (weights.experts("mtp.1.ffn").w2, drafter),
        "layers.6.attn.wo_b": (weights.linear("layers.6.attn.wo_b"), dense),
        "mtp.0.main_proj": (weights.linear("mtp.0.main_proj"), dense),
        "head": (weights.linear("head"), "bfloat16"),
        "layers.4.attn.compressor.wkv": (weights.linear("layers.4.attn.compressor.wkv"), "bfloat16"),
    }
    for name, (linear, form) in found.items():
        assert linear.format == form, name
        if form.startswith("mx"):  # moved, not quantised
            assert np.array_equal(values(linear), exact[f"{name}.weight"]), name
            continue
        wanted = conversions.quantise(exact[f"{name}.weight"], form)
        for suffix, array in parts_of(linear).items():
            bits = np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
            assert np.array_equal(bits, wanted[suffix][1]), (name, suffix)
    lossy = np.abs(values(weights.experts("layers.3.ffn").w1) - exact["layers.3.ffn.experts.w1.weight"]).max()
    assert lossy > 0
    table = json.loads((tmp_path / "mlx" / "config.json").read_text())["quantization"]
    width = int(experts.removeprefix("affine"))
    assert table["model.layers.3.ffn.switch_mlp.gate_proj"] == {"group_size": 64, "bits": width, "mode": "affine"}


def test_floats_can_be_converted_and_a_conversion_can_be_repacked_but_not_quantised_again(tmp_path: Path) -> None:
    _, exact = tinyq.make()
    tinyq.save(tmp_path / "floats", tinyq.as_floats(exact, "BF16"))
    convert(tmp_path / "floats", tmp_path / "a", Recipe("affine4", "mxfp8"))
    convert(tmp_path / "a", tmp_path / "b", Recipe("affine4", "mxfp8"))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    with pytest.raises(ModelError, match=r"'layers\.0\.ffn\.experts\.w1' is already quantised \(affine4\) and affine2"):
        convert(tmp_path / "a", tmp_path / "c", Recipe("affine2"))
    assert not (tmp_path / "c").exists()


def test_the_slices_leave_no_trace(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe("affine2", "affine8", "affine3")
    convert(source, tmp_path / "whole", recipe)
    monkeypatch.setattr("sparkwright.plugins.deepseek_v4.convert.SLICE", 1 << 12)
    convert(source, tmp_path / "sliced", recipe)
    assert contents(tmp_path / "sliced") == contents(tmp_path / "whole")


KILLED = """
import os, signal, sys
from pathlib import Path
from sparkwright.plugins.deepseek_v4.convert import convert
from sparkwright.plugins.deepseek_v4.recipe import Recipe
left = int(sys.argv[3])
def progress(what, done, total):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
convert(Path(sys.argv[1]), Path(sys.argv[2]), Recipe("affine4"), progress)
"""


def test_a_conversion_killed_at_any_point_goes_on_to_the_same_bytes(source: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    steps: list[int] = []
    convert(source, whole, Recipe("affine4"), lambda what, done, total: steps.append(done))
    broken = tmp_path / "broken"
    resumed = []
    for fraction in (0.02, 0.3, 0.6):  # of the steps that are left each time
        arguments = [str(source), str(broken), str(max(int(len(steps) * fraction), 1))]
        process = subprocess.run([sys.executable, "-c", KILLED, *arguments], cwd=ROOT, check=False, timeout=120)
        assert process.returncode == -signal.SIGKILL
        with pytest.raises(ModelError, match=r"config\.json"):
            open_checkpoint(broken)  # an unfinished conversion is no model
        resumed.append(len(list(broken.glob("*.safetensors"))))
        assert list(broken.glob("*.partial"))
    # A name that is there is not trusted blindly: this shard was cut behind our back.
    first = broken / "model-00001-of-00011.safetensors"
    os.truncate(first, first.stat().st_size // 2)
    done = convert(source, broken, Recipe("affine4"))
    assert resumed == sorted(resumed) and resumed[-1] > resumed[0]
    assert done["resumed_after"] == resumed[-1] - 1 > 0
    assert contents(broken) == contents(whole)


def test_a_destination_that_holds_something_else_is_left_alone(source: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(OutputError, match=r"not empty \(it holds 'letter.txt'\)"):
        convert(source, tmp_path / "other", Recipe())
    assert contents(tmp_path / "other") == {"letter.txt": b"dear"}
    with pytest.raises(OutputError, match="same directory"):
        convert(source, source, Recipe())
    convert(source, tmp_path / "done", Recipe())
    with pytest.raises(OutputError, match="not empty"):
        convert(source, tmp_path / "done", Recipe())
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        convert(source, tmp_path / "file", Recipe())
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / STATE).write_text(json.dumps({"source": {}, "recipe": {"experts": "affine2"}}))
    with pytest.raises(OutputError, match=r"unfinished conversion of another source .*affine2"):
        convert(source, tmp_path / "begun", Recipe())


def test_two_conversions_do_not_write_into_one_directory(source: Path, tmp_path: Path) -> None:
    (tmp_path / STATE).touch()
    with (tmp_path / STATE).open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another conversion is writing here"):
            convert(source, tmp_path, Recipe())
    convert(source, tmp_path, Recipe())
    assert open_checkpoint(tmp_path).report.fine


def test_a_full_disk_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda path: Usage)
    with pytest.raises(OutputError, match=r"still to be written and 0\.00 GiB are free, 0\.01 GiB too little"):
        convert(source, tmp_path / "mlx", Recipe())
    assert not list((tmp_path / "mlx").glob("*.safetensors"))


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="--experts: 'affine5' is not one of mxfp4, affine4, affine3, affine2; did"):
        Recipe(experts="affine5")
    with pytest.raises(ConfigError, match="--dense: 'int8' is not one of mxfp8, affine8, bf16"):
        Recipe(dense="int8")


MEASURED = """
import resource, sys
from pathlib import Path
import mlx.core as mx, numpy as np
from sparkwright.plugins.deepseek_v4.checkpoint import open_checkpoint
from sparkwright.plugins.deepseek_v4.convert import convert
from sparkwright.plugins.deepseek_v4.recipe import Recipe
from sparkwright.plugins.deepseek_v4.weights import CheckpointWeights

def peak():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Not ru_maxrss: on Linux a child starts with its parent's.
    return next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith("VmHWM"))

mx.eval(mx.quantize(mx.zeros((64, 64), mx.bfloat16)))
before = peak()
if len(sys.argv) == 2:
    bank = CheckpointWeights(open_checkpoint(Path(sys.argv[1]))).experts("layers.0.ffn")
else:
    convert(Path(sys.argv[1]), Path(sys.argv[2]), Recipe(sys.argv[3], sys.argv[4]))
print(peak() - before)
"""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layer of 32 experts of 1,024 x 4,096 in one shard of 230 MiB."""
    config = tinyq.CONFIG | {
        "hidden_size": 4096,
        "num_hidden_layers": 1,
        "compress_ratios": [0],
        "num_hash_layers": 0,
        "n_routed_experts": 32,
        "moe_intermediate_size": 1024,
        "q_lora_rank": 1024,
    }
    config = {key: value for key, value in config.items() if not key.startswith(("dspark", "num_nextn"))}
    rng = np.random.default_rng(0)
    raw: dict[str, tinyq.Raw] = {}
    for name, kind, (*lead, last) in tinyq.names_and_shapes(config, drafter=False):
        scale = name.removesuffix("weight") + "scale"
        if kind == "fp4":
            raw[name] = ("I8", rng.integers(0, 256, (*lead, last // 2), dtype=np.uint8))
            raw[scale] = ("F8_E8M0", np.full((*lead, last // 32), 120, np.uint8))
        elif kind == "fp8":
            raw[name] = ("F8_E4M3", rng.integers(0, 120, (*lead, last), dtype=np.uint8))
            raw[scale] = ("F8_E8M0", np.full((lead[0] // 128, last // 128), 120, np.uint8))
        else:
            dtype = {"bf16": ("BF16", np.uint16), "f32": ("F32", np.float32), "i64": ("I64", np.int64)}[kind]
            raw[name] = (dtype[0], np.zeros((*lead, last), dtype[1]))
    return tinyq.save(tmp_path_factory.mktemp("wide"), raw, config, shards=1)


def growth(*arguments: object) -> int:
    """Bytes by which a fresh process grew at most."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    made = subprocess.run(command, cwd=ROOT, check=True, timeout=300, capture_output=True, text=True)
    return int(made.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(("experts", "dense"), [("mxfp4", "mxfp8"), ("affine4", "affine8")])
def test_conversion_takes_less_than_the_largest_shard_twice(
    wide: Path, tmp_path: Path, experts: str, dense: str
) -> None:
    shard = (wide / "model.safetensors").stat().st_size
    grown = growth(wide, tmp_path / "mlx", experts, dense)
    print(f"{experts}: {grown / 2**20:.0f} MiB for a shard of {shard / 2**20:.0f} MiB")
    assert shard > 200 << 20
    assert 1 << 20 < grown < 2 * shard  # what is promised (and a measurement that measures)
    assert grown < 96 << 20  # what the slices take, whatever the shard


@pytest.mark.slow
def test_loading_a_bank_takes_one_projection_more_than_it_keeps(wide: Path) -> None:
    projection = 32 * 1024 * 4096 * 17 // 32  # codes of half a byte, and a scale byte for 32 of them
    grown = growth(wide)
    print(f"{grown / 2**20:.0f} MiB for a bank of {3 * projection / 2**20:.0f} MiB")
    assert 3 * projection < grown < 4 * projection + (24 << 20)
