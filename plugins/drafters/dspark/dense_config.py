"""The numbers of a dense DSpark drafter, read from its `config.json` and checked (spec 9.1), in either packaging.

DeepSpec's is flat and carries embedding and head. That of `speculators` nests the backbone, numbers taps from the
embedding on (its layer i + 1 is layer i here), may draft from a part of the vocabulary, and leaves what it shares with
its target to the target. It imports no MLX. What this drafter cannot run is refused here by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import attrs

from sparkwright.core.errors import ModelError
from sparkwright.plugins.deepseek_v4.headers import read_json

Head = Literal["vanilla", "gated", "rnn"]
HEADS: tuple[Head, ...] = ("vanilla", "gated", "rnn")


@attrs.frozen(kw_only=True)
class DenseConfig:
    """vocab_size: the target's; draft_vocab: tokens that can be drafted, the rows of the drafter's head. target_layers:
    of the target it was made for, 0 where that is not said. windows: context rows that a layer sees, 0 for all; causal:
    whether a layer with a window sees only earlier slots of the block. lent: embedding and head come from the target
    where the checkpoint has none."""

    vocab_size: int
    draft_vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int  # of the MLP
    eps: float
    rope_theta: float
    context: int
    block: int
    mask_token_id: int
    taps: tuple[int, ...]
    target_layers: int
    rank: int
    head: Head
    confidence: bool
    confidence_with_markov: bool
    windows: tuple[int, ...]
    causal: bool
    lent: bool

    @property
    def reduced(self) -> bool:
        return self.draft_vocab != self.vocab_size


def is_dense(path: Path) -> bool:
    """Whether a folder's config names a standalone DSpark drafter for a dense target."""
    file = path / "config.json"
    if not file.is_file():
        return False
    raw = read_json(file)
    names = raw.get("architectures") or []
    return any(str(name).endswith("DSparkModel") for name in names) or "transformer_layer_config" in raw


class _Reader:
    """One JSON object's keys; what is missing or makes no sense is a ModelError that names file and key."""

    def __init__(self, raw: Mapping[str, Any], where: Path, inside: str = "") -> None:
        self.raw, self.where, self.inside = raw, where, inside

    def wrong(self, key: str, expected: str) -> ModelError:
        found = repr(self.raw[key]) if key in self.raw else "missing"
        return ModelError(f"{self.where}: '{self.inside}{key}' is {found}, expected {expected}")

    def size(self, key: str, least: int = 1) -> int:
        value = self.raw.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
            raise self.wrong(key, f"a whole number from {least} on")
        return value

    def flag(self, key: str) -> bool:
        """A flag that decides how tensors are read: never guessed where it is missing."""
        value = self.raw.get(key)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def one_of(self, key: str, *supported: Any, default: Any = None) -> Any:
        value = self.raw.get(key, default)
        if value not in supported or isinstance(value, bool) != isinstance(supported[0], bool):
            raise self.wrong(key, f"one of the supported: {', '.join(map(repr, supported))}")
        return value

    def layer_ids(self, key: str, least: int) -> tuple[int, ...]:
        ids = self.raw.get(key)
        whole = isinstance(ids, list) and all(isinstance(i, int) and not isinstance(i, bool) for i in ids)
        if not whole or not ids or min(ids) < least or len(set(ids)) != len(ids):
            raise self.wrong(key, f"a list of different layers from {least} on ({least} is the embedding)")
        return tuple(ids)

    def theta(self) -> float:
        """The rotary base, which both packagings keep inside `rope_parameters`."""
        rope = self.raw.get("rope_parameters") or self.raw.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in (None, "default"):
            raise ModelError(f"{self.where}: the drafter's rotary type is {kind!r}; supported: 'default'")
        theta = rope.get("rope_theta", self.raw.get("rope_theta"))
        if not isinstance(theta, (int, float)) or theta <= 1:
            raise ModelError(f"{self.where}: 'rope_parameters.rope_theta' is {theta!r}, expected a number above 1")
        return float(theta)


def read_config(path: Path) -> DenseConfig:
    """ModelError names the first key that is missing, makes no sense, or asks for what is not supported."""
    where = path / "config.json"
    raw = read_json(where)
    top = _Reader(raw, where)
    if "transformer_layer_config" in raw:
        config = _speculators(top)
    else:
        architecture = str((raw.get("architectures") or [""])[0])
        if architecture != "Qwen3DSparkModel":
            raise ModelError(f"{where}: 'architectures' is {architecture!r}, expected 'Qwen3DSparkModel'")
        config = _deepspec(top)
    if config.mask_token_id >= config.vocab_size:
        raise ModelError(f"{where}: 'mask_token_id' is {config.mask_token_id}, outside {config.vocab_size} tokens")
    if config.heads % config.kv_heads or config.head_dim % 2:
        raise ModelError(f"{where}: {config.heads} heads, {config.kv_heads} key heads, head_dim {config.head_dim}")
    return config


def _deepspec(top: _Reader) -> DenseConfig:
    for kind in top.raw.get("layer_types") or ():
        if kind != "full_attention":
            raise ModelError(f"{top.where}: 'layer_types' holds {kind!r}; supported: 'full_attention'")
    return DenseConfig(
        **_backbone(top),
        **_heads(top),
        draft_vocab=top.size("vocab_size"),
        taps=top.layer_ids("target_layer_ids", -1),
        target_layers=top.size("num_target_layers") if "num_target_layers" in top.raw else 0,
        windows=(0,) * top.size("num_hidden_layers"),
        causal=False,
        lent=False,
    )


def _speculators(top: _Reader) -> DenseConfig:
    top.one_of("speculators_model_type", "dspark")
    if not top.flag("sample_from_anchor"):
        raise top.wrong("sample_from_anchor", "true: drafts begin at the anchor's slot, as DSpark's do")
    inner = top.raw["transformer_layer_config"]
    if not isinstance(inner, dict):
        raise top.wrong("transformer_layer_config", "an object")
    inside = _Reader(inner, top.where, "transformer_layer_config.")
    inside.one_of("model_type", "qwen3")
    backbone, heads = _backbone(inside), _heads(top)
    if top.raw.get("target_hidden_size") not in (None, backbone["hidden"]):
        raise top.wrong("target_hidden_size", f"the drafter's own hidden size {backbone['hidden']}")
    if top.size("draft_vocab_size") > backbone["vocab_size"]:
        raise top.wrong("draft_vocab_size", f"at most the target's vocabulary of {backbone['vocab_size']}")
    methods = (top.raw.get("speculators_config") or {}).get("proposal_methods") or ()
    for tokens in (method.get("speculative_tokens") for method in methods if isinstance(method, dict)):
        if tokens not in (None, heads["block"]):
            raise ModelError(
                f"{top.where}: 'block_size' is {heads['block']} and 'speculators_config' proposes {tokens} tokens; "
                "with sample_from_anchor the two must agree"
            )
    kinds = inner.get("layer_types")
    if kinds is None:
        kinds = ["full_attention"] * backbone["layers"]
    if not isinstance(kinds, list) or len(kinds) != backbone["layers"]:
        raise inside.wrong("layer_types", f"{backbone['layers']} kinds of layers")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise ModelError(
                f"{top.where}: 'layer_types' holds {kind!r}; supported: 'full_attention', 'sliding_attention'"
            )
    slides = "sliding_attention" in kinds
    window = inside.size("sliding_window") if slides else 0
    return DenseConfig(
        **backbone,
        **heads,
        draft_vocab=top.size("draft_vocab_size"),
        taps=tuple(i - 1 for i in top.layer_ids("aux_hidden_state_layer_ids", 0)),
        target_layers=0,
        windows=tuple(window if kind == "sliding_attention" else 0 for kind in kinds),
        causal=slides and not top.flag("sliding_window_non_causal"),
        lent=True,
    )


def _backbone(of: _Reader) -> dict[str, Any]:
    of.one_of("attention_bias", False, default=False)
    of.one_of("hidden_act", "silu", default="silu")
    return {
        "vocab_size": of.size("vocab_size"),
        "hidden": of.size("hidden_size"),
        "layers": of.size("num_hidden_layers"),
        "heads": of.size("num_attention_heads"),
        "kv_heads": of.size("num_key_value_heads"),
        "head_dim": of.size("head_dim"),
        "width": of.size("intermediate_size"),
        "eps": float(of.raw.get("rms_norm_eps", 1e-6)),
        "rope_theta": of.theta(),
        "context": of.size("max_position_embeddings"),
    }


def _heads(top: _Reader) -> dict[str, Any]:
    confidence = top.flag("enable_confidence_head")
    return {
        "block": top.size("block_size"),
        "mask_token_id": top.size("mask_token_id", 0),
        "rank": top.size("markov_rank"),
        "head": top.one_of("markov_head_type", *HEADS),
        "confidence": confidence,
        "confidence_with_markov": confidence and top.flag("confidence_head_with_markov"),
    }


def expected(c: DenseConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every floating-point tensor, `embed_tokens` and `lm_head` among them wherever they come from."""
    h, d, r = c.hidden, c.head_dim, c.rank
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (c.vocab_size, h),
        "lm_head.weight": (c.draft_vocab, h),
        "fc.weight": (h, len(c.taps) * h),
        "hidden_norm.weight": (h,),
        "norm.weight": (h,),
        "markov_head.markov_w1.weight": (c.vocab_size, r),
        "markov_head.markov_w2.weight": (c.draft_vocab, r),
    }
    if c.head == "gated":
        shapes |= {"markov_head.gate_proj.weight": (r, h + r), "markov_head.gate_proj.bias": (r,)}
    if c.head == "rnn":
        shapes |= {"markov_head.joint_proj.weight": (3 * r, 2 * r + h), "markov_head.joint_proj.bias": (3 * r,)}
    if c.confidence:
        shapes["confidence_head.proj.weight"] = (1, h + (r if c.confidence_with_markov else 0))
        shapes["confidence_head.proj.bias"] = (1,)
    for i in range(c.layers):
        p = f"layers.{i}."
        shapes |= {
            f"{p}self_attn.q_proj.weight": (c.heads * d, h),
            f"{p}self_attn.k_proj.weight": (c.kv_heads * d, h),
            f"{p}self_attn.v_proj.weight": (c.kv_heads * d, h),
            f"{p}self_attn.o_proj.weight": (h, c.heads * d),
            f"{p}self_attn.q_norm.weight": (d,),
            f"{p}self_attn.k_norm.weight": (d,),
            f"{p}mlp.gate_proj.weight": (c.width, h),
            f"{p}mlp.up_proj.weight": (c.width, h),
            f"{p}mlp.down_proj.weight": (h, c.width),
            f"{p}input_layernorm.weight": (h,),
            f"{p}post_attention_layernorm.weight": (h,),
        }
    return shapes


def lendable(c: DenseConfig) -> frozenset[str]:
    """Tensors that may be missing because they are frozen copies of the target's."""
    if not c.lent:
        return frozenset()
    return frozenset({"embed_tokens.weight"} | (set() if c.reduced else {"lm_head.weight"}))
