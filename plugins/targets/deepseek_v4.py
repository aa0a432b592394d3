"""Target `deepseek_v4`: DeepSeek-V4 Flash, Pro and any config of the family, with the state its DSpark drafter needs.

What a checkpoint is comes from its config and headers alone (`describe`); the model itself is the family's code in
plugins/deepseek_v4. Relatives with another forward pass (V4.1, NextN previews, vision) are refused by name there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparkwright.core.contracts import (
    Forward,
    Logits,
    Provider,
    Resources,
    Settle,
    Site,
    TargetFacts,
    TargetState,
    Text,
    option,
)
from sparkwright.core.errors import AssemblyError, ModelError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.text import TokenizerText, eos_ids
from sparkwright.plugins.deepseek_v4.checkpoint import Checkpoint, open_checkpoint
from sparkwright.plugins.deepseek_v4.encoding import USER, encode_messages
from sparkwright.plugins.deepseek_v4.ops import OPS
from sparkwright.plugins.deepseek_v4.tools import TOOLS, claims, refuse_if_too_large

if TYPE_CHECKING:
    import mlx.core as mx

    from sparkwright.plugins.deepseek_v4.config import ModelConfig
    from sparkwright.plugins.deepseek_v4.linear import SharedWeights
    from sparkwright.plugins.deepseek_v4.model import Lent, Model
    from sparkwright.plugins.deepseek_v4.state import State

EXPAND = ("auto", "on", "off")


@attrs.frozen
class Options:
    """Options of the target `deepseek_v4`."""

    expand: str = option(
        "auto",
        "decode quantised weights to float32 while loading: on, off, or auto (on the CPU, whose packed matmul is slow, "
        "if half of the memory suffices; elsewhere off)",
        attrs.validators.in_(EXPAND),
    )
    thinking: bool = option(
        False, "let the model think before it answers a conversation", attrs.validators.instance_of(bool)
    )


def describe(options: Options, site: Site) -> TargetFacts:
    """ModelError for a checkpoint that is damaged, incomplete, of a relative, or only a drafter."""
    checkpoint = _open(site)
    config = checkpoint.config
    return TargetFacts(
        vocab_size=config.vocab_size,
        context=config.context,
        hidden=config.hidden,
        layers=config.layers,
        eos=eos_ids(checkpoint.path) or config.eos,
        model_type="deepseek_v4",
        rollback="by length: caches are addressed by position",
        row_exact=True,
        weight_bytes=sum(one.nbytes for name, one in checkpoint.stored.items() if not name.startswith("mtp.")),
        fingerprint=checkpoint.fingerprint,
        drafter="dspark" if checkpoint.stages else "",
        turns=_turns(config),
    )


def _turns(config: ModelConfig) -> tuple[int, ...]:
    """Where a window is full, windows of each ratio close, and the indexer begins to choose."""
    chooses = [4 * (config.index_topk + 1)] if 4 in config.ratios else []
    return tuple(sorted({config.window, *(n * ratio for ratio in config.ratios if ratio for n in (1, 2)), *chooses}))


def _open(site: Site) -> Checkpoint:
    if site.model is None:
        raise ModelError("target deepseek_v4: no model was named; give --model PATH, or `model` in the [target] table")
    checkpoint = open_checkpoint(Path(site.model).expanduser())
    if checkpoint.variant == "drafter only":
        raise ModelError(
            f"{checkpoint.path}: holds a drafter without its target; name the target's directory as the model"
        )
    return checkpoint


@attrs.frozen(eq=False)
class FamilyText(Text):
    """The checkpoint's tokenizer, with the family's own conversation format (plugins/deepseek_v4/encoding.py)."""

    tokens: TokenizerText
    thinking: bool

    @property
    def has_chat(self) -> bool:
        return self.tokens.tokenizer.token_to_id(USER) is not None  # a model of plain text knows no turns

    def encode(self, text: str) -> list[int]:
        return self.tokens.encode(text)

    def encode_part(self, text: str) -> list[int]:
        return self.tokens.encode_part(text)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        return self.tokens.encode(encode_messages(messages, self.thinking))  # which begins with its own BOS

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokens.decode(ids)


@attrs.define(eq=False)
class DeepSeekV4:
    """A loaded target. `lent` is what the drafter's build finds as `site.resources.checkpoint`."""

    model: Model
    text: Text
    lent: Lent
    progress: Callable[[str, int, int], None]

    @hookimpl
    def sparkwright_target_new_state(self) -> TargetState:
        return self.model.new_state()

    @hookimpl
    def sparkwright_target_forward(self, tokens: mx.array, state: State, logits: Logits) -> Forward:
        return self.model.forward(tokens, state, logits)

    @hookimpl
    def sparkwright_target_resources(self) -> Resources:
        return Resources(embed=self.model.embed, head=self.model.head, checkpoint=self.lent)

    @hookimpl
    def sparkwright_target_text(self) -> Text:
        return self.text

    @hookimpl
    def sparkwright_target_reference(self, tokens: Sequence[int], settle: Settle) -> Any:
        """From the files again, not from the arrays that the model holds: how it was loaded is compared too."""
        import numpy as np

        from sparkwright.plugins.deepseek_v4 import definition
        from sparkwright.plugins.deepseek_v4.weights import Numbers

        assert self.lent.checkpoint is not None
        numbers, sizes = Numbers(self.lent.checkpoint), definition.Sizes.of(self.lent.config)

        def progress(done: int, layers: int) -> None:
            self.progress("reference layers", done, layers)

        return definition.forward(np.array(tokens), numbers, sizes, settle=settle, progress=progress)[0]


def build(options: Options, site: Site) -> DeepSeekV4:
    """ModelError for what cannot be loaded, AssemblyError for unknown taps or rows that `row_exact` cannot promise."""
    checkpoint = _open(site)
    config = checkpoint.config
    wrong = [layer for layer in site.taps if not -1 <= layer < config.layers]
    if wrong:
        raise AssemblyError(
            f"target deepseek_v4: asked for the outputs of layers {wrong}; {site.model} has layers "
            f"0..{config.layers - 1} (-1 is the embedding)"
        )
    text = FamilyText(TokenizerText.load(checkpoint.path), options.thinking)  # the cheaper thing to be wrong: first

    from sparkwright.plugins.deepseek_v4.exact import probe_rows
    from sparkwright.plugins.deepseek_v4.kernels import select_reference
    from sparkwright.plugins.deepseek_v4.linear import SharedWeights
    from sparkwright.plugins.deepseek_v4.model import Lent, Model
    from sparkwright.plugins.deepseek_v4.weights import CheckpointWeights, should_expand

    expand = should_expand(options.expand, checkpoint, site.device)
    _refuse_half_experts(checkpoint, site.device, expand)
    refuse_if_too_large(checkpoint, site.device, expand, site.force)
    total = sum(one.nbytes for name, one in checkpoint.stored.items() if not name.startswith("mtp."))

    def load() -> SharedWeights:
        told = CheckpointWeights(
            checkpoint, expand, site.device, lambda done: site.progress("load", min(done, total), total)
        )
        return SharedWeights(told)

    key = ("deepseek_v4", str(checkpoint.path.resolve()), checkpoint.fingerprint, expand, site.device)
    weights: SharedWeights = site.store(key, load) if site.store is not None else load()
    model = Model.build(config, weights, site.select or select_reference, tuple(site.taps), site.row_exact)
    if site.row_exact:
        probe_rows(model)
    return DeepSeekV4(model, text, Lent(checkpoint, config, weights), site.progress)


def _refuse_half_experts(checkpoint: Checkpoint, device: str, expand: bool) -> None:
    """MLX's `gather_mm` is float32-only on the CPU; packed experts are fine there."""
    if device != "cpu" or expand:
        return
    for name, one in checkpoint.stored.items():
        if one.parameter.kind == "bank" and one.form is not None and one.form.name in ("bfloat16", "float16"):
            raise ModelError(
                f"{checkpoint.path}: '{name}' is stored in {one.form.name}, which MLX cannot multiply on the CPU; set "
                "target.deepseek_v4.expand = 'on', or convert with `sparkwright models convert --experts mxfp4`"
            )


def bundled() -> Path | None:
    """The small trained model of docs/demo-model.md; None where the weights were left out of an installation."""
    folder = Path(__file__).parents[1] / "demo" / "model"
    return folder if (folder / "model.safetensors").is_file() else None


def recognises(path: Path) -> int:
    return 2 if claims(path) else 0


@hookimpl
def sparkwright_register_targets() -> Iterable[Provider]:
    return [
        Provider(
            kind="target",
            name="deepseek_v4",
            summary="DeepSeek-V4 Flash, Pro and relatives of the same form",
            build=build,
            describe=describe,
            options=Options,
            ops=OPS,
            tools=TOOLS,
            recognises=recognises,
            bundled=bundled,
        )
    ]
