"""The audit of consistency finds the target's planted faults, tells structure from rounding, and passes what is right.

Faults are those of tests/deepseek_v4/test_mutations_are_caught.py. Ops that are wrong alike for every row count are no
inconsistency where the reference has the same fault; as kernels (8 rows at most, the reference above) they are.
"""

from __future__ import annotations

from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from tests.audit_live import live
from tests.core.engines import toy_config
from tests.deepseek_v4.test_mutations_are_caught import OPS

from sparkwright.core.audit.consistency import audit_consistency
from sparkwright.core.audit.watch import Differs, Taken, Watch, differences
from sparkwright.core.contracts import Op
from sparkwright.core.errors import RequestError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing import toys
from sparkwright.plugins.deepseek_v4.compressor import Compressor
from sparkwright.plugins.deepseek_v4.state import CompressorState
from sparkwright.plugins.deepseek_v4.step import Step

TOKENS = 24


def test_a_right_model_is_one_function() -> None:
    result = live.audit(live.small(), TOKENS)
    assert result.verdict == "equal" and result.passed and not result.findings
    assert result.choices == ("attend_rows", "indexer_select", "route_hash", "route_scores")
    assert result.uncompared == 0 and 0 < result.rounding < 1e-3 * result.scale
    widths = {(w.mode, w.rows): w for w in result.widths}
    assert {("block", n) for n in range(1, 9)} | {("prompt chunk", 16), ("prefill", 24)} <= set(widths)
    assert all(w.compared >= w.rows for w in result.widths)
    assert widths["block", 1].forwards == TOKENS


@pytest.mark.parametrize("fault", OPS)
def test_each_fault_in_a_kernel_is_found(fault: str) -> None:
    name, change = OPS[fault]
    result = live.audit(live.small(), TOKENS, name, change, kernel=True)
    assert not result.passed
    if "threshold" in fault or "routing" in fault:
        assert result.verdict == "structural" and result.findings[0].op == name
        assert name in result.meaning
    else:
        assert result.verdict == "numeric" and not result.findings[0].op


def test_the_batchs_threshold_is_structural_in_the_reference_too() -> None:
    """The fault of the report that this project starts from."""
    result = live.audit(live.small(), TOKENS, *OPS["threshold of the first query for the batch"])
    assert result.verdict == "structural" and result.findings[0].op == "indexer_select"


def test_visibility_of_the_last_query_is_structural(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(self: Step, ratio: int) -> mx.array:
        return mx.full((self.rows,), self.most(ratio), dtype=mx.int32)

    monkeypatch.setattr(Step, "visible", last)
    result = live.audit(live.small(), TOKENS)
    assert result.verdict == "structural" and result.findings[0].op in ("indexer_select", "attend_rows")


def test_overlap_dropped_at_call_boundaries_is_numeric(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows are read; their contents depend on where calls begin."""
    right = Compressor._slots

    def without(self: Compressor, state: CompressorState, step: Step) -> tuple[mx.array, mx.array]:
        kv, gate = right(self, state, step)
        first = mx.concatenate([mx.full((1, 4, self.width), -mx.inf), gate[:1, 4:]], axis=1)
        return kv, mx.concatenate([first, gate[1:]])

    monkeypatch.setattr(Compressor, "_slots", without)
    result = live.audit(live.small(), TOKENS)
    assert not result.passed and any(w.numeric for w in result.widths)


def test_rejected_rows_that_leave_a_trace_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARKWRIGHT_DEBUG")
    monkeypatch.setattr(CompressorState, "truncate", lambda self, end: self.raw.truncate(end))
    assert not live.audit(live.small(), TOKENS).passed


def test_an_error_that_every_width_makes_alike_needs_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ape` off by one is wrong in decode and verify alike: they agree, and a pass says that this is all it says."""
    shift_ape(monkeypatch)
    alone = live.audit(live.small(), TOKENS)
    assert alone.passed and "faults that every width makes alike are not seen" in alone.meaning
    held = live.audit(live.small(), TOKENS, held=TOKENS)
    assert held.verdict == "reference" and "not with the model's definition" in held.meaning


def shift_ape(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(self: Step, ratio: int) -> mx.array:
        return mx.array(((self.position + 1 + np.arange(self.rows)) % ratio).astype(np.int32))

    monkeypatch.setattr(Step, "slot_in_window", shifted)


def test_a_right_model_is_the_reference_too() -> None:
    """Choices are compared under the same names and numbers, and the last bits are far below the bound."""
    result = live.audit(live.small(), TOKENS, held=TOKENS)
    assert result.verdict == "equal" and result.passed and result.reference == TOKENS
    (width,) = (w for w in result.widths if w.mode == "reference")
    assert width.compared == TOKENS and width.wrong == 0 and 0 < width.largest < result.rounding
    assert f"over {TOKENS} of them that function is the model's" in result.meaning


def test_rounding_of_a_kernel_is_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matrix product that rounds a row by how many there are: every choice must still be called a tie or equal."""

    def rough(op: Op, x: mx.array, linear: Any) -> mx.array:
        out: mx.array = op(x, linear)
        return out * (1 + x.shape[0] * 2.0**-23)

    result = live.audit(live.small(), TOKENS, "small_rows_matmul", rough)
    assert result.verdict == "rounding" and result.passed
    assert any(0 < w.largest <= result.rounding for w in result.widths)
    assert not attrs.evolve(result, row_exact=True).passed, "row_exact promises bits"


def choice(index: list[int], scores: list[float] | None) -> dict[Any, Taken]:
    return {("op", 0, "rows"): Taken(np.array(index), None if scores is None else np.array(scores))}


def test_a_choice_parts_by_a_tie_only_as_far_as_its_scores_moved() -> None:
    mine = choice([0, 1], [3.0, 2.0, 1.9999, 0.0])

    def one(theirs: dict[Any, Taken]) -> Differs:
        (found,) = differences(mine, theirs)
        return found

    assert one(choice([0, 2], [3.0, 2.0, 2.0001, 0.0])).tie
    assert not one(choice([0, 2], [3.0, 2.0, 1.9999, 0.0])).tie, "the same scores cannot give other rows"
    assert not one(choice([0, 3], [3.0, 2.0, 2.0001, 0.0])).tie, "the row that came in is no neighbour"
    assert not one(choice([0, 1, 2], [3.0, 2.0, 2.0001, 0.0])).tie, "a tie never changes how many"
    assert not one(choice([0, 2], None)).tie, "nothing to round in a choice without scores"
    assert differences(mine, choice([0, 1], [9.0, 8.0, 1.0, 0.0])) == []


def test_a_target_without_ops_is_compared_by_its_logits() -> None:
    config = toy_config({})
    good = audit_consistency(config, [1, 2, 3, 4] * 10)
    assert good.passed and good.verdict == "equal" and good.choices == ()
    assert "only logits were compared" in good.meaning and good.config_sha256

    @attrs.define(eq=False)
    class Blocky(toys.MarkovTarget):
        @hookimpl
        def sparkwright_target_forward(self, tokens: mx.array, state: toys.ToyState, logits: Any) -> Any:
            forward = super().sparkwright_target_forward(tokens, state, logits)
            assert forward.logits is not None
            return attrs.evolve(forward, logits=forward.logits + mx.array(float(tokens.shape[0] == 5)))

    provider = toys.markov_target(config_table(), build=lambda made: Blocky(made.table))
    bad = audit_consistency(toy_config({}, provider), [1, 2, 3, 4] * 10)
    assert bad.verdict == "numeric" and {w.rows for w in bad.widths if w.numeric} >= {5}
    assert {w.rows for w in bad.widths if w.numeric and w.mode == "block"} == {5}


def config_table() -> Any:
    from tests.core.engines import table

    return table()


def test_a_target_that_cannot_take_rows_back_is_refused() -> None:
    config = toy_config({}, toys.markov_target(config_table(), rollback=None))
    with pytest.raises(RequestError, match="'markov' does not take rows back"):
        audit_consistency(config, [1, 2, 3, 4] * 10)


def test_a_text_that_is_too_short_is_refused() -> None:
    with pytest.raises(RequestError, match="at least 16"):
        audit_consistency(toy_config({}), [1, 2, 3])


def test_a_forward_cut_into_pieces_is_not_mistaken_for_more_rows() -> None:
    """Pieces that are padded to 8 rows, as row_exact makes them: told by the number of calls."""
    watch = Watch()
    op = attrs.evolve(live.route(), choices=f"{__name__}:piece_choices")
    call = watch.wrap(op, "toy", lambda x: x)
    watch.begin(0, 8)
    call(mx.arange(8))
    call(mx.arange(8))
    assert watch.rows({op.name: 1}) is None
    watch.begin(0, 2)
    call(mx.arange(8))
    rows = watch.rows({op.name: 1})
    assert rows is not None and [next(iter(row.values())).index.tolist() for row in rows] == [[0], [1]]


def piece_choices(position: int, result: mx.array, x: mx.array) -> dict[str, Any]:
    from sparkwright.core.contracts import Choice

    return {"rows": Choice(result[:, None])}
