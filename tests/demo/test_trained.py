"""What training has to have achieved: loss under n-gram baselines, acceptance, texts that are Python (marker `demo`).

Texts and prompts are docs/benchmarks/demo_texts.json: pieces of files that were held out from training.
"""

from __future__ import annotations

import ast
import json
import random
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparkwright.plugins.targets.deepseek_v4 as plugin
from sparkwright.core.assembly import assemble, load_target
from sparkwright.core.engine import Engine

pytestmark = pytest.mark.demo

RECORDS = Path(__file__).parents[2] / "docs" / "benchmarks"
TEXTS: dict[str, Any] = json.loads((RECORDS / "demo_texts.json").read_text(encoding="utf-8"))
TOKENS = 48
FLOORS = {"code": 1.9, "prose": 1.8}
"""Of tau at T = 1, ten texts of 48 tokens. Replayed over 128 held-out texts tau is 2.65 on code and 2.55 on prose, and
between texts of 48 tokens it has a standard deviation of 0.58 and 0.52: ten have one of 0.18 and 0.16, so a floor is
missed by chance less than once in 10,000 draws of seeds (the seeds here are fixed, and other machines draw others only
where a rounding turns a near tie). A drafter that ignores its own drafts (tau 1.54 and 1.55 in the record; ten texts:
within 0.1 of that) is found nineteen times of twenty."""


def prompts(kind: str) -> list[str]:
    """Some 128 tokens each, whole lines."""
    texts = [one["text"] for one in TEXTS["texts"] if one["kind"] == kind]
    return [text[: text.rindex("\n", 0, 420) + 1] for text in texts]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Whole blocks in every round: `fixed`."""
    settings: dict[str, Any] = {"scheduler": {"use": "fixed"}, "generation": {"ignore_eos": True}}
    with assemble(settings) as found:
        yield found


def test_held_out_text_is_predicted_far_better_than_by_n_grams() -> None:
    """Seven texts, about 3,800 tokens, nats a token from the third of each on; no chance is in it. The n-gram models
    are of the training text (training/ngram.py), their numbers beside each text."""
    import mlx.core as mx

    folder = plugin.bundled()
    assert folder is not None
    target = load_target(folder)
    texts = TEXTS["texts"][::3]
    nats = []
    for one in texts:
        ids = target.text.encode(one["text"])
        logits = target.forward(mx.array(ids), target.new_state(), "all").logits
        assert logits is not None
        wide = logits.astype(mx.float32)
        log_p = np.array(wide - mx.logsumexp(wide, axis=-1, keepdims=True))
        nats.append(float(-log_p[np.arange(2, len(ids) - 1), ids[3:]].mean()))  # behind <bos> and two tokens
    loss = statistics.mean(nats)
    bigram, trigram = (statistics.mean(one["nats"][name] for one in texts) for name in ("bigram", "trigram"))
    print(f"{loss:.3f} nats a token, trigram {trigram:.3f}, bigram {bigram:.3f}")
    assert loss < trigram - 1.2 < bigram - 1.2, f"{loss:.3f} nats a token"


@pytest.mark.parametrize("kind", sorted(FLOORS))
def test_drafts_are_accepted_at_temperature_one(engine: Engine, kind: str) -> None:
    rounds = []
    for i, prompt in enumerate(prompts(kind)):
        stats = engine.complete(prompt, max_tokens=TOKENS, seed=i).stats
        assert stats.tau is not None and stats.drafting_rounds > 0
        rounds.append((stats.tau * stats.drafting_rounds, stats.drafting_rounds))
    tau, low, high = interval(rounds)
    print(f"tau on {kind} {tau:.2f} ({low:.2f} to {high:.2f})")
    assert tau > FLOORS[kind], f"tau {tau:.2f}, 95 % interval over texts {low:.2f} to {high:.2f}"


def interval(rounds: list[tuple[float, int]], seed: int = 0) -> tuple[float, float, float]:
    """Tokens and rounds of each text -> tau, and its bootstrap interval over texts (95 %)."""
    rng = random.Random(seed)

    def tau(texts: list[tuple[float, int]]) -> float:
        return sum(t for t, _ in texts) / sum(r for _, r in texts)

    draws = sorted(tau(rng.choices(rounds, k=len(rounds))) for _ in range(1000))
    return tau(rounds), draws[25], draws[974]


def test_a_class_begun_is_continued_as_python(engine: Engine) -> None:
    """Ten continuations, cut behind the last line up to which they parse; noise has none such.

    Of 16 tried four in five had one; fewer than four of ten is then found once in a thousand draws of seeds."""
    begun = (
        'class Stack:\n    """A list of items."""\n\n    def __init__(self, items=None):\n'
        "        self.items = list(items or [])\n\n    def push(self, item):"
    )
    parsed = 0
    for seed in range(10):
        lines = (begun + engine.complete(begun, max_tokens=TOKENS, seed=seed).text).splitlines()[:-1]
        parsed += any(parses(lines[:end]) for end in range(len(begun.splitlines()) + 1, len(lines) + 1))
    print(f"{parsed} of 10 parse")
    assert parsed >= 4


def parses(lines: list[str]) -> bool:
    try:
        ast.parse("\n".join(lines))
    except SyntaxError:
        return False
    return True


def test_with_nothing_configured_it_drafts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a newcomer sees: no settings, no calibration of this machine; the shipped curves let `cost_aware` draft."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with assemble({"generation": {"ignore_eos": True}}) as engine:
        used = {kind: engine.slots[kind].effective for kind in ("target", "drafter", "verifier", "scheduler")}
        stats = engine.complete("def quicksort(", max_tokens=64, seed=1).stats
    assert used == {
        "target": "deepseek_v4", "drafter": "dspark", "verifier": "stochastic", "scheduler": "cost_aware",
    }  # fmt: skip
    assert stats.drafting_rounds >= 0.8 * stats.rounds


def test_confidences_are_calibrated_in_the_record_and_shipped_as_recorded() -> None:
    """The record is of 270,000 rounds over texts that the temperatures were not fitted on (training/evaluate.py)."""
    record = json.loads((RECORDS / "demo_acceptance.json").read_text(encoding="utf-8"))["confidence"]
    assert [slot["slot"] for slot in record["slots"]] == [1, 2, 3, 4, 5]
    assert all(slot["ece_sts"] <= 0.02 and slot["auroc_sts"] > 0.65 for slot in record["slots"])
    folder = plugin.bundled()
    assert folder is not None
    sts = json.loads((folder / "sts.json").read_text(encoding="utf-8"))
    curves = json.loads((folder / "costs-dspark-cpu.json").read_text(encoding="utf-8"))["curves"]
    assert sts["temperatures"] == curves["temperatures"] == record["temperatures"]


def test_dspark_beats_its_like_without_a_markov_head_and_lookup_in_the_record() -> None:
    """95 % intervals at T = 1: tokens a round, over all rounds (`lookup` does not draft in each of them)."""
    rows = json.loads((RECORDS / "demo_acceptance.json").read_text(encoding="utf-8"))["rounds"]
    for kind in FLOORS:
        here = {row["drafter"]: row for row in rows if row["temperature"] == 1.0 and row["kind"] == kind}
        low = here["dspark"]["interval"][0]
        assert low > here["no_markov"]["interval"][1] and low > here["bias_off"]["interval"][1]
        assert low > here["lookup"]["tokens_per_round_interval"][1]
