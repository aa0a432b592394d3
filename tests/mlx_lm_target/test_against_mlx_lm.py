"""What mlx-lm computes for a model is what the target gives, whichever part of it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn
import numpy as np
import pytest
from mlx_lm.models import cache as kinds
from mlx_lm.utils import load_model
from tests.mlx_lm_target import tiny
from tests.mlx_lm_target.test_rows_and_rollback import tokens

from sparkwright.plugins.targets.mlx_lm import MlxLmTarget

NAMES = [*tiny.CONFIGS]
TargetOf = Callable[[str], MlxLmTarget]
DirectoryOf = Callable[[str], Path]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_mlx_lms_own(target_of: TargetOf, directory_of: DirectoryOf, name: str) -> None:
    model, _ = load_model(directory_of(name))
    ids = tokens(80)
    cache = kinds.make_prompt_cache(model)
    expected = [np.array(model(mx.array(ids[:73])[None], cache=cache)[0])]
    expected += [np.array(model(mx.array([t])[None], cache=cache)[0]) for t in ids[73:]]
    target = target_of(name)
    state = target.sparkwright_target_new_state()
    got = target.sparkwright_target_forward(mx.array(ids, mx.int32), state, "all").logits
    np.testing.assert_allclose(np.array(got), np.concatenate(expected), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_row_and_no_row_are_the_same_forward(target_of: TargetOf, name: str) -> None:
    target = target_of(name)
    ids = mx.array(tokens(9), mx.int32)
    states = [target.sparkwright_target_new_state() for _ in range(3)]
    full = target.sparkwright_target_forward(ids, states[0], "all")
    last = target.sparkwright_target_forward(ids, states[1], "last")
    none = target.sparkwright_target_forward(ids, states[2], "none")
    assert full.logits is not None
    assert last.logits is not None
    assert last.logits.shape == (1, tiny.VOCABULARY)
    assert none.logits is None
    np.testing.assert_array_equal(np.array(last.logits), np.array(full.logits[-1:]))
    following = [target.sparkwright_target_forward(ids[:2], s, "all") for s in states]
    for other in (last, none):
        np.testing.assert_array_equal(np.array(other.taps), np.array(full.taps))
    for a in following[1:]:
        np.testing.assert_array_equal(np.array(a.logits), np.array(following[0].logits))


def test_the_head_of_a_prefill_works_on_one_row_only(target_of: TargetOf, monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of("qwen3")
    rows: list[int] = []
    head = target.model.module.lm_head
    original = type(head).__call__

    def counting(self: Any, x: mx.array) -> mx.array:
        if self is head:
            rows.append(x.shape[1])
        return mx.array(original(self, x))

    monkeypatch.setattr(type(head), "__call__", counting)
    state = target.sparkwright_target_new_state()
    target.sparkwright_target_forward(mx.array(tokens(9), mx.int32), state, "last")
    assert rows == [1]


@pytest.mark.parametrize("name", NAMES)
def test_taps_are_the_layers_outputs_in_the_order_asked_for(directory_of: DirectoryOf, name: str) -> None:
    layers = tiny.CONFIGS[name]["num_hidden_layers"]
    order = (layers - 1, -1, 0)
    target = tiny.load(directory_of(name), taps=order)
    model, _ = load_model(directory_of(name))
    seen: dict[int, mx.array] = {}
    kind = type(model.layers[0])

    class Spy(kind):  # type: ignore[misc, valid-type]
        def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> Any:
            index = next(i for i, layer in enumerate(model.layers) if layer is self)
            seen.setdefault(-1, x)
            seen[index] = super().__call__(x, *args, **kwargs)
            return seen[index]

    for layer in model.layers:
        layer.__class__ = Spy
    ids = mx.array(tokens(6), mx.int32)
    model(ids[None], cache=kinds.make_prompt_cache(model))
    state = target.sparkwright_target_new_state()
    taps = target.sparkwright_target_forward(ids, state, "last").taps
    assert taps is not None
    expected = np.concatenate([np.array(seen[layer][0]) for layer in order], axis=-1)
    np.testing.assert_array_equal(np.array(taps), expected)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2", "gemma3", "recurrent"])
def test_the_lent_embedding_and_head_are_the_models_own(target_of: TargetOf, name: str) -> None:
    target = target_of(name)
    resources = target.sparkwright_target_resources()
    ids = mx.array(tokens(5), mx.int32)
    state = target.sparkwright_target_new_state()
    forward = target.sparkwright_target_forward(ids, state, "all")
    assert forward.taps is not None
    entering = forward.taps[:, : tiny.COMMON["hidden_size"]]
    np.testing.assert_array_equal(np.array(resources.embed(ids)), np.array(entering))

    model = target.model.module
    trunk = target.model.trunk
    assert trunk is not None
    normed = trunk(ids[None], cache=kinds.make_prompt_cache(model))[0]
    logits = resources.head(normed)
    assert logits.dtype == mx.float32
    # The reference of this line has no windows of ours, hence the tolerance.
    np.testing.assert_allclose(np.array(logits), np.array(forward.logits), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_on_the_cpu_quantised_weights_become_exactly_what_they_stand_for(tmp_path: Path, bits: int) -> None:
    directory = tiny.make(tmp_path, "llama", bits=bits)
    target = tiny.load(directory)
    assert target.model.dtype == "float32"
    layer = target.model.module.layers[1].self_attn.q_proj
    stored = mx.load(str(directory / "model.safetensors"))
    assert isinstance(stored, dict)
    prefix = "model.layers.1.self_attn.q_proj"
    packed, scales, biases = (stored[f"{prefix}.{part}"] for part in ("weight", "scales", "biases"))
    weight = mx.dequantize(packed, scales, biases, group_size=32, bits=bits)
    assert layer.weight.dtype == mx.float32
    np.testing.assert_array_equal(np.array(layer.weight), np.array(weight))


@pytest.mark.parametrize(("dtype", "weights"), [("bfloat16", mx.bfloat16), ("float16", mx.float16), ("mixed", None)])
def test_other_number_formats_keep_quantised_weights(tmp_path: Path, dtype: str, weights: mx.Dtype | None) -> None:
    target = tiny.load(tiny.make(tmp_path, "llama", bits=4), dtype=dtype)
    nn: Any = mlx.nn
    module = target.model.module.layers[0].mlp.up_proj
    assert isinstance(module, nn.QuantizedLinear)
    wanted = weights or mx.float32
    assert module.scales.dtype == wanted
    assert target.model.module.layers[0].input_layernorm.weight.dtype == wanted
    state = target.sparkwright_target_new_state()
    out = target.sparkwright_target_forward(mx.array([1, 2], mx.int32), state, "all")
    assert out.logits is not None
    assert out.logits.dtype == mx.float32


def test_engines_that_share_weights_do_not_share_taps(directory_of: DirectoryOf) -> None:
    kept: dict[Any, Any] = {}

    def store(key: Any, make: Callable[[], Any]) -> Any:
        if key not in kept:
            kept[key] = make()
        return kept[key]

    one = tiny.load(directory_of("llama"), taps=(0,), store=store)
    two = tiny.load(directory_of("llama"), taps=(1, 2), store=store)
    assert one.model is two.model
    ids = mx.array([3, 4], mx.int32)
    widths = []
    for target in (one, two, one):
        taps = target.sparkwright_target_forward(ids, target.sparkwright_target_new_state(), "last").taps
        assert taps is not None
        widths.append(taps.shape[1])
    assert widths == [64, 128, 64]
