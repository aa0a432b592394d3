"""What `audit_consistency` finds: differences by position, their tally by width, and the result with its verdict."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from sparkwright.core.contracts import Promise

Kind: TypeAlias = Literal["structural", "numeric", "reference"]
Verdict: TypeAlias = Literal["equal", "rounding", "reference", "numeric", "structural"]


@attrs.frozen
class Finding:
    """One row that differs from its decode. op, call: the first choice that parts (op "" for logits alone, as in a
    numeric finding); decoded and other: what it took there. size: difference of the logits, largest in the row. Of kind
    "reference": decoding itself differs from the reference, which is `other`."""

    kind: Kind
    mode: str
    rows: int
    first: int
    position: int
    size: float
    op: str = ""
    call: int = 0
    what: str = ""
    decoded: tuple[int, ...] = ()
    other: tuple[int, ...] = ()

    def __str__(self) -> str:
        lost, gained = sorted({*self.decoded} - {*self.other}), sorted({*self.other} - {*self.decoded})
        if self.kind == "reference":
            choice = (
                f"{self.op}, call {self.call} takes other {self.what} than the reference: {_some(gained)} missing, "
                f"{_some(lost)} instead; " if self.op else ""
            )  # fmt: skip
            return f"position {self.position}: {choice}logits differ by {self.size:.3g} from the reference's"
        where = f"position {self.position}, row {self.position - self.first} of {self.rows} in a {self.mode}"
        if not self.op:
            return f"{where}: logits differ by {self.size:.3g}, more than rounding, though the same rows were read"
        return (
            f"{where}: {self.op}, call {self.call} took other {self.what} than decoding: without {_some(lost)}, with "
            f"{_some(gained)}; logits differ by {self.size:.3g}"
        )


def _some(numbers: list[int]) -> str:
    more = ", ..." if len(numbers) > 6 else ""
    return f"{', '.join(map(str, numbers[:6]))}{more}" if numbers else "none"


@attrs.define
class Width:
    """All forwards of one mode and width; mode "reference" is not a forward of the target's. largest: difference of
    logits from decoding, at `position`. ties: rows whose choices differ by a near tie."""

    mode: str
    rows: int
    forwards: int = 0
    compared: int = 0
    largest: float = 0.0
    position: int = -1
    ties: int = 0
    structural: int = 0
    numeric: int = 0

    @property
    def wrong(self) -> int:
        return self.structural + self.numeric


@attrs.frozen
class ConsistencyResult:
    """rounding: largest difference that rounding explains. scale: the largest logit. choices: ops whose choices were
    compared, none for a target that has no such ops: then only logits were. uncompared: forwards that the target cuts
    into pieces, whose choices cannot be told apart. turns: positions that blocks went around. reference: tokens that
    were held against the target's reference; no_reference: why none were. all_turns:
    the target's own, whatever the text's length."""

    promise: Promise
    config_sha256: str
    row_exact: bool
    tokens: int
    turns: tuple[int, ...]
    widths: tuple[Width, ...]
    scale: float
    rounding: float
    choices: tuple[str, ...]
    uncompared: int
    findings: tuple[Finding, ...]
    reference: int = 0
    no_reference: str = "no reference offered"
    all_turns: tuple[int, ...] = ()

    @property
    def unreached(self) -> tuple[int, ...]:
        """Turns of the target that the text ends before: nothing was seen of what changes there."""
        return tuple(turn for turn in self.all_turns if turn >= self.tokens)

    @property
    def verdict(self) -> Verdict:
        forwards = [w for w in self.widths if w.mode != "reference"]
        if any(w.structural for w in forwards):
            return "structural"
        if any(w.numeric for w in forwards):
            return "numeric"
        if any(w.wrong for w in self.widths):
            return "reference"
        return "rounding" if any(w.largest > 0 for w in forwards) else "equal"

    @property
    def passed(self) -> bool:
        """Rounding is no fault, unless rows were promised to be equal bit for bit."""
        return self.verdict == "equal" or (self.verdict == "rounding" and not self.row_exact)

    @property
    def meaning(self) -> str:
        only = "" if self.choices else " Its ops say nothing about what they choose, so only logits were compared."
        if self.passed:
            whose = (
                f"and over {self.reference} of them that function is the model's by its float64 reference; it says "
                "nothing about longer contexts" if self.reference else
                "which says nothing about longer contexts, nor whether that function is the model's "
                f"({self.no_reference}: faults that every width makes alike are not seen)"
            )  # fmt: skip
            if self.unreached:
                only += f" The text ends before {', '.join(map(str, self.unreached))}, where the target turns."
            return (
                f"On these {self.tokens} tokens decode, verify and prefill are one function"
                f"{' up to rounding' if self.verdict == 'rounding' else ''}, {whose}.{only}"
            )
        if self.verdict == "structural":
            return f"A row attends to other rows or experts in a block than alone: {self.findings[0]}."
        if self.verdict == "numeric":
            return f"A row's result depends on its block by more than rounding: {self.findings[0]}.{only}"
        if self.verdict == "reference":
            return (
                "Decode, verify and prefill agree with one another and not with the model's definition, by more than "
                f"rounding: {self.findings[0]}.{only}"
            )
        return "engine.row_exact promises equal bits, and rows of a block differ from decoded ones by rounding."

    def to_dict(self) -> dict[str, Any]:
        data = attrs.asdict(self)
        return data | {
            "verdict": self.verdict, "passed": self.passed, "undecided": False, "unreached": self.unreached,
            "meaning": self.meaning,
        }  # fmt: skip
