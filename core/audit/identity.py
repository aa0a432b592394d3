"""`audit_identity`: is speculative text the text of plain decoding with the same seed?

Runs each prompt and seed twice, plainly and as configured, and looks at every first divergence: what decided between
the two tokens, by what margin, and whether rounding explains it. Rounding is measured on the spot: the text up to there
is forwarded row by row and again in blocks, and a margin of at most twice the difference between the two is a tie, if
that difference is of the size that rounding has or follows from a near tie in a choice (an expert, a compressed row).
Other rows attended to without a tie are a fault, whatever the margin. For verifiers that promise `law` the texts are
expected to differ; they are refused, their audit is `law`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from sparkwright.core.assembly import assemble
from sparkwright.core.audit.watch import Row, Watch, calls_of, differences
from sparkwright.core.config import Config, load_config
from sparkwright.core.contracts import Promise
from sparkwright.core.engine import Parts
from sparkwright.core.errors import RequestError
from sparkwright.core.randomness import Keys, gumbel
from sparkwright.core.roles import Target
from sparkwright.core.store import WeightStore

LEAST_DRAFTS = 8
"""Drafts that must have been submitted for equal texts to say anything."""
BLOCK = 4
"""Rows of the blocks that a text is run in again to see what rounding does."""


@attrs.frozen
class Divergence:
    """Where two texts part.

    margin:   by how much the plain token led the other one in the deciding score (logit, or log p perturbed by the
              position's noise when sampling)
    rounding: largest difference between the row's logits after rows of one and after blocks; usual: what rounding
              alone may give them, in this model
    choice:   the first choice of an op in which the two part, "" for none; tied: whether scores near a tie explain it
    """

    prompt: int
    seed: int
    index: int
    position: int
    plain: int
    speculative: int
    margin: float
    rounding: float
    usual: float
    choice: str = ""
    tied: bool = False

    @property
    def tie(self) -> bool:
        explained = self.tied if self.choice else self.rounding <= self.usual
        return explained and abs(self.margin) <= 2 * self.rounding

    def __str__(self) -> str:
        what = "a near tie" if self.tie else "NOT a tie"
        choice = f"; {self.choice} differs{' by a near tie' if self.tied else ''}" if self.choice else ""
        return (
            f"prompt {self.prompt}, seed {self.seed}: token {self.index} (position {self.position}) is "
            f"{self.speculative}, plainly {self.plain}, which led by {self.margin:.3g} where blocks change logits by "
            f"{self.rounding:.3g}{choice}: {what}"
        )


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
        return not self.broken and not self.undecided

    @property
    def broken(self) -> bool:
        """Whether a text parts from plain decoding's in a way that the promise does not allow."""
        allowed = self.promise == "identity-up-to-ties"
        return not all(allowed and d.tie for d in self.divergences)

    @property
    def undecided(self) -> bool:
        """Nothing was found, and too little was drafted for it to be."""
        return not self.broken and self.submitted < LEAST_DRAFTS

    @property
    def meaning(self) -> str:
        if self.undecided:
            found = "No draft was ever submitted, so nothing was compared" if self.submitted == 0 else (
                f"Only {self.submitted} drafts were submitted, which is too little to say anything (at least "
                f"{LEAST_DRAFTS} are needed)"
            )  # fmt: skip
            return f"{found}: choose other or longer prompts, more tokens or seeds, or another scheduler."
        if self.passed:
            return (
                f"On these {self.texts} texts speculation changed nothing beyond rounding; it says nothing about texts "
                "that were not run."
            )
        return "Speculation changed a text by more than rounding explains: the promise is broken."

    def to_dict(self) -> dict[str, Any]:
        data = attrs.asdict(self)
        data["divergences"] = [attrs.asdict(d) | {"tie": d.tie} for d in self.divergences]
        return data | {"passed": self.passed, "undecided": self.undecided, "meaning": self.meaning}


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
    plain_config = without_drafter(config)
    tell = progress or (lambda what, done, total: None)
    watch = Watch()
    with (
        assemble(config, store=store, progress=progress) as engine,
        assemble(plain_config, store=store, wrap_op=watch.wrap) as plain,
    ):
        if engine.promise not in ("identity", "identity-up-to-ties"):
            raise RequestError(
                f"verifier '{engine.slots['verifier'].effective}' promises '{engine.promise}', not the tokens of plain "
                "decoding: its audit is `audit law`; `--set verifier.use=coupled` has texts that can be compared"
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
                    plain.run(lambda parts: _explain(parts, watch, p, seed, prompt_tokens, theirs.tokens[:same], pair))  # noqa: B023
                )
            tell("identity", done + 1, len(cases))
        return IdentityResult(
            engine.promise, engine.config_sha256, len(cases), identical, tokens, matching, submitted, tuple(divergences)
        )


def without_drafter(config: Config) -> Config:
    """The same configuration with `drafter.use = "none"`."""
    return changed(config, {"drafter.use": "none"})


def changed(config: Config, values: dict[str, Any]) -> Config:
    """The same configuration with other values for some keys."""
    given = {key: value.value for key, value in config.values.items() if value.origin != "default"} | values
    tree: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        table = tree
        *path, name = key.split(".")
        for part in path:
            table = table.setdefault(part, {})
        table[name] = list(value) if isinstance(value, tuple) else value
    return load_config(tree, environ={}, catalogue=config.catalogue)


def _explain(
    parts: Parts, watch: Watch, prompt: int, seed: int, prefix: list[int], text: Sequence[int], pair: tuple[int, int]
) -> Divergence:
    """Score both tokens of `pair` after prefix + text as plain decoding does, and see what blocks do to that score."""
    import mlx.core as mx

    position = len(prefix) + len(text)
    alone, lone_rows = _run(parts, watch, prefix, text, 1, {})
    calls: dict[str, int] = {}
    for row in lone_rows or ():
        for name, count in calls_of(row).items():
            calls[name] = max(count, calls.get(name, 0))
    block, block_rows = _run(parts, watch, prefix, text, BLOCK, calls)
    rounding = float(np.abs(np.array(alone) - np.array(block)).max())
    parted = [d for a, b in zip(lone_rows or (), block_rows or (), strict=False) for d in differences(a, b)]
    first = next((d for d in parted if not d.tie), parted[0] if parted else None)
    sampler = parts.sampler
    state = sampler.start(tuple(prefix))
    for token in text:
        state = sampler.advance(state, (token,))
    p = sampler.distribution(alone, sampler.rows(state, mx.zeros((0,), dtype=mx.int32)), True)
    score = np.array(alone)[0]
    if p.mode is None:
        noise = gumbel(Keys(seed, 0, position - 1).array("target", 1), p.log_p.shape[-1])
        score = np.array(p.log_p[0] + noise[0])
    return Divergence(
        prompt, seed, len(text), position, *pair, margin=float(score[pair[0]] - score[pair[1]]), rounding=rounding,
        usual=usual_rounding(parts.target) * float(np.abs(np.array(alone)).max()),
        choice="" if first is None else f"{first.key[0]}, call {first.key[1]}", tied=first is not None and first.tie,
    )  # fmt: skip


def _run(
    parts: Parts, watch: Watch, prefix: list[int], text: Sequence[int], size: int, calls: dict[str, int]
) -> tuple[Any, list[Row] | None]:
    """float32 [1, V] after prefix + text, the prefix in chunks as an engine has it and its last token with the text,
    `size` rows at a time; and what each of those rows took, None if the target cuts forwards."""
    import mlx.core as mx

    state, chunk = parts.target.new_state(), parts.config.engine.prefill_chunk
    for at in range(0, len(prefix) - 1, chunk):
        parts.target.forward(mx.array(prefix[at : min(at + chunk, len(prefix) - 1)], dtype=mx.int32), state, "none")
    rest, first = [prefix[-1], *text], len(prefix) - 1
    rows: list[Row] | None = []
    logits = None
    for at in range(0, len(rest), size):
        ids = rest[at : at + size]
        watch.begin(first + at, len(ids))
        logits = parts.target.forward(mx.array(ids, dtype=mx.int32), state, "all").logits
        mx.eval(logits)
        took = watch.rows(calls)
        rows = None if rows is None or took is None else rows + took
    assert logits is not None
    return logits[-1:], rows


def usual_rounding(target: Target) -> float:
    """What rounding gives to logits, relative to the largest: some units of the activations' dtype for each branch,
    which add up like a random walk. An estimate, for where nothing was measured."""
    import mlx.core as mx

    dtype = target.resources.embed(mx.zeros((1,), dtype=mx.int32)).dtype
    eps = mx.finfo(dtype if mx.issubdtype(dtype, mx.floating) else mx.float32).eps
    return 4 * float(eps) * math.sqrt(2 * target.facts.layers)
