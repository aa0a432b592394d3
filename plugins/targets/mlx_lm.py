"""Target `mlx_lm`: any text model directory that the mlx-lm package loads, quantised or not.

What a model is comes from its config and tensor headers alone (`describe`); its weights, its modules and its caches
are handled in mlx_lm_model.py and mlx_lm_state.py, which import MLX and are imported when a model is built. Knows no
architecture by name: mlx-lm does.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparkwright.core.contracts import (
    Forward,
    Logits,
    Provider,
    Resources,
    Site,
    TargetFacts,
    TargetState,
    Text,
    option,
)
from sparkwright.core.errors import AssemblyError, ModelError, PluginError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.text import TokenizerText, eos_ids, read_json
from sparkwright.plugins.deepseek_v4.headers import Tensor, read_directory

if TYPE_CHECKING:
    import mlx.core as mx

    from sparkwright.plugins.targets.mlx_lm_model import Model

DTYPES = ("auto", "float32", "bfloat16", "float16", "mixed", "stored")
UNBOUNDED = 1 << 20
"""Context of a model whose config names no limit (recurrent ones)."""
ROLLBACK = "trim, or snapshot and re-forward in layers whose cache cannot be trimmed"


@attrs.frozen
class Options:
    """Options of the target `mlx_lm`."""

    dtype: str = option(
        "auto",
        "weights and activations: float32 (quantised weights are dequantised), bfloat16 or float16 (quantised weights "
        "stay), mixed (quantised weights stay, the rest is float32), stored (nothing is changed), auto (on the CPU "
        "float32, or mixed if that would take over half of the memory; elsewhere stored)",
        attrs.validators.in_(DTYPES),
    )


# --------------------------------------------------------------------------------------------------------------
# Facts, from JSON and headers
# --------------------------------------------------------------------------------------------------------------


def describe(options: Options, site: Site) -> TargetFacts:
    """ModelError for a directory that is missing, incomplete, truncated or not a text model."""
    directory = _directory(site)
    config = read_json(directory / "config.json", required=True)
    nested = config.get("text_config")
    text: Mapping[str, Any] = {**config, **nested} if isinstance(nested, dict) else config
    tensors = _tensors(directory)
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise ModelError(f"{directory / 'config.json'}: model_type is {model_type!r}; expected a name such as 'llama'")

    def size(*names: str) -> int:
        found = next((text[name] for name in names if text.get(name) is not None), None)
        if not isinstance(found, int) or isinstance(found, bool) or found < 1:
            raise ModelError(f"{directory / 'config.json'}: {names[0]} is {found!r}; expected a positive integer")
        return found

    return TargetFacts(
        vocab_size=size("vocab_size", "padded_vocab_size"),
        context=_context(directory, text),
        hidden=size("hidden_size", "n_embd", "d_model", "dim", "model_dim"),
        layers=size("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers"),
        eos=eos_ids(directory),
        model_type=model_type,
        rollback=ROLLBACK,
        weight_bytes=sum(tensor.nbytes for tensor in tensors.values()),
        fingerprint=_fingerprint(config, tensors),
    )


def _directory(site: Site) -> Path:
    if site.model is None:
        raise ModelError("target mlx_lm: no model was named; give --model PATH, or `model` in the [target] table")
    directory = Path(site.model).expanduser()
    if not directory.is_dir():
        found = "is not a directory" if directory.exists() else "does not exist"
        raise ModelError(f"target mlx_lm: model {directory} {found}; expected a model directory")
    return directory


def _tensors(directory: Path) -> dict[str, Tensor]:
    if not any(directory.glob("model*.safetensors")):
        raise ModelError(f"{directory}: holds no model*.safetensors file; is the directory complete?")
    return read_directory(directory)


def _context(directory: Path, text: Mapping[str, Any]) -> int:
    for name in ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length"):
        value = text.get(name)
        if isinstance(value, int) and value > 0:
            return value
    limit = read_json(directory / "tokenizer_config.json").get("model_max_length")
    return limit if isinstance(limit, int) and 0 < limit < UNBOUNDED else UNBOUNDED


def _fingerprint(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    headers = sorted((name, t.dtype, t.shape, t.file.name, t.start) for name, t in tensors.items())
    return hashlib.sha256(json.dumps([config, headers], sort_keys=True).encode()).hexdigest()[:16]


# --------------------------------------------------------------------------------------------------------------
# The plugin
# --------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class MlxLmTarget:
    """A loaded model; `model.dtype` says what its weights were made into, and why."""

    model: Model
    text: Text
    taps: tuple[int, ...]

    @hookimpl
    def sparkwright_target_new_state(self) -> TargetState:
        return self.model.new_state()

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: TargetState, logits: Logits) -> Forward:
        return self.model.forward(tokens, state, logits, self.taps)

    @hookimpl
    def sparkwright_target_resources(self) -> Resources:
        return Resources(embed=self.model.embed, head=self.model.head)

    @hookimpl
    def sparkwright_target_text(self) -> Text:
        return self.text


def build(options: Options, site: Site) -> MlxLmTarget:
    """ModelError for weights that do not fit the config, PluginError without mlx-lm, AssemblyError for unknown taps."""
    if importlib.util.find_spec("mlx_lm") is None:
        raise PluginError("target mlx_lm: mlx-lm is not installed; run `pip install 'sparkwright[mlx-lm]'`")
    facts = site.target or describe(options, site)
    wrong = [layer for layer in site.taps if not -1 <= layer < facts.layers]
    if wrong:
        raise AssemblyError(
            f"target mlx_lm: asked for the outputs of layers {wrong}; {site.model} has layers 0..{facts.layers - 1} "
            "(-1 is the embedding)"
        )
    if site.row_exact:
        raise AssemblyError(
            "target mlx_lm: engine.row_exact is not supported (mlx-lm's attention grows with the text); "
            "on the CPU rows are bit-equal with SPARKWRIGHT_OPENBLAS=0 and float32"
        )
    directory = _directory(site)
    text = TokenizerText.load(directory, facts.vocab_size)  # before the weights: it is the cheaper thing to be wrong
    try:
        from sparkwright.plugins.targets.mlx_lm_model import Model
    except Exception as error:  # an mlx-lm of another version, or without what it needs
        raise PluginError(
            f"target mlx_lm: mlx-lm cannot be imported ({type(error).__name__}: {error}); "
            "run `pip install -U 'sparkwright[mlx-lm]'`"
        ) from error

    def load() -> Model:
        return Model.load(directory, facts, options.dtype, site.device, site.progress)

    key = ("mlx_lm", str(directory.resolve()), facts.fingerprint, options.dtype, site.device)
    model: Model = site.store(key, load) if site.store is not None else load()
    model.check(site.taps)
    return MlxLmTarget(model, text, tuple(site.taps))


def recognises(directory: Path) -> int:
    """1 for a directory with weights and a config that names a model type: it could be loaded."""
    try:
        named = isinstance(read_json(directory / "config.json").get("model_type"), str)
    except ModelError:
        return 0
    return int(named and any(directory.glob("model*.safetensors")))


@hookimpl
def sparkwright_register_targets() -> Iterable[Provider]:
    return [
        Provider(
            kind="target",
            name="mlx_lm",
            summary="any text model directory that mlx-lm loads",
            build=build,
            describe=describe,
            options=Options,
            recognises=recognises,
        )
    ]
