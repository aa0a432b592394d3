"""What Apple's compiler refuses and clang, compiling for a CPU, does not: address spaces and double.

The text is parsed as C++ for OpenCL 2021, clang's nearest relative of MSL, against the same shim; two token rules
catch what that language accepts. Nothing is run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable
from pathlib import Path

from mslrun.errors import ToolchainError
from mslrun.tokens import ADDRESS_SPACES, Source
from mslrun.toolchain import SHIM, clang_driver, generated, preprocess
from mslrun.translate import Constants, translate

SCALARS = frozenset(
    [
        "float",
        "half",
        "bfloat",
        "int",
        "uint",
        "short",
        "ushort",
        "char",
        "uchar",
        "long",
        "ulong",
        "bool",
        "void",
        "uint8_t",
        "int8_t",
        "uint16_t",
        "int16_t",
        "uint32_t",
        "int32_t",
        "uint64_t",
        "int64_t",
        "float2",
        "float3",
        "float4",
        "half2",
        "half4",
        "uint2",
        "uint4",
        "int4",
        "T",
        "U",
        "bfloat16_t",
        "float16_t",
        "size_t",
    ]
)


def lint(
    source: str,
    includes: Iterable[str | Path] = (),
    function_constants: Constants | None = None,
    filename: str = "kernel.metal",
    instantiate: Collection[str] = (),
) -> list[str]:
    """Messages, none for a clean source. Templates are checked where they are instantiated; `instantiate` names
    host names of kernel templates to instantiate here."""
    pre = preprocess(source, includes, filename=filename)
    translated = translate(pre, function_constants, address_spaces=True)
    wanted = [k.expression for k in translated.kernels if k.host in instantiate and "<" in k.expression]
    # A line of its own in a file of its own: msl.h must not shift the lines of the kernel.
    text = f'#include "msl.h"\n{translated.body}\n# 1 "<instantiations>"\n' + "".join(
        f"template __typeof__({e}) {e};\n" for e in wanted
    )
    command = [
        *clang_driver(), "-x", "clcpp", "-cl-std=clc++2021", "-cl-no-stdinc",
        "-Xclang", "-cl-ext=+cl_khr_fp16,+__cl_clang_function_pointers", "-DMSL_LINT", "-fsyntax-only",
        "-ferror-limit=100", "-Wno-everything", "-I", str(SHIM), "-I", str(generated()), "-",
    ]  # fmt: skip
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    if done.returncode and not any(": error:" in line or "fatal error" in line for line in lines):
        raise ToolchainError("the address-space check did not run: " + done.stderr[:500])
    messages = []
    for i, line in enumerate(lines):
        if ": error:" not in line and "fatal error" not in line:
            continue
        notes = "\n".join(lines[i + 1 : i + 12])
        if (
            "no matching constructor" in line
            and "implicit copy constructor" in notes
            and "'__constant'" in notes
        ):
            continue  # copying a struct out of constant memory is fine in MSL
        messages.append(line)
    return messages + token_rules(Source(pre), filename)


def token_rules(src: Source, filename: str) -> list[str]:
    """No `double`; every pointer or reference to a scalar type names an address space."""
    messages = []
    for p in range(1, len(src)):
        tok = src.toks[src.at[p]]
        if tok.file != filename:
            continue
        if tok.text == "double":
            messages.append(f"{tok.file}:{tok.line}: 'double' is not supported in MSL")
        if tok.text in ("*", "&") and src.word(p - 1) in SCALARS and _is_bare_pointer(src, p):
            name = src.word(p + 1) if src.word(p + 1).isidentifier() else ""
            what = f"{src.word(p - 1)}{tok.text}{name}"
            messages.append(f"{tok.file}:{tok.line}: pointer/reference '{what}' without an address space")
    return messages


def _is_bare_pointer(src: Source, p: int) -> bool:
    after = src.word(p + 1)
    identifier = after.isidentifier()
    if not identifier and after != ")":
        return False
    if (
        identifier
        and after not in ("const", "restrict", "__restrict")
        and src.word(p + 2) not in (",", ")", "=", ";", "[", ":")
    ):
        return False  # a product, not a declarator
    if identifier and after in ADDRESS_SPACES:
        return False
    q = p - 1
    while q >= 0 and (src.word(q).isidentifier() or src.word(q) == "::"):
        if src.word(q) in ADDRESS_SPACES:
            return False
        q -= 1
    return src.word(q) in ("(", ",", ";", "{", "}", "<")
