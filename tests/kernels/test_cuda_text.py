"""The CUDA text of every op parses: the portable bodies and the CUDA prelude, against declarations of our own.

No device code is made and nothing runs: what a kernel computes on CUDA is measured by docs/benchmarks/kernels_gpu.py.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mslrun.toolchain import clang_driver
from tests.kernels.cases import PLAIN, PROBLEMS, Case, Make, problem

from sparkwright.plugins.deepseek_v4.linear import ExpertBank, Linear
from sparkwright.plugins.drafters.dspark import MARKOV_CHAIN
from sparkwright.plugins.kernels.fused.launcher import Launcher
from sparkwright.plugins.kernels.fused.table import find

pytestmark = pytest.mark.kernels

NAMES = {
    mx.float32: "float", mx.bfloat16: "__nv_bfloat16", mx.float16: "__half", mx.uint32: "uint32_t",
    mx.int32: "int32_t", mx.uint8: "uint8_t",
}  # fmt: skip
Text = Callable[..., list[mx.array]]


def recorder(texts: list[str]) -> Callable[..., Text]:
    """Stands for `mx.fast.cuda_kernel`: writes the function that MLX would make around a body, and answers zeros."""

    def make(name: str, input_names: list[str], output_names: list[str], source: str, header: str) -> Text:
        def call(
            *, inputs: Any, output_shapes: Any, output_dtypes: Any, template: Any = (), **launch: Any
        ) -> list[mx.array]:
            parameters = []
            for parameter, array in zip(input_names, inputs, strict=True):
                parameters.append(f"const {NAMES[array.dtype]}* {parameter}")
                if f"{parameter}_shape" in source:
                    parameters.append(f"const Shape {parameter}_shape")
            for parameter, dtype in zip(output_names, output_dtypes, strict=True):
                parameters.append(f"{NAMES[dtype]}* {parameter}")
            constants = "".join(
                f"using {n} = {NAMES[v]};\n" if isinstance(v, mx.Dtype) else f"constexpr int {n} = {v};\n"
                for n, v in template
            )
            shape = "struct Shape { int at[10]; __device__ int operator[](int i) const { return at[i]; } };\n"
            assert name.isidentifier(), name
            assert launch["grid"][0] % launch["threadgroup"][0] == 0, "CUDA launches whole blocks"
            texts.append(
                f"{header}\nnamespace mlx {{\n{shape}__global__ void {name}({', '.join(parameters)}) {{\n"
                f"{constants}{source}\n}}\n}}\n"
            )
            return [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes, strict=True)]

        return call

    return make


def parse(texts: list[str]) -> None:
    assert texts
    command = [
        *clang_driver(), "-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "-std=c++17", "-fsyntax-only",
        "-Wno-unknown-cuda-version", "-Wno-pass-failed", "-I", str(Path(__file__).parent / "cuda_stub"), "-",
    ]  # fmt: skip
    for text in texts:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[:3000]


@pytest.mark.parametrize("op", [*PROBLEMS, *PLAIN])
def test_the_cuda_text_parses(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(mx.fast, "cuda_kernel", recorder(texts))
    for case in (
        Case(op, "mxfp4", "bfloat16", 6, "wide"),
        Case(op, "affine8", "float16", 1, "odd"),
        Case(op, "float32", "float32", 3, "small"),
    ):
        made = problem(case)
        formats = [a.format for a in made.arguments if isinstance(a, Linear | ExpertBank)]
        kernel = find(Launcher("cuda"), made.spec, case.dtype, "+".join(formats), ())
        if kernel is not None:  # some take bfloat16 alone
            kernel(*made.arguments)
    parse(texts)


def test_the_cuda_text_of_the_markov_chain_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(mx.fast, "cuda_kernel", recorder(texts))
    make = Make(Case("markov_chain", "bfloat16", "float32", 2, "odd"))
    w1, w2 = make.matrix(37, 24)[0], make.matrix(37, 24)[0]
    kernel = find(Launcher("cuda"), MARKOV_CHAIN, "float32", "bfloat16", (24, 37, 37))
    assert kernel is not None
    anchor = mx.array([1], dtype=mx.int32)
    kernel(make.array(2, 37), make.array(2, 8), anchor, w1, w2, None, lambda slot, logits: anchor)
    parse(texts)
