"""Kernels of a source: finding them, reading their parameters, writing the entry point that the runtime calls.

An entry point takes the runtime's record of a thread (`msl::Args`) and calls the kernel with its buffers and
attributes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from mslrun.errors import MslError
from mslrun.tokens import ADDRESS_SPACES, Attributes, Source

BUILTINS = {  # attribute -> expression on the thread's Args
    "thread_position_in_grid": "a->tpig",
    "threadgroup_position_in_grid": "a->tgpig",
    "thread_position_in_threadgroup": "a->tpit",
    "threads_per_threadgroup": "a->tpt",
    "threads_per_grid": "a->tpg",
    "threadgroups_per_grid": "a->tgpg",
    "dispatch_threads_per_threadgroup": "a->dtpt",
    "thread_index_in_simdgroup": "&a->lane",
    "simdgroup_index_in_threadgroup": "&a->sg",
    "simdgroups_per_threadgroup": "&a->sgs",
    "dispatch_simdgroups_per_threadgroup": "&a->dsgs",
    "thread_index_in_threadgroup": "&a->tiit",
    "threads_per_simdgroup": "&a->width",
    "thread_execution_width": "&a->width",
    "thread_index_in_quadgroup": "msl::One(a->lane % 4)",
    "quadgroup_index_in_threadgroup": "msl::One(a->tiit / 4)",
    "quadgroups_per_threadgroup": "msl::One((a->tpt[0] * a->tpt[1] * a->tpt[2] + 3) / 4)",
    "grid_origin": "msl::One(0)",
    "grid_size": "a->tpg",
}


@dataclass
class Parameter:
    name: str
    kind: Literal["buffer", "threadgroup", "attribute"]
    index: int = -1
    absent: bool = False  # switched off by a function constant


@dataclass
class Kernel:
    """A kernel as the host sees it: its name, the C++ expression that names it, its parameters."""

    host: str
    expression: str
    parameters: list[Parameter]
    max_threads: int


@dataclass
class Definition:
    parameters: list[tuple[int, int]]  # position ranges
    attributes: Attributes


@dataclass
class Found:
    host: str
    expression: str
    function: str
    attributes: Attributes


def find_kernels(src: Source) -> tuple[dict[str, Definition], list[Found], list[tuple[int, int]]]:
    """Definitions by function name, the kernels a host can ask for, and the instantiations to remove."""
    definitions: dict[str, Definition] = {}
    found: list[Found] = []
    dropped: list[tuple[int, int]] = []
    for p in range(len(src)):
        marked = p in src.attributes and "kernel" in src.attributes[p][1]
        if not (marked or (src.word(p) == "kernel" and p not in src.in_attribute)):
            continue
        start = src.statement_start(p)
        attributes: Attributes = {}
        for q, (_, here) in src.attributes.items():
            if start <= q <= p:
                attributes.update(here)
        template = src.word(start) == "template"
        if template and src.word(start + 1) != "<":  # an explicit instantiation
            end = src.statement_end(p)
            found.append(_instantiation(src, end, attributes))
            dropped.append((start, end))
        else:
            q = p
            while src.word(q) != "(" or q in src.in_attribute:
                q += 1
                if q >= len(src):
                    raise MslError("a kernel without a parameter list")
            name = src.word(q - 1)
            definitions[name] = Definition(_parameters(src, q), attributes)
            if not template:
                found.append(Found(name, name, name, attributes))
    return definitions, found, dropped


def _instantiation(src: Source, end: int, attributes: Attributes) -> Found:
    """`template [[host_name("a")]] [[kernel]] decltype(f<int>) f<int>;`: the last name before the `;`."""
    stop = src.opener[end - 1] if src.word(end - 1) == ")" else end
    a = stop - 1
    if src.word(a) in (">", ">>"):
        depth = 0
        while True:
            depth += {">": 1, ">>": 2, "<": -1}.get(src.word(a), 0)
            if depth <= 0:
                break
            a -= 1
        a -= 1
    function = src.word(a)
    while src.word(a - 1) == "::":
        a -= 2
    expression = src.text(a, stop)
    quoted = re.findall(r'"(?:[^"\\]|\\.)*"', attributes.get("host_name") or "")
    return Found("".join(map(json.loads, quoted)) or expression, expression, function, attributes)


def _parameters(src: Source, opening: int) -> list[tuple[int, int]]:
    close = src.match(opening, "(", ")")
    out, a, b, depth = [], opening + 1, opening + 1, 0
    while b <= close:
        if b in src.attributes:
            b = src.attributes[b][0] + 1
            continue
        word = src.word(b)
        if b != close:
            depth += {"(": 1, "[": 1, "{": 1, "<": 1, ")": -1, "]": -1, "}": -1, ">": -1, ">>": -2}.get(
                word, 0
            )
        if (word == "," and depth == 0) or b == close:
            if b > a:
                out.append((a, b))
            a = b + 1
        b += 1
    return out


def make_thunk(
    src: Source,
    one: Found,
    definitions: Mapping[str, Definition],
    constants: Mapping[int | str, object],
    constant_names: Mapping[str, int | str],
) -> tuple[Kernel, str]:
    if one.function not in definitions:
        raise MslError(f"kernel {one.host}: no definition of '{one.function}' found")
    definition = definitions[one.function]
    arguments: list[str] = []
    parameters: list[Parameter] = []
    next_index = {"buffer": 0, "threadgroup": 0}
    for a, b in definition.parameters:
        attributes: Attributes = {}
        words: list[str] = []
        q = a
        while q < b:
            if q in src.attributes:
                attributes.update(src.attributes[q][1])
                q = src.attributes[q][0] + 1
            else:
                words.append(src.word(q))
                q += 1
        for mark in ("=", "["):  # a default value, an array bound
            if mark in words:
                words = words[: words.index(mark)]
        name = words[-1]
        known = [key for key in attributes if key in BUILTINS]
        if known:
            kept = [word for word in words[:-1] if word not in ADDRESS_SPACES and word != "const"]
            arguments.append(f"msl::attr<{' '.join(kept)}>({BUILTINS[known[0]]})")
            parameters.append(Parameter(name, "attribute"))
            continue
        if {"stage_in", "texture", "sampler"} & set(attributes) or any(
            w.startswith("texture") for w in words
        ):
            raise MslError(
                f"kernel {one.host}: parameter '{name}' is a texture, sampler or stage_in: not supported"
            )
        how = "ref" if "&" in words else "ptr"
        kind: Literal["buffer", "threadgroup"] = "threadgroup" if "threadgroup" in words else "buffer"
        if kind == "buffer" and not {"device", "constant"} & set(words):
            raise MslError(
                f"kernel {one.host}: parameter '{name}' has no device, constant or threadgroup address space and "
                f"no known attribute ({', '.join(attributes) or 'none given'})"
            )
        given = attributes.get(kind)
        index = int(given) if given else next_index[kind]
        next_index[kind] = index + 1
        arguments.append(f"msl::{how}{{a->{'tgbuf' if kind == 'threadgroup' else 'buf'}[{index}]}}")
        switch = attributes.get("function_constant")
        value = constants.get(constant_names.get(switch, switch), constants.get(switch)) if switch else True
        parameters.append(Parameter(name, kind, index, absent=not value))
    limit = {**definition.attributes, **one.attributes}.get("max_total_threads_per_threadgroup") or ""
    kernel = Kernel(one.host, one.expression, parameters, int(limit) if limit.isdigit() else 0)
    thunk = (
        f'extern "C" __attribute__((visibility("default"))) MSL_NOSAN void msl_entry(const msl::Args* a) '
        f"{{ (void)a; {one.expression}({', '.join(arguments)}); }}"
    )
    return kernel, thunk
