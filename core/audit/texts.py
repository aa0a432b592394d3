"""Texts that live audits run a model over when none is given, and how one is read from a file."""

from __future__ import annotations

from pathlib import Path

from sparkwright.core.errors import RequestError

PROMPTS = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "The keeper wound the clock every evening at nine, and every evening",
    "1, 1, 2, 3, 5, 8, 13,",
)


def prompts_from(path: Path | None) -> list[str]:
    """One prompt for each non-empty line of a UTF-8 file; the built-in ones for None."""
    if path is None:
        return list(PROMPTS)
    lines = [line for line in read_text(path).splitlines() if line.strip()]
    if not lines:
        raise RequestError(f"the prompt file {path} holds no line of text")
    return lines


def text_from(path: Path | None) -> str:
    """The text of a UTF-8 file; for None all bundled prompts of `compare` in a row, about 9,000 tokens of them."""
    if path is not None:
        return read_text(path)
    from sparkwright.core.compare.prompts import load_prompts

    return "\n\n".join(prompt.text for prompt in load_prompts("all"))


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not UTF-8 (at byte {error.start})") from error
