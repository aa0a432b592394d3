"""Tensor names: every naming this family is published in, brought to the official one, and MLX's for what we write.

Inside the plugin only official names exist (`layers.3.attn.wq_a.weight`, `mtp.0.main_proj.scale`). MLX conversions
(mlx-lm and mlx-vlm) rename modules and stack a layer's experts into one array. A stacked bank is called by the
official name without the expert's number: `layers.3.ffn.experts.w1.weight`.
"""

from __future__ import annotations

import re
from typing import Final

_BLOCK: Final = re.compile(r"^(layers|mtp|stages)\.(\d+)\.(?:decoder\.)?(.+)$")
_HYPER: Final = re.compile(r"^(attn|ffn)_hc\.(fn|base|scale)$")
_HYPER_HEAD: Final = re.compile(r"^hc_head\.(fn|base|scale)$")
_OFFICIAL_HYPER: Final = re.compile(r"^hc_(attn|ffn)_(fn|base|scale)$")
_OFFICIAL_HYPER_HEAD: Final = re.compile(r"^hc_head_(fn|base|scale)$")
_EXPERT: Final = re.compile(
    r"^(ffn\.(?:shared_experts|experts(?:\.\d+)?|switch_mlp))\.(gate_proj|up_proj|down_proj)\.(.+)$"
)
_RELEASED_EXPERT: Final = re.compile(r"^(layers|mtp)\.\d+\.ffn\.experts\.\d+\.w[123]\.(weight|scale)$")

PROJECTIONS: Final = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
_MLX_PROJECTIONS: Final = {official: mlx for mlx, official in PROJECTIONS.items()}
STAGELESS: Final = ("markov_head.", "confidence_head.")
"""What a drafter on its own holds outside its stages."""


def official(name: str, last_stage: int = 0) -> str:
    """The official name of a tensor in any naming we read; a name nobody uses comes back as it is.

    last_stage: the drafter stage that carries the heads; a drafter on its own (mlx-vlm) writes them without a stage.
    """
    if _RELEASED_EXPERT.match(name):
        return name  # 97 of 100 names of a release
    name = name.removeprefix("language_model.").removeprefix("model.")
    for mlx, plain in (("embed_tokens.", "embed."), ("lm_head.", "head.")):
        if name.startswith(mlx):
            return plain + name.removeprefix(mlx)
    if name.startswith(STAGELESS):
        return f"mtp.{last_stage}.{name}"
    if match := _HYPER_HEAD.match(name):
        return f"hc_head_{match[1]}"
    if match := _BLOCK.match(name):
        stack = "mtp" if match[1] == "stages" else match[1]
        return f"{stack}.{match[2]}.{_in_block(match[3])}"
    return name


def _in_block(leaf: str) -> str:
    if match := _HYPER.match(leaf):
        return f"hc_{match[1]}_{match[2]}"
    if match := _HYPER_HEAD.match(leaf):
        return f"hc_head_{match[1]}"
    for module, plain in (("self_attn.", "attn."), ("mlp.", "ffn.")):
        if leaf.startswith(module):
            leaf = plain + leaf.removeprefix(module)
    if leaf.endswith(".weight_scale_inv"):
        leaf = leaf.removesuffix("weight_scale_inv") + "scale"
    if leaf == "ffn.gate.e_score_correction_bias":
        return "ffn.gate.bias"
    if match := _EXPERT.match(leaf):
        leaf = f"{match[1]}.{PROJECTIONS[match[2]]}.{match[3]}"
    return leaf.replace("ffn.switch_mlp.", "ffn.experts.", 1) if leaf.startswith("ffn.switch_mlp.") else leaf


def mlx(name: str) -> str:
    """What mlx-vlm and mlx-lm call an official tensor (a bank by its official name without number).

    Drafter tensors keep their `mtp.{s}.` prefix, which both leave alone, with MLX's leaves behind it.
    """
    for plain, renamed in (
        ("embed.", "model.embed_tokens."),
        ("head.", "lm_head."),
        ("norm.", "model.norm."),
    ):
        if name.startswith(plain):
            return renamed + name.removeprefix(plain)
    if match := _OFFICIAL_HYPER_HEAD.match(name):
        return f"model.hc_head.{match[1]}"
    match = _BLOCK.match(name)
    if not match:
        return name
    stack, number, leaf = match.groups()
    if hyper := _OFFICIAL_HYPER.match(leaf):
        leaf = f"{hyper[1]}_hc.{hyper[2]}"
    elif head := _OFFICIAL_HYPER_HEAD.match(leaf):
        leaf = f"hc_head.{head[1]}"
    elif leaf == "ffn.gate.bias":
        leaf = "ffn.gate.e_score_correction_bias"
    elif expert := re.match(r"^ffn\.(shared_experts|experts)\.(w[123])\.(.+)$", leaf):
        module = "switch_mlp" if expert[1] == "experts" else expert[1]
        leaf = f"ffn.{module}.{_MLX_PROJECTIONS[expert[2]]}.{expert[3]}"
    return f"{'model.' if stack == 'layers' else ''}{stack}.{number}.{leaf}"
