"""The example packages of this repository, and how much code each has."""

from __future__ import annotations

import ast
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/pyproject.toml"))


def module(name: str) -> Path:
    return EXAMPLES / name / f"sparkwright_{name}.py"


def lines_of_code(text: str) -> int:
    """Lines that are not empty, not a comment and not in a docstring (a text that stands by itself)."""
    prose: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            assert node.end_lineno is not None
            prose |= set(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(bool(line.strip()) and line.strip()[0] != "#" and number not in prose for number, line in lines)
