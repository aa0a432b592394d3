"""An mlx-lm model as the engine needs it: loading and number formats, taps, logits of some rows, the head by itself.

mlx-lm's models are functions from tokens to logits of every row. What else is needed is had without naming an
architecture, by watching two kinds of its modules (a subclass with the same behaviour takes the module's class): each
layer hands its output, and the first its input, to whoever asked for taps; the trunk (the module that holds the layers
and ends with the final norm) can cut its output to the last row, so that the head works on that row alone, or give a
hidden state it was handed, so that the model's own head, with whatever scaling and capping belongs to it, is a function
of its own. Models are shared between engines: what was asked for is kept for each thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import mlx.nn
import structlog
from mlx_lm.models.switch_layers import QuantizedSwitchLinear, SwitchLinear
from mlx_lm.utils import load_model

from sparkwright.core.contracts import Forward, Logits, TargetFacts, TargetState
from sparkwright.core.errors import AssemblyError, ModelError
from sparkwright.plugins.targets.mlx_lm_state import State, make_caches, refuse_unknown

FLOATS = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
nn: Any = mlx.nn  # untyped
Progress = Callable[[str, int, int], None]

# --------------------------------------------------------------------------------------------------------------
# Watching a model
# --------------------------------------------------------------------------------------------------------------


class _EmbeddedError(Exception):
    """Not an error: the input of the first layer, on its way out of a forward that is not needed any further."""


class Watch(threading.local):
    """What the current forward of this thread is asked for, and what its taps have given.

    taps:  layers to record, -1 is the input of layer 0;  got: their outputs [1, r, d]
    last:  the trunk keeps its last row only;  hidden: the trunk gives this and computes nothing
    embed: stop where the first layer begins
    """

    taps: tuple[int, ...] = ()
    last: bool = False
    hidden: mx.array | None = None
    embed: bool = False

    def __init__(self) -> None:
        self.got: dict[int, mx.array] = {}

    @contextmanager
    def asked(self, **what: Any) -> Iterator[Watch]:
        self.got = {}
        for name, value in what.items():
            setattr(self, name, value)
        try:
            yield self
        finally:
            self.taps, self.last, self.hidden, self.embed, self.got = (), False, None, False, {}


def _watch_layer(layer: Any, index: int, watch: Watch) -> None:
    kind = type(layer)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if index == 0 and (watch.embed or -1 in watch.taps):
            entering = args[0] if args else next(iter(kwargs.values()))
            if watch.embed:
                raise _EmbeddedError(entering)
            watch.got[-1] = entering
        out = kind.__call__(self, *args, **kwargs)
        if index in watch.taps:
            watch.got[index] = out[0] if isinstance(out, tuple) else out
        return out

    layer.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _watch_trunk(trunk: Any, watch: Watch) -> None:
    kind = type(trunk)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.hidden is not None:
            return watch.hidden
        out = kind.__call__(self, *args, **kwargs)
        return out[:, -1:] if watch.last and isinstance(out, mx.array) and out.ndim == 3 else out

    trunk.__class__ = type(kind.__name__, (kind,), {"__call__": call})


def _find_trunk(model: Any) -> Any | None:
    """The module that holds the layers, unless that is the model itself."""
    first = model.layers[0]
    for _, module in model.named_modules():
        if module is not model and any(isinstance(v, list) and v and v[0] is first for v in module.values()):
            return module
    return None


# --------------------------------------------------------------------------------------------------------------
# Number formats
# --------------------------------------------------------------------------------------------------------------


def choose_dtype(asked: str, float32_bytes: int, device: str, memory: int) -> tuple[str, str]:
    """(what the weights are made into, why). "auto" follows what was measured: docs of `Options.dtype`."""
    if asked != "auto":
        return asked, "as configured"
    if device != "cpu":
        return "stored", "auto: off the CPU, weights are used as stored"
    if float32_bytes * 2 <= memory:
        return "float32", "auto: on the CPU float32 is the fastest, and the only form in which verifying rows is cheap"
    return "mixed", (
        f"auto: in float32 the weights would take {float32_bytes / 2**30:.1f} GiB, over half of this machine's "
        f"{memory / 2**30:.1f} GiB"
    )


def _is_quantised(module: Any) -> bool:
    return isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding | QuantizedSwitchLinear)


def _float32_bytes(model: Any) -> int:
    total = 0
    for _, module in model.named_modules():
        packed = _is_quantised(module)
        for name, value in module.items():
            if isinstance(value, mx.array) and not (packed and name in ("scales", "biases")):
                total += value.size * 4 * (32 // module.bits if packed and name == "weight" else 1)
    return total


def _dequantised(module: Any) -> Any:
    """The plain module of a quantised one, in float32; scales are widened first, so nothing is rounded."""
    scales, biases = module.scales, module.get("biases")
    if mx.issubdtype(scales.dtype, mx.floating):
        scales = scales.astype(mx.float32)
        biases = None if biases is None else biases.astype(mx.float32)
    weight = mx.dequantize(
        module.weight, scales, biases, group_size=module.group_size, bits=module.bits, mode=module.mode
    )
    plain: Any
    if isinstance(module, nn.QuantizedEmbedding):
        plain = nn.Embedding(1, 1)
    elif isinstance(module, nn.QuantizedLinear):
        plain = nn.Linear(1, 1, bias=False)
    else:
        plain = SwitchLinear(1, 1, 1, bias=False)
    plain.weight = weight.astype(mx.float32)
    if "bias" in module:
        plain.bias = module.bias
    return plain


def convert(model: Any, dtype: str, progress: Progress) -> None:
    """Brings the weights into memory in the form `dtype`, one module at a time, so that the peak stays near the end."""
    wanted = FLOATS.get("float32" if dtype == "mixed" else dtype)
    named = [(name, module) for name, module in model.named_modules() if name]
    for done, (name, module) in enumerate(named):
        if dtype == "float32" and _is_quantised(module):
            if getattr(module, "mode", "affine") != "affine" and "global_scale" in module:
                raise ModelError(f"tensor {name}: {module.mode} with a global scale cannot be dequantised; use mixed")
            module = _dequantised(module)
            parent: Any = model
            *path, last = name.split(".")
            for part in path:
                parent = parent[int(part)] if isinstance(parent, list) else parent[part]
            parent[int(last) if isinstance(parent, list) else last] = module
        if wanted is not None:
            own = {k: v for k, v in module.items() if isinstance(v, mx.array) and mx.issubdtype(v.dtype, mx.floating)}
            for key, value in own.items():
                module[key] = value.astype(wanted)
        mx.eval([v for v in module.values() if isinstance(v, mx.array)])
        progress("load", done + 1, len(named))
    mx.eval(model.parameters())


# --------------------------------------------------------------------------------------------------------------
# The model
# --------------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Model:
    """A loaded mlx-lm model. dtype: what its weights were made into; why: who decided that."""

    module: Any
    facts: TargetFacts
    dtype: str
    why: str
    trunk: Any | None
    watch: Watch

    @classmethod
    def load(cls, directory: Path, facts: TargetFacts, dtype: str, device: str, progress: Progress) -> Model:
        try:
            module, _ = load_model(directory, lazy=True)
            memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            chosen, why = choose_dtype(dtype, _float32_bytes(module), device, memory)
            convert(module, chosen, progress)
        except ModelError:
            raise
        except Exception as error:  # mlx-lm raises what its Python happens to raise for a config it cannot use
            text = " ".join(str(error).split())[:300]
            raise ModelError(
                f"{directory}: mlx-lm cannot load this {facts.model_type} model ({type(error).__name__}: {text})"
            ) from error
        if chosen == "mixed" and dtype == "auto":
            structlog.get_logger("sparkwright").warning("weights stay quantised", target="mlx_lm", reason=why)
        watch = Watch()
        for index, layer in enumerate(module.layers):
            _watch_layer(layer, index, watch)
        trunk = _find_trunk(module)
        if trunk is not None:
            _watch_trunk(trunk, watch)
        return cls(module, facts, chosen, why, trunk, watch)

    def check(self, taps: tuple[int, ...]) -> None:
        """Compares what a forward would give with the facts, without computing one; refuses caches by name."""
        state = self.new_state()
        refuse_unknown(state.caches, self.facts.model_type)
        if len(self.module.layers) != self.facts.layers:
            raise ModelError(
                f"target mlx_lm: the config says {self.facts.layers} layers and the model has {len(self.module.layers)}"
            )
        try:
            forward = self.forward(mx.zeros((2,), mx.int32), state, "all", taps)
        except (ValueError, RuntimeError, TypeError) as error:
            text = " ".join(str(error).split())[:300]
            raise ModelError(
                f"target mlx_lm: a forward of this {self.facts.model_type} model does not work out ({text}); "
                "its tensors do not fit together"
            ) from error
        refuse_unknown(state.caches, self.facts.model_type)
        assert forward.logits is not None
        if forward.logits.shape != (2, self.facts.vocab_size):
            raise ModelError(
                f"target mlx_lm: logits of two rows have shape {list(forward.logits.shape)}; the config's vocab_size "
                f"asks for [2, {self.facts.vocab_size}]"
            )
        expected = (2, len(taps) * self.facts.hidden)
        if forward.taps is not None and forward.taps.shape != expected:
            raise AssemblyError(
                f"target mlx_lm: taps {list(taps)} of two rows have shape {list(forward.taps.shape)}, expected "
                f"{list(expected)}: the layers of {self.facts.model_type} do not give one hidden state a row"
            )

    def new_state(self) -> State:
        return State(make_caches(self.module), self._forward_again)

    def forward(self, tokens: mx.array, state: TargetState, logits: Logits, taps: tuple[int, ...]) -> Forward:
        """See `sparkwright_target_forward`. With "none" the caches and taps are evaluated before it returns."""
        if not isinstance(state, State):
            raise TypeError(f"target mlx_lm: a state of {type(state).__name__}; states come from new_state")
        rows = int(tokens.shape[0])
        with self.watch.asked(taps=taps, last=logits == "last" and rows > 1) as watch:
            out = self.module(tokens[None], cache=state.caches)
            got = watch.got
        state.forwarded(tokens)
        tapped = None
        if taps:
            missing = [layer for layer in taps if layer not in got]
            if missing:
                raise AssemblyError(f"target mlx_lm: layers {missing} of {self.facts.model_type} gave no output")
            tapped = mx.concatenate([got[layer].reshape(rows, -1) for layer in taps], axis=-1)  # [r, taps * d]
        if logits == "none":
            mx.eval(state.arrays(), tapped)
            return Forward(None, tapped)
        wanted = 1 if logits == "last" else rows
        return Forward(out[0, -wanted:].astype(mx.float32), tapped)  # [wanted, V]

    def embed(self, tokens: mx.array) -> mx.array:
        """tokens [n] -> what enters the first layer, [n, d], scaled as the model scales it."""
        with self.watch.asked(embed=True):
            try:
                self.module(tokens[None], cache=make_caches(self.module))
            except _EmbeddedError as found:
                hidden: mx.array = found.args[0]
                return hidden[0]
        raise AssemblyError(f"target mlx_lm: {self.facts.model_type} computes no embedding before its first layer")

    def head(self, hidden: mx.array) -> mx.array:
        """hidden [n, d], as the final norm gives it -> logits [n, V] float32, by the model's own head."""
        if self.trunk is None:
            raise AssemblyError(f"target mlx_lm: the head of {self.facts.model_type} cannot be used by itself")
        with self.watch.asked(hidden=hidden[None]):
            logits = self.module(mx.zeros((1, hidden.shape[0]), mx.int32))
        return mx.array(logits[0].astype(mx.float32))

    def _forward_again(self, tokens: mx.array, state: State) -> None:
        self.forward(tokens, state, "last", ())
