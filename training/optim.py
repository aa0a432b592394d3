"""Muon for matrices, Adam for the rest; learning rates go up shortly, stay, and come down linearly to zero.

The schedule is by the share of the *time* that is spent, not of steps: a run is given minutes.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn


@torch.no_grad()
def orthogonal(g: Tensor, steps: int = 5) -> Tensor:
    """The orthogonal factor of each matrix of g [n, rows, columns], roughly (Newton-Schulz, bf16)."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Muon:
    """Parameters of one shape are handled as one batch; a bank of experts is a batch of its own."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95) -> None:
        self.lr, self.momentum = lr, momentum
        groups: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
        for p in parameters:
            groups[tuple(p.shape)].append(p)
        self.groups = list(groups.values())
        self.state = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]

    @torch.no_grad()
    def step(self, factor: float) -> None:
        for group, state in zip(self.groups, self.state, strict=True):
            grad = torch.stack([p.grad if p.grad is not None else torch.zeros_like(p) for p in group])
            state.lerp_(grad, 1 - self.momentum)
            update = grad.lerp(state, self.momentum)
            rows, columns = update.shape[-2:]
            direction = orthogonal(update.flatten(0, -3)).view_as(update).float()
            size = self.lr * factor * max(1.0, rows / columns) ** 0.5
            torch._foreach_add_(group, list(direction.unbind(0)), alpha=-size)


class Optimiser:
    def __init__(self, model: nn.Module, muon: float, adam: float, slow: tuple[str, ...] = ()) -> None:
        """slow: name parts of parameters that Adam moves at a tenth of its rate."""
        matrices, rest, gentle = [], [], []
        for name, p in model.named_parameters():
            table = any(part in name for part in ("embed", "head.weight", "markov", "confidence", "hc_"))
            if p.ndim >= 2 and min(p.shape[-2:]) >= 12 and not table and "ape" not in name:
                matrices.append(p)
            elif any(part in name for part in slow):
                gentle.append(p)
            else:
                rest.append(p)
        self.parameters = [*matrices, *rest, *gentle]
        self.muon = Muon(matrices, muon)
        fused = matrices[0].is_cuda
        self.adam = torch.optim.AdamW(
            [{"params": rest, "base": adam}, {"params": gentle, "base": adam / 10}],
            lr=adam, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=fused,
        )  # fmt: skip

    def step(self, factor: float) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.muon.step(factor)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * factor
        self.adam.step()
        for p in self.parameters:
            p.grad = None


def factor(share: float, warm: float = 0.01, decay: float = 0.5) -> float:
    """Learning rate over its top, at a share of the run."""
    return min(share / warm, 1.0, max((1 - share) / decay, 0.0)) if share < 1 else 0.0
