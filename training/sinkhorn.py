"""Sinkhorn's normalisations of small square matrices, forward and backward in one kernel each (CUDA), or in PyTorch.

As PyTorch operations they are hundreds of tiny kernels, and torch.compile spends minutes on fusing them.
"""

from __future__ import annotations

import os
from typing import Any

import inputs
import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU installation: the PyTorch form serves
    triton = None


def plain(c: Tensor, iterations: int, eps: float) -> Tensor:
    """c [.., n, n] positive -> nearly doubly stochastic: columns first, then rows and columns in turn."""
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


if triton is not None:

    @triton.jit
    def forward_kernel(x, y, states, rows, eps, STEPS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        i, j = tl.arange(0, N), tl.arange(0, N)
        at = row[:, None, None].to(tl.int64) * (N * N) + i[None, :, None] * N + j[None, None, :]
        inside = (row < rows)[:, None, None] & (i >= 0)[None, :, None] & (j >= 0)[None, None, :]
        size = rows.to(tl.int64) * (N * N)
        c = tl.load(x + at, mask=inside, other=1.0)
        for step in range(STEPS):
            tl.store(states + step * size + at, c, mask=inside)
            if step % 2 == 0:
                c = c / (tl.sum(c, axis=1)[:, None, :] + eps)
            else:
                c = c / (tl.sum(c, axis=2)[:, :, None] + eps)
        tl.store(y + at, c, mask=inside)

    @triton.jit
    def backward_kernel(dy, dx, states, rows, eps, STEPS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        i, j = tl.arange(0, N), tl.arange(0, N)
        at = row[:, None, None].to(tl.int64) * (N * N) + i[None, :, None] * N + j[None, None, :]
        inside = (row < rows)[:, None, None] & (i >= 0)[None, :, None] & (j >= 0)[None, None, :]
        size = rows.to(tl.int64) * (N * N)
        d = tl.load(dy + at, mask=inside, other=0.0)
        for back in range(STEPS):
            step = STEPS - 1 - back
            c = tl.load(states + step * size + at, mask=inside, other=1.0)
            if step % 2 == 0:
                down = tl.sum(c, axis=1)[:, None, :] + eps  # another name in each branch: Triton types a name once
                d = (d - tl.sum(d * c / down, axis=1)[:, None, :]) / down
            else:
                across = tl.sum(c, axis=2)[:, :, None] + eps
                d = (d - tl.sum(d * c / across, axis=2)[:, :, None]) / across
        tl.store(dx + at, d, mask=inside)


BLOCK = 128


class Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, c: Tensor, iterations: int, eps: float) -> Tensor:
        c = c.contiguous()
        n, steps = c.shape[-1], 2 * iterations - 1
        rows = c.numel() // (n * n)
        y, states = torch.empty_like(c), torch.empty(steps, *c.shape, device=c.device, dtype=c.dtype)
        forward_kernel[(triton.cdiv(rows, BLOCK),)](c, y, states, rows, eps, steps, n, BLOCK)
        ctx.save_for_backward(states)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (states,) = ctx.saved_tensors
        dy = grads[0].contiguous()
        n = dy.shape[-1]
        rows = dy.numel() // (n * n)
        dx = torch.empty_like(dy)
        backward_kernel[(triton.cdiv(rows, BLOCK),)](dy, dx, states, rows, ctx.eps, len(states), n, BLOCK)
        return dx, None, None


def sinkhorn(c: Tensor, iterations: int, eps: float) -> Tensor:
    return Fused.apply(c, iterations, eps) if c.is_cuda and triton is not None else plain(c, iterations, eps)


def check(device: str) -> None:
    """Stops when the kernels and PyTorch disagree on random matrices."""
    if triton is None:
        inputs.stop("there is no triton here to compile the kernels with; a GPU build of PyTorch brings it along")
    if device == "cpu" and not os.environ.get("TRITON_INTERPRET"):
        inputs.stop("triton compiles for a GPU, and PyTorch finds none; TRITON_INTERPRET=1 runs the kernels on a CPU")
    x = (torch.rand(1000, 4, 4, device=device).exp() + 0.1).requires_grad_()
    w = torch.randn(1000, 4, 4, device=device)
    found = []
    for f in (plain, Fused.apply):
        y = f(x, 20, 1e-6)
        found.append((y.detach(), torch.autograd.grad((y * w).sum(), x)[0]))
    for a, b in zip(*found, strict=True):
        difference = float((a - b).abs().max())
        if not difference < 1e-4:
            raise SystemExit(f"sinkhorn: the kernel and PyTorch differ by {difference}")
    print("sinkhorn kernels agree with PyTorch", flush=True)


if __name__ == "__main__":  # TRITON_INTERPRET=1 runs this on a CPU
    check("cuda" if torch.cuda.is_available() else "cpu")
