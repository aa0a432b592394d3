"""The `chain` sampler: penalties, logit bias, temperature, top-k, top-p and min-p, in a declared order.

`order = "default"` is the order of that list, each step on the float32-normalised result of the one before. `order =
"mlx_lm"` is mlx-lm's: bias, penalties over the last `penalty_window` tokens, then top-p, min-p and top-k on the
untempered log-probabilities, and the temperature last. A temperature of at most 1e-5 is greedy: the largest logit
after penalties and bias, the lower id on a tie. Filters keep ties. The arithmetic is in `filters`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs

from sparkwright.core.contracts import Distribution, Provider, SamplerFacts, Site, option
from sparkwright.core.errors import ConfigError
from sparkwright.core.hookspecs import hookimpl

if TYPE_CHECKING:
    import mlx.core as mx

    from sparkwright.plugins.samplers.filters import Counts, Filters
    from sparkwright.plugins.samplers.past import Past

GREEDY_BELOW = 1e-5
"""Temperatures up to this are greedy: dividing by less only turns logits into infinities."""

MLX_LM_WINDOW = 20
"""mlx-lm's penalty window when none is given."""


def _number(low: float, high: float, hint: str, open_low: bool = False) -> Callable[[Any, Any, Any], None]:
    """A validator for a finite number between bounds, whose message says what to write instead."""

    def check(instance: Any, attribute: Any, value: Any) -> None:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not fits or value > high or value < low or (open_low and value == low):
            left = "(" if open_low or math.isinf(low) else "["
            right = f"{high:g}]" if math.isfinite(high) else "inf)"
            raise ValueError(
                f"{attribute.name} must be a number in {left}{low:g}, {right}, not {value!r}; {hint}"
            )

    return check


def _count(hint: str) -> Callable[[Any, Any, Any], None]:
    def check(instance: Any, attribute: Any, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{attribute.name} must be a whole number of at least 0, not {value!r}; {hint}")

    return check


def _window(instance: Any, attribute: Any, value: Any) -> None:
    if value is not None:
        _count("0 looks at every token")(instance, attribute, value)


def _order(instance: Any, attribute: Any, value: Any) -> None:
    if value not in ("default", "mlx_lm"):
        raise ValueError(f'order must be "default" or "mlx_lm", not {value!r}')


def _bias(instance: Any, attribute: Any, value: Any) -> None:
    for token, amount in value.items():
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise ValueError(
                f"logit_bias must map token ids (0 or more) to numbers; {token!r} is not a token id"
            )
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not math.isfinite(amount):
            raise ValueError(f"logit_bias of token {token} must be a finite number, not {amount!r}")


@attrs.frozen
class ChainOptions:
    temperature: float = option(
        1.0,
        f"divides the logits; {GREEDY_BELOW:g} and below is greedy",
        _number(0.0, math.inf, "0 is greedy"),
    )
    top_k: int = option(0, "keep this many of the largest, and ties; 0 keeps all", _count("0 keeps all"))
    top_p: float = option(
        1.0,
        "keep the smallest set with this mass, and ties; 1 keeps all",
        _number(0.0, 1.0, "1 keeps all", open_low=True),
    )
    min_p: float = option(
        0.0,
        "keep what has this share of the largest probability; 0 keeps all",
        _number(0.0, 1.0, "0 keeps all"),
    )
    repetition_penalty: float = option(
        1.0,
        "divides positive and multiplies negative logits of tokens in the prompt or text; 1 is off",
        _number(0.0, math.inf, "1 is off", open_low=True),
    )
    presence_penalty: float = option(
        0.0,
        "subtracted from the logits of tokens that occur in the text; 0 is off",
        _number(-math.inf, math.inf, "0 is off"),
    )
    frequency_penalty: float = option(
        0.0,
        "subtracted once for each occurrence in the text; 0 is off",
        _number(-math.inf, math.inf, "0 is off"),
    )
    penalty_window: int | None = option(
        None,
        f"how many of the last tokens the penalties look at, prompt included; 0 is all. Unset: all, or {MLX_LM_WINDOW} "
        'with order = "mlx_lm", where presence and frequency count the prompt too',
        _window,
    )
    logit_bias: dict[int, float] = option({}, "added to the logits of these token ids", _bias)  # noqa: RUF009
    order: Literal["default", "mlx_lm"] = option(
        "default", '"default": penalties, bias, temperature, top-k, top-p, min-p; "mlx_lm": as mlx-lm', _order
    )

    @property
    def greedy(self) -> bool:
        return self.temperature <= GREEDY_BELOW

    @property
    def penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@attrs.define(eq=False)
class Chain:
    """State is a `past.Past`, or None without penalties. Hook methods take leading batch axes in drafts and logits."""

    leading_axes = True
    options: ChainOptions
    filters: Filters
    bias: tuple[mx.array, mx.array] | None

    @hookimpl
    def sparkwright_sampler_start(self, prompt: Sequence[int]) -> Past | None:
        from sparkwright.plugins.samplers.past import Past

        if not self.options.penalties:
            return None
        mlx_lm = self.options.order == "mlx_lm"
        window = self.options.penalty_window
        if window is None:
            window = MLX_LM_WINDOW if mlx_lm else 0
        return Past.of_prompt(prompt, window, prompt_in_text=mlx_lm)

    @hookimpl
    def sparkwright_sampler_rows(self, state: Past | None, drafts: mx.array) -> Counts | None:
        return None if state is None else state.rows(drafts)

    @hookimpl
    def sparkwright_sampler_distribution(
        self, logits: mx.array, context: Counts | None, full: bool
    ) -> Distribution:
        import mlx.core as mx

        from sparkwright.plugins.samplers import filters

        x = logits.astype(mx.float32)
        bad = filters.non_finite(x)
        if self.bias is not None and self.filters.mlx_lm:
            x = filters.add_bias(x, *self.bias)
        if context is not None:
            o = self.options
            x = filters.penalise(x, context, o.repetition_penalty, o.presence_penalty, o.frequency_penalty)
        if self.bias is not None and not self.filters.mlx_lm:
            x = filters.add_bias(x, *self.bias)
        if self.options.greedy:
            mode = filters.first_largest(x)
            return Distribution(
                filters.one_hot(mode, x.shape[-1]), filters.flags(bad, mx.zeros_like(bad)), mode
            )
        log_p, short = self.filters(x, full)
        return Distribution(log_p, filters.flags(bad, short))

    @hookimpl
    def sparkwright_sampler_advance(self, state: Past | None, tokens: Sequence[int]) -> Past | None:
        return None if state is None else state.then(tokens)

    @hookimpl
    def sparkwright_sampler_shape(self, logits: mx.array) -> mx.array:
        import mlx.core as mx

        from sparkwright.plugins.samplers import filters

        if self.options.greedy:
            return filters.one_hot(filters.first_largest(logits), logits.shape[-1])
        # A proposal need not equal p: a nucleus wider than the shortcut sees is drafted from what it does see.
        return self.filters(logits.astype(mx.float32), False)[0]


def build(options: ChainOptions, site: Site) -> Chain:
    import mlx.core as mx

    from sparkwright.plugins.samplers.filters import Filters

    _check(options, site)
    bias = None
    if options.logit_bias:
        ids = mx.array(list(options.logit_bias), dtype=mx.int32)
        bias = (ids, mx.array(list(options.logit_bias.values()), dtype=mx.float32))
    shape = Filters(
        options.temperature, options.top_k, options.top_p, options.min_p, options.order == "mlx_lm"
    )
    return Chain(options, shape, bias)


def describe(options: ChainOptions, site: Site) -> SamplerFacts:
    _check(options, site)
    return SamplerFacts(deterministic=options.greedy)


def _check(options: ChainOptions, site: Site) -> None:
    """The one thing that options alone cannot say: whether biased tokens exist."""
    if site.target is None:
        return
    outside = [token for token in options.logit_bias if token >= site.target.vocab_size]
    if outside:
        raise ConfigError(
            f"sampler.chain.logit_bias names token {outside[0]}, but the target's vocabulary has "
            f"{site.target.vocab_size} tokens; use ids below that"
        )


@hookimpl
def sparkwright_register_samplers() -> list[Provider]:
    return [
        Provider(
            kind="sampler",
            name="chain",
            summary="penalties, bias, temperature, top-k, top-p, min-p",
            build=build,
            describe=describe,
            options=ChainOptions,
        )
    ]
