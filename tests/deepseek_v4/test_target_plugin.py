"""The plugin on top of the family: real formats end to end, options, taps, conversations, row-exact forwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tests.deepseek_v4 import cases, tiny
from tests.deepseek_v4_checkpoint import tinyq
from tests.oracles import deepseek_v4_numpy as oracle
from tokenizers import Tokenizer, models, pre_tokenizers

from sparkwright.core.assembly import assemble, load_target
from sparkwright.core.contracts import WIDEST_VERIFY, Op, OpSpec
from sparkwright.core.errors import AssemblyError, ModelError, RequestError
from sparkwright.plugins.deepseek_v4.checkpoint import open_checkpoint
from sparkwright.plugins.deepseek_v4.exact import probe_rows
from sparkwright.plugins.deepseek_v4.kernels import select_reference
from sparkwright.plugins.deepseek_v4.model import Model
from sparkwright.plugins.deepseek_v4.step import BUCKET
from sparkwright.plugins.deepseek_v4.weights import CheckpointWeights

TOKENS = 150


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny-Q in official dtypes, with a tokenizer of whole words."""
    path = tmp_path_factory.mktemp("tiny-q")
    tinyq.write(path)
    words = [
        "<｜begin▁of▁sentence｜>",
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<｜Assistant｜>",
        "</think>",
        "<think>",
        "hi",
    ]
    vocab = {word: i for i, word in enumerate(words)} | {f"w{i}": i for i in range(len(words), 257)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="w256"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(words[:6])
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="module")
def expected() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, and the oracle's logits and taps for the exact values of tiny-Q."""
    _, exact = tinyq.make()
    tokens = np.random.default_rng(3).integers(0, 257, TOKENS).astype(np.int32)
    gaps: list[tuple[int, float]] = []
    logits, taps = oracle.forward(tokens, exact, tiny.sizes(tinyq.CONFIG), taps=(4, 5, 6), gaps=gaps)
    assert taps is not None and min(gap for _, gap in gaps) > cases.SMALLEST_GAP
    return tokens, logits, taps


@pytest.mark.parametrize("expand", ["on", "off"])
def test_official_formats_give_the_oracles_logits(checkpoint: Path, expected: Any, expand: str) -> None:
    """FP8 and FP4 as mxfp8 and mxfp4, or decoded to float32: the same numbers, prefill then blocks of five."""
    tokens, logits, taps = expected
    target = load_target(checkpoint, "deepseek_v4", sets=(f"target.deepseek_v4.expand={expand}",), taps=(4, 5, 6))
    state, got = target.new_state(), []
    for at in (0, *range(120, TOKENS, 5)):
        out = target.forward(mx.array(tokens[at : 120 if at == 0 else at + 5]), state)
        assert out.taps is not None
        got.append((np.array(out.logits), np.array(out.taps)))
    for part, want in zip(zip(*got, strict=True), (logits, taps), strict=True):
        assert np.abs(np.concatenate(part) - want).max() <= cases.TOLERANCE * np.abs(want).max()


def test_facts_come_from_config_and_headers(checkpoint: Path) -> None:
    facts = load_target(checkpoint).facts  # recognised without being named
    assert (facts.vocab_size, facts.layers, facts.hidden, facts.eos) == (257, 7, 256, (1,))
    assert facts.row_exact and facts.rollback and facts.drafter == "dspark"


def test_what_is_lent_to_the_drafter(checkpoint: Path) -> None:
    target = load_target(checkpoint, sets=("target.deepseek_v4.expand=off",))
    lent = target.resources.checkpoint
    assert lent.config.dspark.stages == 3
    assert lent.weights.experts("mtp.0.ffn").format == "mxfp4"
    assert lent.weights.linear("mtp.0.main_proj") is lent.weights.linear("mtp.0.main_proj")  # read once
    hidden = target.resources.embed(mx.array([3, 4]))
    assert target.resources.head(hidden).shape == (2, 257)
    assert target.resources.head(hidden).dtype == mx.float32


def test_conversations_take_the_familys_format(checkpoint: Path) -> None:
    text = load_target(checkpoint).text
    assert text.has_chat
    ids = text.encode_chat([{"role": "user", "content": "hi"}])
    assert ids[0] == 0 and ids.count(0) == 1 and ids[-1] == 4  # one BOS, and </think> at the end
    thinking = load_target(checkpoint, sets=("target.deepseek_v4.thinking=true",)).text
    assert thinking.encode_chat([{"role": "user", "content": "hi"}])[-1] == 5
    with pytest.raises(RequestError):
        text.encode_chat([{"role": "tool", "content": "hi"}])


def test_taps_outside_the_model_are_refused(checkpoint: Path) -> None:
    with pytest.raises(AssemblyError, match=r"layers \[7\].*0\.\.6"):
        load_target(checkpoint, "deepseek_v4", taps=(7,))


def test_half_precision_experts_are_refused_on_the_cpu(checkpoint: Path, tmp_path: Path) -> None:
    _, exact = tinyq.make()
    tinyq.save(tmp_path, tinyq.as_floats(exact, "BF16"))
    (tmp_path / "tokenizer.json").write_bytes((checkpoint / "tokenizer.json").read_bytes())
    with pytest.raises(ModelError, match=r"expand = 'on'"):
        load_target(tmp_path, sets=("target.deepseek_v4.expand=off",))


def test_the_end_of_the_context_is_an_error_of_the_request() -> None:
    c = cases.case("one-block")
    model = tiny.tiny_model(c.raw | {"max_position_embeddings": 20}, c.weights)
    state = model.new_state()
    model.forward(c.feed(0, 18), state, "none")
    with pytest.raises(RequestError, match="context is 20"):
        model.forward(c.feed(18, 3), state)
    assert model.forward(c.feed(18, 2), state).logits is not None


def test_half_precision_activations_stay_near_the_oracle(checkpoint: Path, expected: Any) -> None:
    """As on a GPU, computed here: BF16 rows, packed weights. Selections may flip, so the typical row is what counts."""
    tokens, logits, _ = expected
    opened = open_checkpoint(checkpoint)
    weights = CheckpointWeights(opened, device="cuda")
    assert weights.activation == "bfloat16"
    model = Model.build(opened.config, weights, select_reference, taps=(6,))
    out = model.forward(mx.array(tokens[:60]), model.new_state())
    assert out.logits is not None and out.logits.dtype == mx.float32
    assert out.taps is not None and out.taps.dtype == mx.bfloat16
    error = np.abs(np.array(out.logits) - logits[:60]).max(axis=1) / np.abs(logits).max()
    assert np.median(error) < 0.05


def test_an_engine_speculates_to_the_plain_text(checkpoint: Path) -> None:
    """The whole loop on official formats: greedy text with drafts that are often wrong is the text without drafts."""
    texts = []
    for drafter in ("none", "lookup"):
        with assemble(
            {
                "target": {"use": "auto", "model": str(checkpoint)},
                "drafter": {"use": drafter},
                "scheduler": {"use": "fixed"},
                "sampler": {"use": "greedy"},
                "verifier": {"use": "greedy"},
            }
        ) as engine:
            texts.append(engine.complete("hi w9 w10 w11 w9 w10 w11 w9 w10", max_tokens=40).tokens)
    assert len(texts[0]) == 40 and texts[0] == texts[1]


# ---------------------------------------------------------------------------------------------------- row_exact


def test_row_exact_forwards_agree_with_the_oracle_and_with_themselves() -> None:
    c = cases.case("tiny-A")
    model = tiny.tiny_model(c.raw, c.weights, taps=cases.TAPS, row_exact=True)
    exact = cases.Case(c.raw, c.weights, c.tokens, c.logits, c.taps, c.gaps, model, c.rows)
    cases.singles_and_blocks(exact, (35, 125))
    last = model.forward(exact.feed(0, 61), model.new_state(), "last").logits
    every = model.forward(exact.feed(0, 61), model.new_state()).logits
    assert every is not None and last is not None and mx.array_equal(last[0], every[60])
    taps = np.array(model.forward(exact.feed(0, 61), model.new_state(), "none").taps)
    assert np.abs(taps - c.taps[:61]).max() <= cases.TOLERANCE * np.abs(c.taps).max()


def test_row_exact_rolls_back() -> None:
    """Padding rows are written too; they must be as gone as rejected ones."""
    c = cases.case("one-block")
    model = tiny.tiny_model(c.raw, c.weights, row_exact=True)
    exact = cases.Case(c.raw, c.weights, c.tokens, c.logits, c.taps, c.gaps, model, c.rows)
    for m in range(6):
        state = exact.prefilled(125)
        work = state.begin()
        exact.run(state, 3)
        model.forward(mx.array(cases.garbage(c.tokens[128:131], 257)), state)
        work.commit(min(m, 3))
        exact.check(exact.run(state, 6), 125 + min(m, 3), f"after a commit of {m}")


def shapes_seen(model_rows: list[tuple[int, int]], c: cases.Case) -> Any:
    """A `SelectKernel` that notes (rows, compressed rows looked at) of every attention."""

    def select(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        reference = select_reference(op, dtype=dtype, format=format, widths=widths)
        if op.name != "attend_rows":
            return reference

        def noted(
            query: mx.array, ring: mx.array, slots: mx.array, rows: mx.array, select: mx.array, *more: Any
        ) -> Any:
            model_rows.append((query.shape[0], select.shape[1]))
            return reference(query, ring, slots, rows, select, *more)

        return noted

    return select


def test_row_exact_lengths_are_a_function_of_position_alone() -> None:
    """A block across a bucket's edge is cut there; each side has its own fixed length."""
    raw = tiny.MID_K | {"compress_ratios": [128]}
    weights = tiny.random_weights(raw, 0)
    tokens = mx.array(tiny.random_tokens(raw, BUCKET + 8, 0).astype(np.int32))
    fast = tiny.tiny_model(raw, weights)
    want = np.array(fast.forward(tokens, fast.new_state()).logits)[BUCKET - 3 :]
    seen: list[tuple[int, int]] = []
    model = tiny.tiny_model(raw, weights, shapes_seen(seen, cases.case("tiny-A")), row_exact=True)
    state = model.new_state()
    model.forward(tokens[: BUCKET - 3], state, "none")
    seen.clear()
    work = state.begin()
    block = np.array(model.forward(tokens[BUCKET - 3 : BUCKET + 5], state).logits)
    work.abort()
    assert seen == [(WIDEST_VERIFY, BUCKET // 128), (WIDEST_VERIFY, 2 * BUCKET // 128)]
    seen.clear()
    alone = [np.array(model.forward(tokens[i : i + 1], state).logits) for i in range(BUCKET - 3, BUCKET + 5)]
    assert seen == [(WIDEST_VERIFY, BUCKET // 128)] * 3 + [(WIDEST_VERIFY, 2 * BUCKET // 128)] * 5
    assert np.array_equal(np.concatenate(alone), block)
    assert np.abs(block - want[:8]).max() <= cases.TOLERANCE * np.abs(want).max()


def test_an_op_that_looks_at_its_neighbours_is_refused() -> None:
    c = cases.case("one-block")

    def select(op: OpSpec, *, dtype: str, format: str, widths: tuple[int, ...]) -> Op:
        reference = select_reference(op, dtype=dtype, format=format, widths=widths)
        if op.name != "small_rows_matmul":
            return reference
        return lambda x, linear: reference(x, linear) + 1e-6 * x[-1:].sum()

    probe_rows(tiny.tiny_model(c.raw, c.weights, row_exact=True))
    with pytest.raises(AssemblyError, match="row_exact"):
        probe_rows(tiny.tiny_model(c.raw, c.weights, select, row_exact=True))


SCRIPT = """
import json
from sparkwright.core.blas import ensure_blas
blas = ensure_blas().name
import mlx.core as mx
from tests.deepseek_v4 import tiny
wide = {"hidden_size": 1024, "head_dim": 128, "num_hidden_layers": 2, "compress_ratios": [4, 128], "num_hash_layers": 0}
raw = tiny.TINY_A | wide
weights, tokens = tiny.random_weights(raw, 0), mx.array(tiny.random_tokens(raw, 48, 0).astype("int32"))
differ = {}
for exact in (False, True):
    model = tiny.tiny_model(raw, weights, row_exact=exact)
    state = model.new_state()
    model.forward(tokens[:40], state, "none")
    work = state.begin()
    alone = mx.concatenate([model.forward(tokens[40 + i : 41 + i], state).logits for i in range(8)])
    work.abort()
    block = model.forward(tokens[40:], state).logits
    differ[str(exact)] = int(mx.any(alone != block, axis=1).sum().item())
print(json.dumps({"blas": blas, "differ": differ}))
"""


@pytest.mark.target
def test_row_exact_holds_where_the_blas_rounds_one_row_differently() -> None:
    """OpenBLAS in a process of its own: without row_exact rows differ, with it none does."""
    environment = {k: v for k, v in os.environ.items() if k not in ("SPARKWRIGHT_OPENBLAS", "XDG_CACHE_HOME")}
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    said = json.loads(run.stdout.splitlines()[-1])
    if said["blas"] != "openblas":
        pytest.skip("no OpenBLAS here")
    assert said["differ"]["False"] > 0, "this BLAS gives equal rows: the test has nothing to show"
    assert said["differ"]["True"] == 0
