"""Prompts of a comparison: the bundled sets, written for this project, and files of the user's own.

A file ending in .jsonl or .json holds one JSON value a line: a string, or an object with `text` (or `prompt`) and
optionally `id`, `kind`, `chat`. Any other file is text, one prompt a line; empty lines are skipped.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from sparkwright.core.compare.records import CompareError, Prompt
from sparkwright.core.errors import did_you_mean

SETS = ("code", "prose", "chat", "long-context")
"""The bundled sets; "all" is all of them."""
_KEYS = {"id", "kind", "text", "prompt", "chat"}


def load_prompts(source: str | Path) -> tuple[Prompt, ...]:
    """Prompts of a bundled set ("code", ..., "all", several with commas) or of a file.

    CompareError says what is wrong, and in which line.
    """
    names = [name.strip() for name in str(source).split(",")]
    if all(name in SETS or name == "all" for name in names):
        chosen = SETS if "all" in names else [name for name in SETS if name in names]
        return tuple(prompt for name in chosen for prompt in _bundled(name))
    return _from_file(Path(source))


def _bundled(name: str) -> tuple[Prompt, ...]:
    text = files(__name__).joinpath(f"{name}.jsonl").read_text(encoding="utf-8")
    return _parse(text, f"the bundled set {name}", name, json_lines=True)


def _from_file(path: Path) -> tuple[Prompt, ...]:
    try:
        raw = path.expanduser().read_bytes()
    except FileNotFoundError:
        hint = did_you_mean(str(path), [*SETS, "all"])
        raise CompareError(
            f"prompts file {path} does not exist{hint}; give a file, or a bundled set: {', '.join(SETS)}, all"
        ) from None
    except OSError as error:
        raise CompareError(f"prompts file {path} cannot be read: {error.strerror}") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise CompareError(
            f"prompts file {path}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        ) from None
    return _parse(text, f"prompts file {path}", path.stem, json_lines=path.suffix in (".jsonl", ".json"))


def _parse(text: str, who: str, kind: str, *, json_lines: bool) -> tuple[Prompt, ...]:
    prompts: list[Prompt] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{who}, line {number}"
        prompt = _from_json(line, where, kind, number) if json_lines else Prompt(f"{kind}-{number}", kind, line.strip())
        if prompt.id in seen:
            raise CompareError(f"{where}: id {prompt.id!r} is already used in line {seen[prompt.id]}; ids must differ")
        seen[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise CompareError(f"{who} holds no prompts; expected one a line")
    return tuple(prompts)


def _from_json(line: str, where: str, kind: str, number: int) -> Prompt:
    try:
        value: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise CompareError(
            f"{where} is not JSON ({error.msg} at column {error.colno}); expected one string or object a line"
        ) from None
    except RecursionError:
        raise CompareError(f"{where} is nested too deeply; expected one string or object a line") from None
    if isinstance(value, str):
        value = {"text": value}
    if not isinstance(value, dict):
        raise CompareError(f"{where} is a JSON {type(value).__name__}; expected a string, or an object with 'text'")
    unknown = sorted(set(value) - _KEYS)
    if unknown:
        raise CompareError(
            f"{where}: unknown key {unknown[0]!r}{did_you_mean(unknown[0], _KEYS)}; known: {sorted(_KEYS)}"
        )
    text = value.get("text", value.get("prompt"))
    if not isinstance(text, str) or not text.strip():
        raise CompareError(f"{where}: 'text' is {text!r}; expected a prompt that is not empty")
    chat = value.get("chat")
    if chat is not None and not isinstance(chat, bool):
        raise CompareError(f"{where}: 'chat' is {chat!r}; expected true or false")
    name, own_kind = value.get("id", f"{kind}-{number}"), value.get("kind", kind)
    if not isinstance(name, str) or not isinstance(own_kind, str):
        raise CompareError(f"{where}: 'id' and 'kind' must be text")
    return Prompt(name, own_kind, text, chat)
