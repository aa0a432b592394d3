"""Chat templates: a checkpoint's Jinja program, run in a sandbox with bounded loops and sizes.

The template is data from a stranger. It sees the messages, the special tokens and a handful of harmless functions; it
cannot change what it is given, reach attributes of Python objects, or loop and grow without end. It is not a general
Jinja environment and knows no tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from sparkwright.core.errors import ModelError, RequestError

LARGEST_TEMPLATE = 1 << 20
"""Characters of a template's source; real ones have under 20,000."""
LARGEST_VALUE = 1 << 26
"""Characters or items of a value built by an operator, and characters of a rendered conversation."""
MOST_STEPS = 1_000_000
"""Numbers that all `range` calls of one rendering may give together."""


class _Refusal(Exception):
    """`raise_exception(...)` in a template: the conversation is not one this model can take."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(v) if isinstance(v, str | list | tuple) else None for v in (left, right)]
        if operator == "+":
            size = sum(s or 0 for s in sizes)
        elif operator == "*" and sizes != [None, None]:
            size = max(s if s is not None else int(v) for s, v in zip(sizes, (left, right), strict=True))
            size *= min(s if s is not None else int(v) for s, v in zip(sizes, (left, right), strict=True))
        elif operator == "**" and abs(right) > 64:
            size = LARGEST_VALUE + 1
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("the % operator on strings is not available")
        else:
            size = 0
        if size > LARGEST_VALUE:
            raise SecurityError(f"the result of {operator} would be too large")
        return super().call_binop(context, operator, left, right)


@attrs.define(eq=False)
class ChatTemplate:
    """A compiled template and the file it came from."""

    origin: str
    template: Template

    @classmethod
    def load(cls, directory: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
        """chat_template.jinja, or chat_template of tokenizer_config.json (the one named "default" of several)."""
        path = directory / "chat_template.jinja"
        source: Any = None
        origin = str(path)
        if path.is_file():
            try:
                source = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ModelError(f"{path}: cannot be read ({error})") from None
        else:
            origin = f"{directory / 'tokenizer_config.json'}: chat_template"
            source = config.get("chat_template")
            if isinstance(source, list):
                named = {e.get("name"): e.get("template") for e in source if isinstance(e, Mapping)}
                source = named.get("default")
        if source is None:
            return None
        if not isinstance(source, str):
            raise ModelError(f"{origin}: expected a string, found {type(source).__name__}")
        return cls.compile(source, origin)

    @classmethod
    def compile(cls, source: str, origin: str) -> ChatTemplate:
        if len(source) > LARGEST_TEMPLATE:
            raise ModelError(
                f"{origin}: {len(source)} characters; templates of up to {LARGEST_TEMPLATE} are accepted"
            )
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
        try:
            return cls(origin, environment.from_string(source))
        except TemplateSyntaxError as error:
            raise ModelError(
                f"{origin}, line {error.lineno}: not a valid chat template ({error.message})"
            ) from None
        except RecursionError:
            raise ModelError(f"{origin}: nested too deeply to be a chat template") from None

    def render(self, messages: Sequence[Mapping[str, str]], tokens: Mapping[str, str]) -> str:
        """The conversation as the model reads it, up to where the assistant's answer begins.

        RequestError for a conversation the template refuses, ModelError for a template that fails.
        """
        plain = [_message(i, message) for i, message in enumerate(messages)]
        if not plain:
            raise RequestError("chat: no messages were given")
        variables = {
            **tokens,
            "messages": plain,
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
        }
        pieces: list[str] = []
        size = 0
        try:
            for piece in self.template.generate(**variables, range=_bounded_range()):
                size += len(piece)
                if size > LARGEST_VALUE:
                    raise SecurityError(f"it wrote more than {LARGEST_VALUE} characters")
                pieces.append(piece)
        except _Refusal as refusal:
            raise RequestError(f"chat: this model's template refuses the conversation: {refusal}") from None
        except (TemplateError, RecursionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise ModelError(
                f"{self.origin}: the chat template failed ({type(error).__name__}: {error})"
            ) from None
        return "".join(pieces)


def _message(index: int, message: Mapping[str, str]) -> dict[str, str]:
    for name in ("role", "content"):
        if not isinstance(message.get(name), str):
            raise RequestError(f"chat: message {index} has no {name} (a string); found {message.get(name)!r}")
    return dict(message)


def _refuse(message: object) -> None:
    raise _Refusal(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=None if indent is None else min(indent, 16))


def _bounded_range() -> Callable[..., range]:
    left = MOST_STEPS

    def bounded(*limits: int) -> range:
        nonlocal left
        numbers = range(*limits)
        left -= len(numbers)
        if left < 0:
            raise SecurityError(f"range gave more than {MOST_STEPS} numbers")
        return numbers

    return bounded
