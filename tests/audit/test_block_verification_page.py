"""The worked example of docs/block-verification runs, and its table is what the formulas give."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "block-verification.md").read_text(encoding="utf-8")


def test_the_worked_example_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    assert code.count("assert") == 5
    exec(compile(code, "docs/block-verification.md", "exec"), {})


def test_the_table_is_exact() -> None:
    p, q = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
    rows = re.findall(r"^\| ([01]) ([01]) \| (.+) \|$", PAGE, flags=re.MULTILINE)
    assert len(rows) == 4
    law = {z: Fraction(0) for z in (0, 1)}
    for (a, b), (x, y, cells) in zip(product((0, 1), repeat=2), rows, strict=True):
        assert (int(x), int(y)) == (a, b)
        w1 = min(Fraction(1), p[a] / q[a])
        w2 = min(Fraction(1), w1 * p[b] / q[b])
        rest = sum(max(w1 * p[z] - q[z], Fraction(0)) for z in (0, 1))
        h1 = rest / (rest + 1 - w1) if rest else Fraction(0)
        at_least_one = 1 - (1 - h1) * (1 - w2)
        wanted = [q[a] * q[b], w1, h1, w2, at_least_one, w2]
        assert [Fraction(cell.strip()) for cell in cells.split("|")] == wanted
        # the first token's law: a where at least one draft is accepted, else the residual of row 0, which is token 1
        law[a] += q[a] * q[b] * at_least_one
        law[1] += q[a] * q[b] * (1 - at_least_one)
    assert law == dict(enumerate(p))
