"""Every mutation of the target is found by the audit of consistency; those that all widths make alike by the reference.

Faults are planted in the ops for all row counts alike, so that the model agrees with itself wherever the fault allows
it. Each is judged without the reference and with it. Text and sizes are such that window, ratio 4 and the indexer's
choice turn; the long test goes over ratio 128 as well.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import mlx.core as mx
import numpy as np
import pytest
from tests.audit_live import live
from tests.core.engines import toy_config
from tests.deepseek_v4 import tiny
from tests.deepseek_v4.cases import case, make
from tests.deepseek_v4.test_mutations_are_caught import OPS

from sparkwright.core.audit.consistency import audit_consistency
from sparkwright.core.audit.findings import ConsistencyResult
from sparkwright.core.audit.reference import Follower, length_for
from sparkwright.core.audit.watch import Taken
from sparkwright.core.contracts import Op
from sparkwright.core.errors import PluginError, RequestError
from sparkwright.core.hookspecs import hookimpl
from sparkwright.core.testing import toys
from sparkwright.plugins.deepseek_v4 import definition
from sparkwright.plugins.deepseek_v4.compressor import Compressor
from sparkwright.plugins.deepseek_v4.reference import rotate
from sparkwright.plugins.deepseek_v4.state import CompressorState
from sparkwright.plugins.deepseek_v4.step import Step

TOKENS = 24
Patch = Callable[[pytest.MonkeyPatch], None]


# ------------------------------------------------------------------------------------------------------- mutations


def ape_off_by_one(patch: pytest.MonkeyPatch) -> None:
    def shifted(self: Step, ratio: int) -> mx.array:
        return mx.array(((self.position + 1 + np.arange(self.rows)) % ratio).astype(np.int32))

    patch.setattr(Step, "slot_in_window", shifted)


def overlap_dropped(patch: pytest.MonkeyPatch) -> None:
    """In every window: what decoding one by one makes of a state that loses the overlap at call boundaries."""
    right = Compressor._slots

    def without(self: Compressor, state: CompressorState, step: Step) -> tuple[mx.array, mx.array]:
        kv, gate = right(self, state, step)
        return kv, mx.concatenate([mx.full((gate.shape[0], 4, self.width), -mx.inf), gate[:, 4:]], axis=1)

    patch.setattr(Compressor, "_slots", without)


def overlap_dropped_at_call_boundaries(patch: pytest.MonkeyPatch) -> None:
    right = Compressor._slots

    def without(self: Compressor, state: CompressorState, step: Step) -> tuple[mx.array, mx.array]:
        kv, gate = right(self, state, step)
        first = mx.concatenate([mx.full((1, 4, self.width), -mx.inf), gate[:1, 4:]], axis=1)
        return kv, mx.concatenate([first, gate[1:]])

    patch.setattr(Compressor, "_slots", without)


def visibility_of_the_last_query(patch: pytest.MonkeyPatch) -> None:
    def last(self: Step, ratio: int) -> mx.array:
        return mx.full((self.rows,), self.most(ratio), dtype=mx.int32)

    patch.setattr(Step, "visible", last)


def visible_one_late(patch: pytest.MonkeyPatch) -> None:
    """A row is seen from the token after its window on, not from its window's last token on."""

    def late(self: Step, ratio: int) -> mx.array:
        return mx.array(((self.position + np.arange(self.rows)) // ratio).astype(np.int32))

    patch.setattr(Step, "visible", late)


def window_of_one_less(patch: pytest.MonkeyPatch) -> None:
    right = Step.window_slots
    patch.setattr(Step, "window_slots", lambda self, ring: right(self, ring)[:, 1:])


def plain_angles_in_compressed_layers(patch: pytest.MonkeyPatch) -> None:
    right = Step.angles
    patch.setattr(Step, "angles", lambda self, ratio: right(self, 0))


def one_row_less(op: Op, *a: Any) -> Any:
    return op(*a[:5], a[5] - 1)


def bias_in_the_weights(op: Op, x: mx.array, gate: mx.array, bias: mx.array, k: int, scale: float) -> Any:
    index, _ = op(x, gate, bias, k, scale)
    scores = mx.take_along_axis(mx.sqrt(mx.logaddexp(x @ gate.T, 0)) + bias, index, axis=-1)
    return index, scores / scores.sum(axis=-1, keepdims=True) * scale


def bias_left_out(op: Op, x: mx.array, gate: mx.array, bias: mx.array, k: int, scale: float) -> Any:
    return op(x, gate, mx.zeros(bias.shape), k, scale)


def next_tokens_experts(op: Op, x: mx.array, gate: mx.array, table: mx.array, tokens: mx.array, scale: float) -> Any:
    return op(x, gate, table, (tokens + 1) % table.shape[0], scale)


def one_iteration_less(op: Op, *a: Any) -> Any:
    return op(*a[:-1], a[-1] - 1)


def limit_left_out(op: Op, *a: Any) -> Any:
    return op(*a[:-1], 1e9)


def halves_instead_of_pairs(op: Op, x: mx.array, cos: mx.array, sin: mx.array, *more: Any) -> Any:
    """The rotary layout of other models: channel i with i + R / 2."""
    width = 2 * cos.shape[-1]
    y = op(x, mx.ones(cos.shape), mx.zeros(sin.shape), *more)
    turned = y[..., -width:].reshape(*y.shape[:-1], 2, width // 2).swapaxes(-1, -2).reshape(*y.shape[:-1], width)
    out = rotate(mx.concatenate([y[..., :-width], turned], axis=-1), cos[:, None], sin[:, None])
    back = out[..., -width:].reshape(*y.shape[:-1], width // 2, 2).swapaxes(-1, -2).reshape(*y.shape[:-1], width)
    return mx.concatenate([out[..., :-width], back], axis=-1)


def scale_left_out(op: Op, *a: Any) -> Any:
    return op(a[0] * a[0].shape[-1] ** 0.5, *a[1:])


PATCHES: dict[str, Patch] = {
    "overlap dropped at call boundaries": overlap_dropped_at_call_boundaries,
    "overlap dropped everywhere": overlap_dropped,
    "ape slot off by one": ape_off_by_one,
    "visibility of the last query for all rows": visibility_of_the_last_query,
    "rows visible one token late": visible_one_late,
    "window of one less": window_of_one_less,
    "rotary of plain layers in compressed ones": plain_angles_in_compressed_layers,
}
CHANGES: dict[str, tuple[str, Callable[..., Any]]] = OPS | {
    "one row less than top-k": ("indexer_select", one_row_less),
    "bias in the experts' weights": ("route_scores", bias_in_the_weights),
    "bias left out of the experts' choice": ("route_scores", bias_left_out),
    "hash routing by the next id": ("route_hash", next_tokens_experts),
    "one Sinkhorn iteration less": ("hyper_mix", one_iteration_less),
    "rotary by halves": ("norm_rotate", halves_instead_of_pairs),
    "attention not scaled": ("attend_rows", scale_left_out),
}
BY_WIDTHS = {
    "overlap dropped at call boundaries": "numeric",
    "visibility of the last query for all rows": "structural",
    "hash routing by anchor id": "structural",
    "threshold of the first query for the batch": "structural",
    "threshold of the last query for the batch": "structural",
}
"""The faults that show between widths, and as what. All others agree with themselves."""
STRUCTURE = {
    "rows visible one token late", "window of one less", "one row less than top-k", "hash routing by the next id",
    "bias left out of the experts' choice",
}  # fmt: skip
"""Those that the reference finds in a choice and not only in numbers."""


def audited(fault: str) -> ConsistencyResult:
    name, change = CHANGES.get(fault, ("", None))
    with pytest.MonkeyPatch.context() as patch:
        if fault in PATCHES:
            PATCHES[fault](patch)
        return live.audit(live.small(), TOKENS, name, change, held=TOKENS)


def without_reference(result: ConsistencyResult) -> ConsistencyResult:
    """The same audit of a target that offers none: it is looked at between decoding and blocks, and changes neither."""
    widths = tuple(w for w in result.widths if w.mode != "reference")
    findings = tuple(f for f in result.findings if f.kind != "reference")
    return attrs.evolve(result, widths=widths, findings=findings, reference=0)


QUICK = ("ape slot off by one", "window of one less")


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=() if f in QUICK else pytest.mark.target) for f in (*PATCHES, *CHANGES)],
)
def test_every_mutation_is_found(fault: str) -> None:
    held = audited(fault)
    alone = without_reference(held)
    assert not held.passed
    assert held.verdict == BY_WIDTHS.get(fault, "reference")
    if fault in BY_WIDTHS:
        assert alone.verdict == held.verdict
    else:
        assert alone.passed and alone.reference == 0, "without the reference nothing is seen, and the meaning says so"
        assert "every width makes alike are not seen" in alone.meaning
    first = next((f for f in held.findings if f.kind == held.verdict), None)
    assert first is not None and str(first) in held.meaning
    if fault in STRUCTURE:
        assert first.op and set(first.decoded) != set(first.other)


@pytest.mark.target
def test_a_limit_left_out_is_found_where_it_cuts() -> None:
    c = make(live.SMALL | {"swiglu_limit": 1.0}, 0, 48, ())
    assert live.audit(c, TOKENS, held=TOKENS, around=(23,)).passed
    for op in ("swiglu_matmul", "grouped_experts"):
        assert live.audit(c, TOKENS, op, limit_left_out, held=TOKENS, around=(23,)).verdict == "reference"


@pytest.mark.target
@pytest.mark.parametrize("name", list(tiny.CONFIGS))
def test_a_right_model_agrees_with_its_reference_over_every_boundary(name: str) -> None:
    """Windows of 4 and 128, the sliding window and the indexer's choice all turn; 128 twice in the smallest model, and
    never in the one that is about choosing."""
    count = {"one-block": 260, "many-heads": 44}.get(name, 132)
    result = live.audit(case(name), count, held=count, around=(count - 1,))
    assert result.passed and result.reference == count
    (width,) = (w for w in result.widths if w.mode == "reference")
    assert width.wrong == 0 and width.largest <= 2e-5 * result.scale < result.rounding * 100


@pytest.mark.target
def test_a_fault_that_only_shows_past_128_tokens_needs_as_long_a_text() -> None:
    """`ape` of the layers of ratio 128 alone."""
    c = case("one-block")

    def shifted(self: Step, ratio: int) -> mx.array:
        by = int(ratio == 128)
        return mx.array(((self.position + by + np.arange(self.rows)) % ratio).astype(np.int32))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "slot_in_window", shifted)
        assert live.audit(c, 127, held=127, around=(126,)).passed
        found = live.audit(c, 136, held=136, around=(128,))
    assert found.verdict == "reference" and found.findings[0].position >= 127


def test_row_exact_is_held_against_the_reference_too(folder: Path) -> None:
    """Forwards of one fixed shape, padded: decoded rows are recorded, longer forwards are cut and counted as such."""
    config = live.config(folder, {"drafter": {"use": "none"}, "engine": {"row_exact": True, "costs": "none"}})
    result = audit_consistency(config, [int(t) for t in live.small().tokens[:24]])
    assert result.passed and result.verdict == "equal" and result.reference == 24 and result.row_exact
    assert result.uncompared > 0, "chunks of 24 rows are cut into forwards of 8"


# ---------------------------------------------------------------------------------------------------- the machinery


def test_the_definition_shares_no_code_with_the_model() -> None:
    tree = ast.parse(Path(definition.__file__).read_text())
    modules = {getattr(node, "module", None) or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    modules |= {a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names}
    assert modules == {"__future__", "collections.abc", "typing", "math", "attrs", "numpy"}
    for path in Path(definition.__file__).parent.glob("*.py"):
        assert "definition" not in {a.name for node in ast.walk(ast.parse(path.read_text()))
                                    if isinstance(node, ast.ImportFrom) for a in node.names}  # fmt: skip


def follower(scores: list[float], mine: list[int], moved: float = 1e-3) -> tuple[Follower, Any]:
    taken = Taken(np.array(sorted(mine)), np.array(scores))
    made = Follower([{("op", 0, "rows"): taken}], {("op", 0, "rows"): moved}, {"op"})
    order = np.argsort(-np.array(scores), kind="stable")[None, :2]
    return made, made.settle("op", 0, "rows", order, np.array([scores]))


def test_a_near_tie_is_followed_and_anything_else_is_kept() -> None:
    tied, index = follower([3.0, 2.0, 1.999, 0.0], [0, 2])
    assert sorted(index[0]) == [0, 2] and tied.ties == {0} and not tied.parted
    far, index = follower([3.0, 2.0, 1.99, 0.0], [0, 2])
    assert sorted(index[0]) == [0, 1] and not far.ties and list(far.parted[0].target) == [0, 2]
    fewer, index = follower([3.0, 2.0, 1.999, 0.0], [0])
    assert sorted(index[0]) == [0, 1] and fewer.parted, "a tie never changes how many"
    same, _ = follower([3.0, 2.0, 1.0, 0.0], [1, 0])
    assert not same.parted and not same.ties


def test_an_op_whose_choices_nobody_recorded_is_not_compared() -> None:
    made = Follower([{}], {}, set())
    index = np.array([[1, 2]])
    assert made.settle("op", 0, "rows", index, None) is index and not made.parted


def target_with(reference: Any) -> Any:
    @attrs.define(eq=False)
    class Referred(toys.MarkovTarget):
        @hookimpl
        def sparkwright_target_reference(self, tokens: Any, settle: Any) -> Any:
            return reference(np.array(self.table, dtype=np.float64), list(tokens))

    from tests.core.engines import table

    return toy_config({}, toys.markov_target(table(), build=lambda made: Referred(made.table)))


TEXT = [1, 2, 3, 4] * 10


def test_a_target_without_ops_may_offer_a_reference_of_logits() -> None:
    right = audit_consistency(target_with(lambda table, tokens: table[tokens]), TEXT, reference=20)
    assert right.passed and right.reference == 20
    wrong = audit_consistency(target_with(lambda table, tokens: table[tokens] + np.eye(len(table))[tokens]), TEXT)
    assert wrong.verdict == "reference" and wrong.reference == len(TEXT)
    nothing = audit_consistency(target_with(lambda table, tokens: np.full((len(tokens), len(table)), np.nan)), TEXT)
    assert nothing.verdict == "reference", "what is not a number agrees with nothing"


def test_what_a_reference_gives_is_checked() -> None:
    with pytest.raises(PluginError, match=r"reference gave logits of shape \(40, 3\) for 40 tokens"):
        audit_consistency(target_with(lambda table, tokens: np.zeros((len(tokens), 3))), TEXT)
    with pytest.raises(PluginError, match="'markov' raised in sparkwright_target_reference: ZeroDivisionError"):
        audit_consistency(target_with(lambda table, tokens: 1 / 0), TEXT)


def test_how_much_is_held_and_why_none() -> None:
    config = target_with(lambda table, tokens: table[tokens])
    off = audit_consistency(config, TEXT, reference=0)
    assert off.passed and off.reference == 0 and "switched off: faults that every width" in off.meaning
    bare = toy_config({})
    assert "no reference offered: faults that every width" in audit_consistency(bare, TEXT).meaning
    with pytest.raises(RequestError, match="target 'markov' offers no reference"):
        audit_consistency(bare, TEXT, reference=5)


def test_a_large_model_runs_its_reference_only_when_asked() -> None:
    large: Any = attrs.make_class("Large", ["name", "reference", "facts"])(
        "large", print, attrs.make_class("Facts", ["weight_bytes"])(166_878_536_440)
    )
    count, why = length_for(large, None, 300)
    assert count == 0 and "167 GB" in why and length_for(large, 40, 300) == (40, "")
