"""MSL text -> C++ text, token by token.

Attributes and address-space keywords go, threadgroup variables move to the runtime's arena, function constants get
their values; everything else, the kernel bodies above all, keeps its own tokens, lines and columns. `thunks.py` finds
the kernels and writes an entry point for each. With `address_spaces=True` the keywords become those of OpenCL instead:
that text is only type-checked (`lint.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mslrun.errors import MslError
from mslrun.thunks import Kernel, find_kernels, make_thunk
from mslrun.tokens import ADDRESS_SPACES, FLOAT, Source

OPENCL = {
    "device": "__global",
    "constant": "__constant",
    "threadgroup": "__local",
    "thread": "__private",
    "kernel": "",
}
Constants = Mapping[int | str, bool | int | float]
QUALIFIER_ENDS = (
    "{",
    ":",
    ";",
)  # what follows an address space that qualifies a method: `T get() const thread {`


@dataclass
class Edits:
    """Changes by token index: removed (newlines stay), replaced, or text put in front."""

    blank: set[int] = field(default_factory=set)
    insert: dict[int, str] = field(default_factory=dict)
    replace: dict[int, str] = field(default_factory=dict)

    def remove(self, src: Source, first: int, last: int, keep_inserts: bool = True) -> None:
        """Removes the token indices first..last."""
        for i in range(first, last + 1):
            tok = src.toks[i]
            if not keep_inserts:
                self.insert.pop(i, None)
            if tok.kind != "line" and "\n" not in tok.text:
                self.blank.add(i)

    def apply(self, src: Source) -> str:
        out = []
        for i, tok in enumerate(src.toks):
            out.append(self.insert.get(i, ""))
            if i in self.blank:
                out.append("".join(c if c == "\n" else " " for c in tok.text))
            else:
                out.append(self.replace.get(i, tok.text))
        return "".join(out)


@dataclass
class Translation:
    """C++ text without entry points; one thunk per kernel, by the name the host uses."""

    body: str
    kernels: list[Kernel]
    thunks: dict[str, str]
    warnings: list[str]

    def only(self, host: str) -> str:
        """The text with one kernel's entry point: a file may hold hundreds of instantiations."""
        return f'#include "msl.h"\n{self.body}\n# 1 "<thunks>"\n{self.thunks[host]}\n'


def translate(
    preprocessed: str, function_constants: Constants | None = None, address_spaces: bool = False
) -> Translation:
    src = Source(preprocessed)
    edits = Edits()
    warnings: list[str] = []
    for p, (end, _) in src.attributes.items():
        edits.blank.update(range(src.at[p], src.at[end] + 1))
    constants = dict(function_constants or {})
    names = _function_constants(src, edits, constants)
    definitions, found, dropped = find_kernels(src)
    _threadgroup_variables(src, edits, address_spaces, warnings)
    if not address_spaces:
        dropped += _same_overloads(src)
    for a, b in dropped:
        edits.remove(src, src.at[a], src.at[b], keep_inserts=False)
    _words(src, edits, address_spaces)
    body = edits.apply(src)
    kernels: list[Kernel] = []
    thunks: dict[str, str] = {}
    for one in found:
        if address_spaces:
            kernels.append(Kernel(one.host, one.expression, [], 0))
        elif one.host not in thunks:
            kernel, thunk = make_thunk(src, one, definitions, constants, names)
            kernels.append(kernel)
            thunks[one.host] = thunk
    return Translation(body, kernels, thunks, warnings)


def _function_constants(src: Source, edits: Edits, given: Constants) -> dict[str, int | str]:
    """`constant bool x [[function_constant(3)]];` gets its value; returns name -> index."""
    names: dict[str, int | str] = {}
    for p, (end, attributes) in src.attributes.items():
        outside = src.inner[p] is None or src.word(src.inner[p] or 0) == "{"
        if "function_constant" not in attributes or src.word(end + 1) != ";" or not outside:
            continue
        name = src.word(p - 1)
        key: int | str = _literal(attributes["function_constant"] or "")
        names[name] = key
        value = given.get(key, given.get(name))
        text = "{}" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
        edits.insert[src.at[end + 1]] = f" = {text}"
        start = src.at[src.statement_start(p)]
        edits.insert[start] = edits.insert.get(start, "") + "static "
    for p in range(len(src)):
        if src.word(p) == "is_function_constant_defined" and src.word(p + 1) == "(":
            name = src.word(p + 2)
            defined = given.get(names.get(name, name), given.get(name)) is not None
            edits.blank.update(range(src.at[p], src.at[p + 3] + 1))
            edits.insert[src.at[p]] = str(defined).lower()
    return names


def _literal(text: str) -> int | str:
    """An index written as a sum or product of literals (macros expand to those), or the text itself."""
    if not re.fullmatch(r"[\d\s+*()]+", text):
        return text
    flat = text.replace("(", " ").replace(")", " ")
    if "*" in flat and "+" in flat and "(" in text:
        raise MslError(f"function_constant({text}): write the index as one number")
    total = 0
    for term in flat.split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor)
        total += product
    return total


def _threadgroup_variables(src: Source, edits: Edits, address_spaces: bool, warnings: list[str]) -> None:
    """`threadgroup T a[n];` in a function becomes a reference into the arena of threadgroup memory."""
    serial = 0
    for p in range(len(src)):
        if not _declares_threadgroup_variable(src, p):
            continue
        start, end = src.statement_start(p), src.statement_end(p)
        name_at = _declarator(src, p + 1, end)
        if name_at is None:
            continue  # a pointer or reference to threadgroup memory
        base, prefix, align = src.text(p + 1, name_at), src.text(start, p), ""
        aligned = re.match(r"alignas \( (.*?) \) ?(.*)", prefix)
        if aligned:
            align, prefix = aligned.groups()
        out = []
        for declarator in _split_declarators(src, name_at, end):
            name, dims = declarator[0], declarator[1:]
            if "=" in dims:  # Metal accepts an initialiser and ignores it
                dims = dims[: dims.index("=")]
                warnings.append(f"threadgroup variable '{name}' has an initialiser: ignored")
            serial += 1
            var, shape = f"msl_tg{serial}_{name}", " ".join(dims)
            if address_spaces:
                words = " ".join(OPENCL.get(word, word) for word in base.split())
                out.append(
                    f"typedef {prefix} {words} {var}_t {shape}; __local {var}_t& {name} = *msl_tg_<{var}_t>()"
                )
            else:
                out.append(
                    f"typedef {prefix} {base} {var}_t {shape}; static char {var}_id; {var}_t& {name} = "
                    f'*({var}_t*)msl_rt_tg(&{var}_id, sizeof({var}_t), {align or f"alignof({var}_t)"}, "{name}")'
                )
        edits.remove(src, src.at[start], src.at[end] - 1)
        edits.insert[src.at[start]] = "; ".join(out)


def _declares_threadgroup_variable(src: Source, p: int) -> bool:
    around = src.inner[p]
    if src.word(p) != "threadgroup" or around is None or src.word(around) != "{" or p in src.in_attribute:
        return False
    after = src.word(p + 1)
    if after in QUALIFIER_ENDS or (after == "=" and src.word(p + 2) in ("default", "delete")):
        return False
    casts = {"reinterpret_cast", "static_cast", "sizeof", "const_cast"}
    if src.word(p - 1) in ("<", ",") and casts & set(src.words(max(0, p - 3), p)):
        return False
    before = src.words(src.statement_start(p), p)
    other = {"using", "typedef", "=", "return", "static_assert", "case", "template"}
    opens = [before[i - 1] for i, word in enumerate(before) if word == "("]
    return not other & set(before) and all(word == "alignas" for word in opens)


def _declarator(src: Source, p: int, end: int) -> int | None:
    """Position of the first declared name, or None for a pointer or a reference."""
    depth = 0
    while p < end:
        word = src.word(p)
        if word == "[" or (depth == 0 and word in ("=", ",")):
            break
        if depth == 0 and word in ("*", "&", "&&"):
            return None
        depth += {"<": 1, "(": 1, ">": -1, ")": -1, ">>": -2}.get(word, 0)
        p += 1
    return p - 1


def _split_declarators(src: Source, p: int, end: int) -> list[list[str]]:
    out: list[list[str]] = [[]]
    depth = 0
    for word in src.words(p, end):
        depth += {"[": 1, "(": 1, "<": 1, "{": 1, "]": -1, ")": -1, ">": -1, "}": -1}.get(word, 0)
        if word == "," and depth == 0:
            out.append([])
        else:
            out[-1].append(word)
    return out


def _same_overloads(src: Source) -> list[tuple[int, int]]:
    """Overloads that differ only in address spaces become one function: the first stays, the others are dropped."""

    def header(a: int, b: int) -> str:
        words = [src.word(p) for p in range(a, b) if p not in src.in_attribute]
        return " ".join(word for word in words if word not in ADDRESS_SPACES)

    seen: dict[tuple[int | None, str], tuple[tuple[str, ...], str]] = {}
    dropped = []
    for p in range(len(src)):
        if src.word(p) != "{" or src.kind(p) != "op":
            continue
        around = src.inner[p]
        if around is not None and not _is_scope(
            header(src.statement_start(around), around), src.word(around)
        ):
            continue
        start = src.statement_start(p)
        head = header(start, p)
        if not head or re.match(r"(inline\s+)?(namespace|enum|extern)\b", head):
            continue
        spaces = tuple(word for word in src.words(start, p) if word in ADDRESS_SPACES)
        close = src.match(p, "{", "}")
        body = header(p, close)
        first = seen.setdefault((around, head), (spaces, body))
        if first[0] != spaces:
            if body != first[1]:
                raise MslError(
                    f"overloads on address space with different bodies are not supported: {head[:200]}"
                )
            dropped.append((start, close))
    return dropped


def _is_scope(head: str, word: str) -> bool:
    """Whether a brace opens a class or a namespace (functions may be declared in it), not a function body."""
    if word != "{" or not re.search(r"\b(struct|class|union|namespace|extern)\b", head):
        return False
    return ")" not in head.split("template")[-1].split(">")[-1]


def _words(src: Source, edits: Edits, address_spaces: bool) -> None:
    """Address-space keywords, float literals without a suffix (MSL has no double), static_cast."""
    for p, i in enumerate(src.at):
        tok, after = src.toks[i], src.word(p + 1)
        if i in edits.blank:
            continue
        if address_spaces and tok.kind == "id" and tok.text in OPENCL:
            qualifier = tok.text == "thread" and after in QUALIFIER_ENDS and src.word(p - 1) in (")", "const")
            edits.replace[i] = "" if qualifier else OPENCL[tok.text]
        elif tok.kind == "id" and tok.text == "constant" and after and after not in QUALIFIER_ENDS:
            edits.replace[i] = "const   "  # the constant address space is read-only
        elif tok.kind == "id" and tok.text in ADDRESS_SPACES:
            edits.blank.add(i)
        elif tok.kind == "num" and FLOAT.fullmatch(tok.text):
            edits.replace[i] = tok.text + "f"
        elif tok.text == "static_cast" and after == "<":  # clang converts no half to bfloat; msl_cast does
            end = src.match(p + 1, "<", ">")
            if not {"*", "&", "&&"} & set(src.words(p, end)):
                edits.insert[i] = edits.insert.get(i, "") + "msl_cast"
                edits.blank.add(i)
