"""DSpark: a block drafter with a Markov chain and a confidence head. This module is its Providers, and imports no MLX.

`v4` computes the V4-native form (three family blocks over projected taps), `dense` the one for Qwen3-style targets
(`dense_config` and `dense_weights` read its two packagings), `markov` the chain of draws, `shape` the draft's own
temperature and filters. What a checkpoint is comes from its config and headers (`describe`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from sparkwright.core.contracts import Draft, DrafterFacts, OpSpec, Provider, Site, option
from sparkwright.core.errors import AssemblyError, ModelError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.plugins.deepseek_v4.checkpoint import Checkpoint, open_checkpoint
from sparkwright.plugins.deepseek_v4.ops import OPS
from sparkwright.plugins.drafters.dspark.dense_config import DenseConfig, is_dense, read_config

if TYPE_CHECKING:
    import mlx.core as mx

    from sparkwright.plugins.drafters.dspark.dense import DenseDrafter
    from sparkwright.plugins.drafters.dspark.v4 import V4Drafter

MARKOV_CHAIN = OpSpec(
    "markov_chain",
    "sparkwright.plugins.drafters.dspark.markov:markov_chain",
    "a block's draws one after another: Markov bias, confidence, draw",
)


def _temperature(instance: Any, attribute: Any, value: Any) -> None:
    if value == "match" or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 100):
        return
    raise ValueError(f"'{attribute.name}' is {value!r}, expected \"match\" or a number from 0 on")


@attrs.frozen
class Options:
    """Options of the drafter `dspark`."""

    temperature: str | float = option(
        "match",
        'of the drafts: "match" takes the request\'s temperature and filters, a number is its own',
        _temperature,
    )
    top_k: int = option(0, "own top-k of the drafts, 0 for none; only with a temperature of its own",
                        attrs.validators.ge(0))  # fmt: skip
    top_p: float = option(1.0, "own top-p of the drafts; only with a temperature of its own",
                          attrs.validators.and_(attrs.validators.gt(0.0), attrs.validators.le(1.0)))  # fmt: skip
    proposal: str = option(
        "dense", "dense: drafts are drawn, and verified against what they were drawn from; point: the likeliest token",
        attrs.validators.in_(("dense", "point")),
    )  # fmt: skip


def _open(site: Site) -> Checkpoint:
    if site.model is None:
        raise ModelError("drafter dspark: no model was named, and its target has none; set drafter.model")
    return open_checkpoint(Path(site.model).expanduser())


def describe(options: Options, site: Site) -> DrafterFacts:
    """ModelError for a checkpoint without a DSpark drafter, AssemblyError for one that does not fit the target."""
    if options.temperature == "match" and (options.top_k or options.top_p < 1.0):
        raise AssemblyError(
            "drafter dspark: top_k and top_p are set and temperature is 'match', which takes the request's filters; "
            "give the drafts a temperature of their own, or drop top_k and top_p"
        )
    if site.model is not None and is_dense(Path(site.model).expanduser()):
        return _describe_dense(options, read_config(Path(site.model).expanduser()), site)
    checkpoint = _open(site)
    config, spark = checkpoint.config, checkpoint.config.dspark
    if not checkpoint.stages or spark is None:
        raise ModelError(
            f"{checkpoint.path}: holds no DSpark drafter (no 'mtp.*' tensors); use a DSpark release such as "
            "DeepSeek-V4-Flash-0731, set drafter.model to a folder that holds one, or drafter.use = 'lookup'"
        )
    target = site.target
    if target is not None:
        for what, ours, theirs in (
            ("model_type", "deepseek_v4", target.model_type),
            ("hidden size", config.hidden, target.hidden),
            ("number of layers", config.layers, target.layers),
        ):
            if ours != theirs:
                raise AssemblyError(
                    f"drafter dspark ({checkpoint.path}) is made for a target with {what} {ours}, and this target's "
                    f"{what} is {theirs}; a drafter must be made for its target"
                )
    return DrafterFacts(
        block=spark.block_size,
        proposal="dense" if options.proposal == "dense" else "point",
        vocab_size=config.vocab_size,
        taps=spark.target_layer_ids,
        confidence=f"mtp.{checkpoint.stages - 1}.confidence_head.proj" in checkpoint.stored,
        context=config.context,
        target_noise=options.proposal == "dense",
    )


def _describe_dense(options: Options, config: DenseConfig, site: Site) -> DrafterFacts:
    target = site.target
    if target is not None:
        layers = config.target_layers or target.layers
        for what, ours, theirs in (
            ("hidden size", config.hidden, target.hidden),
            ("number of layers", layers, target.layers),
        ):
            if ours != theirs:
                raise AssemblyError(
                    f"drafter dspark ({site.model}) is made for a target with {what} {ours}, and this target's {what} "
                    f"is {theirs}; a drafter must be made for its target"
                )
    if target is not None and config.lent and max(config.taps) == target.layers - 1:
        raise AssemblyError(
            f"drafter dspark ({site.model}): 'aux_hidden_state_layer_ids' holds {target.layers}, after which this "
            f"target of {target.layers} layers ends; whether that is its last layer's output or the normed one "
            "differs between what wrote such files, so it is not supported"
        )
    return DrafterFacts(
        block=config.block,
        proposal="dense" if options.proposal == "dense" else "point",
        vocab_size=config.vocab_size,
        taps=config.taps,
        confidence=config.confidence,
        context=config.context,
        target_noise=options.proposal == "dense",
    )


@attrs.define(eq=False)
class DSpark:
    """A loaded drafter behind its hooks."""

    drafter: V4Drafter | DenseDrafter
    options: Options

    @hookimpl
    def sparkwright_drafter_start(self, prompt: Sequence[int], shape: Callable[[mx.array], mx.array]) -> Any:
        from sparkwright.plugins.drafters.dspark.shape import always_one, own_shape

        if self.options.temperature != "match":
            shape = own_shape(float(self.options.temperature), self.options.top_k, self.options.top_p)
        drawn = self.options.proposal == "dense"
        # Noise for every slot over the whole vocabulary is dear; nothing is drawn where one token has all the mass.
        return self.drafter.new_state(shape, drawn, drawn and not always_one(shape, self.drafter.vocab_size))

    @hookimpl
    def sparkwright_drafter_draft(self, state: Any, anchor: int, limit: int, keys: mx.array) -> Draft:
        return self.drafter.draft(state, anchor, limit, keys)

    @hookimpl
    def sparkwright_drafter_observe(self, state: Any, tokens: Sequence[int], taps: mx.array | None) -> None:
        if taps is None or taps.shape[0] != len(tokens):
            found = "none" if taps is None else str(taps.shape[0])
            raise AssemblyError(f"drafter dspark: {len(tokens)} positions were observed with {found} tap rows")
        self.drafter.observe(state, taps)


def build(options: Options, site: Site) -> DSpark:
    """ModelError for what cannot be loaded; AssemblyError where the target lends nothing to draft with."""
    if site.model is not None and is_dense(Path(site.model).expanduser()):
        return _build_dense(options, Path(site.model).expanduser(), site)
    from sparkwright.plugins.deepseek_v4.kernels import select_reference
    from sparkwright.plugins.deepseek_v4.linear import SharedWeights, Weights
    from sparkwright.plugins.deepseek_v4.model import Lent
    from sparkwright.plugins.deepseek_v4.weights import CheckpointWeights, should_expand
    from sparkwright.plugins.drafters.dspark.v4 import V4Drafter

    checkpoint, resources = _open(site), site.resources
    if resources is None or not isinstance(resources.checkpoint, Lent):
        raise AssemblyError(
            "drafter dspark (V4-native) shares its target's embedding and head, and this target lends no DeepSeek-V4 "
            "checkpoint; use target 'deepseek_v4'"
        )
    lent = resources.checkpoint
    spark = checkpoint.config.dspark
    assert spark is not None  # describe has refused it
    temperatures = _temperatures(site, spark.block_size)
    weights: Weights
    if lent.checkpoint is None or lent.checkpoint.path.resolve() == checkpoint.path.resolve():
        weights = lent.weights
    else:
        expand = should_expand("auto", checkpoint, site.device)
        total = sum(one.nbytes for name, one in checkpoint.stored.items() if name.startswith("mtp."))

        def load() -> SharedWeights:
            return SharedWeights(
                CheckpointWeights(
                    checkpoint, expand, site.device, lambda done: site.progress("load drafter", min(done, total), total)
                )
            )

        key = ("dspark", str(checkpoint.path.resolve()), checkpoint.fingerprint, expand, site.device)
        weights = site.store(key, load) if site.store is not None else load()
    confident = f"mtp.{checkpoint.stages - 1}.confidence_head.proj" in checkpoint.stored
    drafter = V4Drafter.build(
        checkpoint.config,
        weights,
        embed=resources.embed,
        head=resources.head,
        select=site.select or select_reference,
        temperatures=temperatures,
        confident=confident,
    )
    return DSpark(drafter, options)


def _build_dense(options: Options, path: Path, site: Site) -> DSpark:
    from sparkwright.plugins.deepseek_v4.kernels import select_reference
    from sparkwright.plugins.drafters.dspark.dense import DenseDrafter
    from sparkwright.plugins.drafters.dspark.dense_weights import load

    config = read_config(path)
    temperatures = _temperatures(site, config.block)
    key = ("dspark", str(path.resolve()), site.device)

    def read() -> dict[str, mx.array]:
        return load(path, config, site.device)

    weights: dict[str, mx.array] = site.store(key, read) if site.store is not None else read()
    select = site.select or select_reference
    return DSpark(DenseDrafter.build(config, weights, select, temperatures, site.resources), options)


def _temperatures(site: Site, block: int) -> tuple[float, ...]:
    temperatures = site.costs.temperatures if site.costs is not None else ()
    if temperatures and len(temperatures) != block:
        raise AssemblyError(
            f"drafter dspark drafts blocks of {block} and the calibration has {len(temperatures)} temperatures; run "
            "`sparkwright calibrate` again for this drafter"
        )
    return temperatures


@hookimpl
def sparkwright_register_drafters() -> list[Provider]:
    return [
        Provider(
            kind="drafter",
            name="dspark",
            summary="DeepSeek's block drafter: three stages over the target's taps, Markov chain, confidences",
            build=build,
            describe=describe,
            options=Options,
            ops=(*OPS, MARKOV_CHAIN),
        )
    ]
