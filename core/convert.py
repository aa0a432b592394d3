"""Values of a configuration -> the annotated types of options, strictly: only int -> float and list -> tuple.

Knows annotations; knows nothing of layers, tables or plugins.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

import cattrs
from cattrs.strategies import configure_union_passthrough

from sparkwright.core.errors import did_you_mean


def _strict(kind: type, *also: type) -> Any:
    """A structure hook that takes its own type (and `also`) and converts nothing else; bool is no number."""

    def structure(value: Any, _: Any) -> Any:
        if not isinstance(value, (kind, *also)) or (isinstance(value, bool) and kind is not bool):
            raise TypeError
        return kind(value)

    return structure


def _is_sequence(hint: Any) -> bool:
    origin: Any = get_origin(hint)
    return origin is tuple or origin is list


def _sequence(value: Any, hint: Any) -> Any:
    if not isinstance(value, (list, tuple)):  # text is iterable, but it is no list
        raise TypeError
    hints: Any = get_args(hint)
    if get_origin(hint) is list:
        return [_CONVERTER.structure(item, hints[0]) for item in value]
    if len(hints) != 2 or hints[1] is not ...:
        if len(value) != len(hints):
            raise TypeError
        return tuple(_CONVERTER.structure(item, each) for item, each in zip(value, hints, strict=True))
    return tuple(_CONVERTER.structure(item, hints[0]) for item in value)


_CONVERTER = cattrs.Converter(forbid_extra_keys=True, detailed_validation=False)
_CONVERTER.register_structure_hook(bool, _strict(bool))
_CONVERTER.register_structure_hook(int, _strict(int))
_CONVERTER.register_structure_hook(float, _strict(float, int))
_CONVERTER.register_structure_hook(str, _strict(str))
_CONVERTER.register_structure_hook_func(_is_sequence, _sequence)
configure_union_passthrough(bool | int | float | str | None, _CONVERTER)

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "nothing"}


def expected(hint: Any) -> str:
    """An annotation of an option in words, for messages and for the reference."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin is tuple and arguments[-1] is not ...:
        return f"a list of {len(arguments)}: {', '.join(expected(a) for a in arguments)}"
    if origin is tuple or origin is list:
        return f"a list of {expected(arguments[0])} each"
    if origin is dict:
        return f"a table of {expected(arguments[1])} each"
    if arguments:
        return " or ".join(expected(a) for a in arguments)
    return _WORDS.get(hint, str(hint))


def convert(value: Any, hint: Any) -> Any:
    """`value` as the annotated type, strictly: only int -> float, list -> tuple. TypeError says what was expected."""
    try:
        return _CONVERTER.structure(value, hint)
    except Exception as error:
        choices = [str(a) for a in get_args(hint)] if get_origin(hint) is Literal else []
        close = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise TypeError(f"expected {expected(hint)}{close}") from error
