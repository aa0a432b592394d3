"""The product behind "coupled text is plain text": tiny models x drafters x schedulers, for the tests and for
docs/benchmarks/coupled_product.py. A pair that an assembly refuses (thresholds without confidences) is no pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from tests.deepseek_v4.tiny import TINY_A
from tests.dspark import dense_cases
from tests.dspark.folders import engine, write_folder
from tests.dspark.tiny import spark_weights
from tests.mlx_lm_target import tiny as mlx_lm_tiny

from sparkwright.core import costs
from sparkwright.core.contracts import CostCurves, Draft, DrafterFacts, PointMass, ProposalKind, Provider
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.plugins import discover
from sparkwright.core.testing.toys import random_drafter, table_drafter

SEEDS, TOKENS = 20, 128
TEMPERATURES = (0.5, 1.0, 1.5)
RAW: dict[str, Any] = TINY_A | {
    "vocab_size": 67,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "compress_ratios": [4, 128, 0, 0],
    "num_hash_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 16,
    "q_lora_rank": 16,
    "sliding_window": 12,
    "index_n_heads": 4,
    "index_topk": 6,
    "hc_mult": 2,
    "hc_sinkhorn_iters": 2,
    "dspark_block_size": 5,
    "dspark_noise_token_id": 66,
    "dspark_target_layer_ids": [0, 1],
    "dspark_markov_rank": 8,
}
"""Window, both ratios and the indexer's choice all turn within the texts."""
CHEAP = CostCurves(plain=1.0, verify=(1.0, 1.02, 1.04, 1.06, 1.3, 1.32, 1.34, 1.36), draft=0.02)
"""Costs under which drafting pays also for poor drafters, with a step in them."""
SCHEDULERS: dict[str, dict[str, Any]] = {
    "fixed": {"use": "fixed"},
    "threshold": {"use": "threshold", "threshold": {"confidence": 0.4, "survival": 0.1}},
    "cost_aware": {"use": "cost_aware"},
}
ANY_TARGET: dict[str, dict[str, Any]] = {
    "lookup": {"use": "lookup", "lookup": {"min_n": 1}},
    "random": {"use": "random"},
    "knowing": {"use": "knowing"},
    "table, dense": {"use": "table_dense"},
    "table, sparse": {"use": "table_sparse"},
    "table, point": {"use": "table_point"},
}
"""Bundled and toy drafters that fit every target."""
CONFIDENT = ("dspark", "table")
"""Beginnings of the names of drafters with confidences."""


@attrs.frozen(eq=False)
class World:
    """A model folder, the drafters that fit it, and the cost curves that `cost_aware` decides by."""

    name: str
    target: dict[str, Any]
    vocabulary: int
    drafters: dict[str, dict[str, Any]]
    curves: Path
    sentences: tuple[str, ...] = ()

    def prompt(self, seed: int) -> str | list[int]:
        """Another one for each seed; of random tokens, of 1 to 20 of them, where there are no sentences."""
        if self.sentences:
            return self.sentences[seed % len(self.sentences)]
        rng = np.random.default_rng(seed)
        return [int(t) for t in rng.integers(2, 66, size=1 + seed % 20)]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        return [(d, s) for d in self.drafters for s in SCHEDULERS if s != "threshold" or d.startswith(CONFIDENT)]


def _curves(folder: Path) -> Path:
    costs.save(folder / "cheap.json", CHEAP, {})
    return folder / "cheap.json"


def tiny_v4(folder: Path) -> World:
    model = write_folder(folder / "v4", RAW, spark_weights(RAW, 2))
    dspark: dict[str, dict[str, Any]] = {
        "dspark": {"use": "dspark"},
        "dspark, point": {"use": "dspark", "dspark": {"proposal": "point"}},
        "dspark, own temperature": {"use": "dspark", "dspark": {"temperature": 0.7, "top_k": 8}},
    }
    drafters = dspark | ANY_TARGET
    target = {"use": "deepseek_v4", "model": str(model)}
    return World("tiny V4", target, RAW["vocab_size"], drafters, _curves(folder))


def tiny_qwen3(folder: Path) -> World:
    """A dense target, for the dense kinds of DSpark in both packagings, with a reduced vocabulary among them."""
    model = mlx_lm_tiny.make(folder / "qwen3", "qwen3")
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "deepspec": (dense_cases.DEEPSPEC, {}),
        "speculators": (dense_cases.SPECULATORS, {"markov_head_type": "gated"}),
        "reduced": (
            dense_cases.SPECULATORS,
            {"markov_head_type": "rnn", "draft_vocab_size": dense_cases.REDUCED},
        ),
    }
    drafters: dict[str, dict[str, Any]] = {}
    for name, (base, keys) in kinds.items():
        dense_cases.made(folder / name, base, **keys)
        drafters[f"dspark, {name}"] = {"use": "dspark", "model": str(folder / name)}
    target = {"use": "mlx_lm", "model": str(model)}
    return World("tiny Qwen3", target, mlx_lm_tiny.VOCABULARY, drafters | ANY_TARGET, _curves(folder))


SENTENCES = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
    "Once upon a time, in a small village by the sea,",
    "import os\nimport sys\n\ndef main():\n",
    "Q: What is a prime number?\nA:",
)


def demo(folder: Path) -> World:
    """The bundled DeepSeek-V4 with its own drafter."""
    from sparkwright.plugins.targets.deepseek_v4 import bundled

    found = bundled()
    assert found is not None
    drafters: dict[str, dict[str, Any]] = {"dspark": {"use": "dspark"}} | _some("lookup", "random", "knowing")
    target = {"use": "deepseek_v4", "model": str(found)}
    return World("demo V4", target, 4096, drafters, _curves(folder), SENTENCES)


def real(model: str, dtype: str, folder: Path) -> World:
    """A model folder of mlx-lm."""
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    target = {"use": "mlx_lm", "model": model, "mlx_lm": {"dtype": dtype}}
    drafters = _some("lookup", "random", "knowing")
    return World(Path(model).resolve().name, target, vocabulary, drafters, _curves(folder), SENTENCES)


def _some(*names: str) -> dict[str, dict[str, Any]]:
    return {name: ANY_TARGET[name] for name in names}


# ------------------------------------------------------------------------------------------------------- drafters


@attrs.define(eq=False)
class Knowing:
    """Drafts the very text, with every fourth token wrong: long blocks are accepted, and cut at every length. Its
    requests come in the order of `known`."""

    known: Iterator[Sequence[int]]
    vocabulary: int

    @hookimpl
    def sparkwright_drafter_start(self, prompt: Sequence[int]) -> list[int]:
        """The whole sequence, its first element being how many tokens of it the target has."""
        return [0, *prompt, *next(self.known)]

    @hookimpl
    def sparkwright_drafter_draft(self, state: list[int], limit: int) -> Draft:
        import mlx.core as mx

        at = state[0] + 1
        tokens = state[1 + at : 1 + at + limit]
        drafts = [(t + (at + i) % 4 // 3) % self.vocabulary for i, t in enumerate(tokens)]
        return Draft(mx.array(drafts, dtype=mx.int32), PointMass())

    @hookimpl
    def sparkwright_drafter_observe(self, state: list[int], tokens: Sequence[int]) -> None:
        state[0] += len(tokens)


def knowing(known: Sequence[Sequence[int]], vocabulary: int) -> Provider:
    return Provider(
        kind="drafter", name="knowing", summary="toy: knows the text",
        build=lambda options, site: Knowing(iter(known), vocabulary),
        describe=lambda options, site: DrafterFacts(block=7),
    )  # fmt: skip


def toy_drafters(known: Sequence[Sequence[int]], vocabulary: int) -> list[Provider]:
    if vocabulary > 1000:  # a table of the whole vocabulary would not fit in memory
        return [random_drafter(), knowing(known, vocabulary)]
    logits = 1.5 * np.random.default_rng(5).normal(size=(vocabulary, vocabulary)).astype(np.float32)
    kinds: tuple[ProposalKind, ...] = ("dense", "sparse", "point")
    sure = (0.9, 0.8, 0.7, 0.2, 0.6)
    tables = [
        table_drafter(logits, name=f"table_{kind}", proposal=kind, confidences=sure, target_noise=True)
        for kind in kinds
    ]
    return [random_drafter(), knowing(known, vocabulary), *tables]


# ---------------------------------------------------------------------------------------------------------- texts


@attrs.frozen
class Texts:
    """tokens of each seed's text; drafts submitted and accepted in all of them."""

    tokens: list[tuple[int, ...]]
    submitted: int
    accepted: int


def texts(
    world: World,
    temperature: float,
    settings: dict[str, Any],
    seeds: Sequence[int],
    plain: Sequence[tuple[int, ...]] = (),
    tokens: int = TOKENS,
    row_exact: bool = False,
) -> Texts:
    """settings: drafter and scheduler. plain: the texts of seeds 0, 1, ..., for the drafter that knows them."""
    base: dict[str, Any] = {
        "target": world.target,
        "sampler": {"use": "chain", "chain": {"temperature": temperature, "top_p": 0.95, "repetition_penalty": 1.1}},
        "verifier": {"use": "coupled"},
        "generation": {"max_tokens": tokens, "ignore_eos": True},
        "engine": {"costs": str(world.curves), "row_exact": row_exact},
    }
    known = [plain[seed] for seed in seeds] if plain else []
    catalogue = discover().with_providers(*toy_drafters(known, world.vocabulary))
    with engine(Path(), base | settings, catalogue) as running:
        results = [running.complete(world.prompt(seed), seed=seed) for seed in seeds]
    submitted, accepted = (sum(getattr(r.stats, name) for r in results) for name in ("submitted", "accepted"))
    return Texts([tuple(r.tokens) for r in results], submitted, accepted)


def plainly(world: World, temperature: float, seeds: int = SEEDS, **more: Any) -> list[tuple[int, ...]]:
    return texts(world, temperature, {"drafter": {"use": "none"}}, range(seeds), **more).tokens
