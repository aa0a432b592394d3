"""Muon for matrices, Adam for the rest, on flat buffers; nothing waits for the host, so a step can be a CUDA graph.

Learning rates go up shortly, stay, and come down linearly to zero, by the share of the *time* that is spent, not of
steps: a run is given minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

ALIGN = 64  # elements: compiled kernels want aligned parameters


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


class Optimiser:
    def __init__(
        self, model: nn.Module, muon: float, adam: float, slow: tuple[str, ...] = (), extra: int = 0,
        momentum: float = 0.95, shrink: float = 0.02,
    ) -> None:  # fmt: skip
        """slow: name parts of parameters that Adam moves at a tenth of its rate; extra: numbers that travel behind the
        gradients when several processes average theirs; shrink: decoupled weight decay of what Muon moves."""
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
        device, at, places = matrices[0].device, 0, []
        for p in self.parameters:
            places.append(at)
            at += p.numel() + -p.numel() % ALIGN
        self.values = torch.zeros(at, device=device)
        self.flat = torch.zeros(at + extra, device=device)  # gradients, then the extra numbers
        self.grad, self.extra = self.flat[:at], self.flat[at:]
        self.views = []
        for p, first in zip(self.parameters, places, strict=True):
            here = self.values[first : first + p.numel()].view(p.shape)
            here.copy_(p.data)
            p.data = here
            self.views.append(self.grad[first : first + p.numel()].view(p.shape))
        begin = places[len(matrices)]
        self.adam = slice(begin, at)
        self.rates = torch.full((at - begin,), adam, device=device)
        if gentle:
            self.rates[places[len(matrices) + len(rest)] - begin :] = adam / 10
        self.m, self.v = torch.zeros(at - begin, device=device), torch.zeros(at - begin, device=device)
        self.factor, self.count = torch.zeros((), device=device), torch.zeros((), device=device)
        self.lr, self.momentum, self.matrices, self.shrink = muon, momentum, slice(0, begin), shrink
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, p in enumerate(matrices):
            groups[tuple(p.shape)].append(i)
        self.groups = [([matrices[i].data for i in g], [self.views[i] for i in g]) for g in groups.values()]
        self.state = [torch.zeros(len(g), *g[0].shape, device=device) for g, _ in self.groups]

    def differentiate(self, loss: Tensor) -> None:
        """Gradients of the loss into `flat`."""
        grads = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        pairs = [(view, grad) for view, grad in zip(self.views, grads, strict=True) if grad is not None]
        torch._foreach_copy_([view for view, _ in pairs], [grad for _, grad in pairs])

    @torch.no_grad()
    def step(self) -> None:
        """One step along `flat`, at `factor` times the learning rates."""
        self.grad.mul_((1 / (self.grad.norm() + 1e-6)).clamp(max=1.0))
        self.values[self.matrices].mul_(1 - self.factor * (self.lr * self.shrink))
        for (values, grads), state in zip(self.groups, self.state, strict=True):
            grad = torch.stack(grads)
            state.lerp_(grad, 1 - self.momentum)
            update = grad.lerp(state, self.momentum)
            rows, columns = update.shape[-2:]
            size = self.lr * max(1.0, rows / columns) ** 0.5
            direction = orthogonal(update.flatten(0, -3)).view_as(update).float() * (self.factor * -size)
            torch._foreach_add_(values, list(direction.unbind(0)))
        self.count += 1
        g = self.grad[self.adam]
        self.m.lerp_(g, 0.1)
        self.v.lerp_(g * g, 0.05)
        root = (self.v / (1 - 0.95**self.count)).sqrt() + 1e-10
        self.values[self.adam].sub_(self.m / (1 - 0.9**self.count) / root * self.rates * self.factor)

    def report(self, numbers: Sequence[Tensor]) -> None:
        """Numbers into the place behind the gradients."""
        self.extra.copy_(torch.cat([n.detach().float().flatten() for n in numbers]))


def factor(share: float, warm: float = 0.02, decay: float = 0.5) -> float:
    """Learning rate over its top, at a share of the run."""
    return min(share / warm, 1.0, max((1 - share) / decay, 0.0)) if share < 1 else 0.0
