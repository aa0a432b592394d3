"""`audit_identity`: is speculative text the text of plain decoding with the same seed?

Runs each prompt and seed twice, plainly and as configured, and looks at every first divergence: what decided between the
two tokens, by what margin, and whether rounding explains it. Rounding is measured on the spot: the position's logits
are computed once row by row and once in one block, and a margin of at most twice the largest difference between the
two is a tie. For verifiers that promise `law` the texts are expected to differ; they are refused, their audit is `law`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from sparkwright.core.assembly import assemble
from sparkwright.core.config import Config, load_config
from sparkwright.core.contracts import Promise
from sparkwright.core.engine import Parts
from sparkwright.core.errors import RequestError
from sparkwright.core.randomness import Keys, gumbel
from sparkwright.core.store import WeightStore


@attrs.frozen
class Divergence:
    """Where two texts part. `margin`: by how much the plain token led the other one in the deciding score (log p,
    perturbed by the position's noise when sampling); `rounding`: largest difference between the row's logits computed
    alone and in a block."""

    prompt: int
    seed: int
    index: int
    position: int
    plain: int
    speculative: int
    margin: float
    rounding: float

    @property
    def tie(self) -> bool:
        return self.margin <= 2 * self.rounding


@attrs.frozen
class IdentityResult:
    promise: Promise
    config_sha256: str
    texts: int
    identical: int
    tokens: int
    matching_tokens: int
    submitted: int
    divergences: tuple[Divergence, ...]

    @property
    def passed(self) -> bool:
        allowed = self.promise == "identity-up-to-ties"
        return self.submitted > 0 and all(allowed and d.tie for d in self.divergences)

    @property
    def meaning(self) -> str:
        if self.submitted == 0:
            return "No draft was ever submitted, so nothing was compared: choose other prompts or another scheduler."
        if self.passed:
            return (
                f"On these {self.texts} texts speculation changed nothing beyond rounding; it says nothing about texts "
                "that were not run."
            )
        return "Speculation changed a text by more than rounding explains: the promise is broken."

    def to_dict(self) -> dict[str, Any]:
        data = attrs.asdict(self)
        data["divergences"] = [attrs.asdict(d) | {"tie": d.tie} for d in self.divergences]
        return data | {"passed": self.passed, "meaning": self.meaning}


def audit_identity(
    config: Config,
    prompts: Sequence[str],
    *,
    seeds: Sequence[int] = (0,),
    max_tokens: int = 64,
    progress: Callable[[str, int, int], None] | None = None,
) -> IdentityResult:
    """Compare plain and configured text for every prompt and seed. RequestError for a promise of `law` or `lossy`."""
    store = WeightStore()
    plain_config = _without_drafter(config)
    tell = progress or (lambda what, done, total: None)
    with assemble(config, store=store, progress=progress) as engine, assemble(plain_config, store=store) as plain:
        if engine.promise not in ("identity", "identity-up-to-ties"):
            raise RequestError(
                f"verifier '{engine.slots['verifier'].effective}' promises '{engine.promise}', not the tokens of plain "
                "decoding: its audit is `audit law`"
            )
        cases = [(p, seed) for p in range(len(prompts)) for seed in seeds]
        identical = tokens = matching = submitted = 0
        divergences = []
        for done, (p, seed) in enumerate(cases):
            ask = {"max_tokens": max_tokens, "seed": seed, "ignore_eos": True}
            ours, theirs = engine.complete(prompts[p], **ask), plain.complete(prompts[p], **ask)
            submitted += ours.stats.submitted
            same = next((i for i, (a, b) in enumerate(zip(ours.tokens, theirs.tokens, strict=True)) if a != b), None)
            tokens += len(theirs.tokens)
            matching += len(theirs.tokens) if same is None else same
            identical += same is None
            if same is not None:
                prompt_tokens = plain.target.text.encode(prompts[p])
                pair = (theirs.tokens[same], ours.tokens[same])
                divergences.append(
                    plain.run(lambda parts: _explain(parts, p, seed, prompt_tokens, theirs.tokens[:same], pair))  # noqa: B023
                )
            tell("identity", done + 1, len(cases))
        return IdentityResult(
            engine.promise, engine.config_sha256, len(cases), identical, tokens, matching, submitted, tuple(divergences)
        )


def _without_drafter(config: Config) -> Config:
    """The same configuration with `drafter.use = "none"`."""
    tree: dict[str, Any] = {}
    for key, value in config.values.items():
        if value.origin == "default" or value.value is None or key == "drafter.use":
            continue
        table = tree
        *path, name = key.split(".")
        for part in path:
            table = table.setdefault(part, {})
        table[name] = list(value.value) if isinstance(value.value, tuple) else value.value
    tree["drafter"] = {**tree.get("drafter", {}), "use": "none"}
    return load_config(tree, environ={}, catalogue=config.catalogue)


def _explain(
    parts: Parts, prompt: int, seed: int, prefix: list[int], text: Sequence[int], pair: tuple[int, int]
) -> Divergence:
    """Score both tokens of `pair` after prefix + text, with the logits of a lone row, and measure what rounding does."""
    import mlx.core as mx

    position = len(prefix) + len(text)
    lone = _last_logits(parts, [*prefix, *text], block=1)
    block = _last_logits(parts, [*prefix, *text], block=min(4, position - 1))
    rounding = float(mx.max(mx.abs(lone - block)).item())
    sampler = parts.sampler
    state = sampler.start(tuple(prefix))
    for token in text:
        state = sampler.advance(state, (token,))
    p = sampler.distribution(lone, sampler.rows(state, mx.zeros((0,), dtype=mx.int32)), True)
    score = lone[0]
    if p.mode is None:
        score = p.log_p[0] + gumbel(Keys(seed, 0, position - 1).array("target", 1), p.log_p.shape[-1])[0]
    margin = float((score[pair[0]] - score[pair[1]]).item())  # type: ignore[arg-type]
    return Divergence(prompt, seed, len(text), position, *pair, margin, rounding)


def _last_logits(parts: Parts, tokens: list[int], block: int) -> Any:
    """float32 [1, V] after `tokens`, whose last `block` tokens are forwarded together."""
    import mlx.core as mx

    state = parts.target.new_state()
    cut = max(0, len(tokens) - block)
    if cut:
        parts.target.forward(mx.array(tokens[:cut], dtype=mx.int32), state, "none")
    logits = parts.target.forward(mx.array(tokens[cut:], dtype=mx.int32), state, "last").logits
    assert logits is not None
    mx.eval(logits)
    return logits
