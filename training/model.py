"""The target in PyTorch, in the form that trains fast: whole sequences at once, every expert for every token.

Names and meaning are the official checkpoint's (docs/demo-model.md names the sections); a state dict of this module is
the checkpoint. It holds no cache and cannot decode incrementally: that is sparkwright's business, and sample.py's.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sinkhorn import sinkhorn
from torch import Tensor, nn

NEVER = -1e30
"""A masked score: finite, so that a query without any compressed row has gradients without NaN."""

CONFIG: dict[str, Any] = json.loads((Path(__file__).parent / "config.json").read_text())


def rms(x: Tensor, eps: float, weight: Tensor | None = None) -> Tensor:
    """x / rms(x) over the last axis, in float32, times a weight if there is one; result in x's dtype."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y if weight is None else y * weight).to(x.dtype)


def frequencies(config: dict[str, Any], compressed: bool) -> Tensor:
    """Angle per position of each rotary pair [R / 2]; YaRN on compressed layers (no attention factor)."""
    width = config["qk_rope_head_dim"]
    base = float(config["compress_rope_theta"] if compressed else config["rope_theta"])
    f = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    if compressed:
        yarn = config["rope_scaling"]
        length = yarn["original_max_position_embeddings"]

        def turn(rotations: float) -> float:
            return width * math.log(length / (2 * math.pi * rotations)) / (2 * math.log(base))

        lo, hi = max(math.floor(turn(yarn["beta_fast"])), 0), min(math.ceil(turn(yarn["beta_slow"])), width - 1)
        ramp = ((torch.arange(width // 2) - lo) / max(hi - lo, 1e-3)).clamp(0, 1)
        f = f / yarn["factor"] * ramp + f * (1 - ramp)
    return f.float()


def rotate(x: Tensor, positions: Tensor, f: Tensor, inverse: bool = False) -> Tensor:
    """Rotate the trailing channels of x [..., S, D] (interleaved pairs) by positions [S] * f; float32 inside."""
    angle = positions.float()[:, None] * f * (-1 if inverse else 1)  # [S, R / 2]
    width = 2 * f.shape[0]
    head, tail = x[..., :-width], x[..., -width:].float().unflatten(-1, (-1, 2))
    cos, sin = angle.cos(), angle.sin()
    a, b = tail[..., 0], tail[..., 1]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([head, turned.to(x.dtype)], dim=-1)


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return rms(x, self.eps, self.weight)


def linear(inputs: int, outputs: int, scale: float = 1.0) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=scale / math.sqrt(inputs))
    return layer


class Hyper:
    """Hyper-connections of one branch (spec 5.2); parameters are registered on the block under official names."""

    @staticmethod
    def register(block: nn.Module, name: str, config: dict[str, Any]) -> None:
        n, d = config["hc_mult"], config["hidden_size"]
        base = torch.zeros(2 * n + n * n)
        base[2 * n :] = (torch.eye(n) * 4).flatten()  # begin near the identity: streams mostly carry themselves
        block.register_parameter(f"hc_{name}_fn", nn.Parameter(torch.randn(2 * n + n * n, n * d) * 0.02 / math.sqrt(n)))
        block.register_parameter(f"hc_{name}_base", nn.Parameter(base))
        block.register_parameter(f"hc_{name}_scale", nn.Parameter(torch.full((3,), 0.1)))

    @staticmethod
    def mix(block: nn.Module, name: str, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, S, n, d] -> the branch's input [B, S, d], post [B, S, n], comb [B, S, n, n]."""
        fn, base, scale = (getattr(block, f"hc_{name}_{part}") for part in ("fn", "base", "scale"))
        config = block.config
        with torch.autocast(x.device.type, enabled=False):
            y, post, c = Hyper.mixing(x, fn, base, scale, config["hc_eps"], config["rms_norm_eps"])
            return y, post, sinkhorn(c, config["hc_sinkhorn_iters"], config["hc_eps"])

    @staticmethod
    def expand(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
        return Hyper.expanding(y, x, post, comb)


def mixing(
    x: Tensor, fn: Tensor, base: Tensor, scale: Tensor, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    n = x.shape[-2]
    z = rms(x.float().flatten(-2), norm_eps)
    m = z @ fn.float().T
    pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(m[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    c = torch.softmax((m[..., 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n)), dim=-1) + eps
    return (pre[..., None] * x.float()).sum(-2).to(x.dtype), post, c


def expanding(y: Tensor, x: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """x'_k = post_k y + sum_j comb_jk x_j."""
    kept = (comb[..., None] * x.float()[..., None, :]).sum(-3)  # [.., j, k, d] summed over j
    return (post[..., None] * y.float()[..., None, :] + kept).to(x.dtype)


Hyper.mixing, Hyper.expanding = staticmethod(mixing), staticmethod(expanding)


def compiled(blocks: Any) -> None:
    """Compile what takes the time, in pieces that many blocks share."""
    Hyper.mixing = staticmethod(torch.compile(mixing, dynamic=False))
    Hyper.expanding = staticmethod(torch.compile(expanding, dynamic=False))
    for block in blocks:
        block.attn.compile(dynamic=False)
        block.ffn.compile(dynamic=False)


def plain_again() -> None:
    """Undo `compiled` for other shapes: blocks made from now on run as they are."""
    Hyper.mixing, Hyper.expanding = staticmethod(mixing), staticmethod(expanding)


def rows_of(table: nn.Embedding, ids: Tensor) -> Tensor:
    """An embedding whose gradient is index_add: it can be part of a CUDA graph."""
    return table.weight.index_select(0, ids.flatten()).unflatten(0, ids.shape)


class Compressor(nn.Module):
    """Gated pooling of windows of r tokens, overlapping for r = 4 (spec 5.7)."""

    def __init__(self, ratio: int, hidden: int, width: int, eps: float) -> None:
        super().__init__()
        self.ratio, self.width, self.overlap = ratio, width, ratio == 4
        wide = 2 * width if self.overlap else width
        self.wkv, self.wgate = linear(hidden, wide), linear(hidden, wide)
        self.ape = nn.Parameter(torch.zeros(ratio, wide))
        self.norm = Norm(width, eps)

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """x [B, S, d] -> rows [B, S // r, width], rotated at the first position of their window."""
        r, d = self.ratio, self.width
        rows = x.shape[1] // r
        x = x[:, : rows * r]
        kv = self.wkv(x).float().unflatten(1, (rows, r))  # [B, rows, r, wide]
        gate = self.wgate(x).float().unflatten(1, (rows, r)) + self.ape
        if self.overlap:
            before_kv = F.pad(kv[:, :-1, :, :d], (0, 0, 0, 0, 1, 0))
            before_gate = F.pad(gate[:, :-1, :, :d], (0, 0, 0, 0, 1, 0), value=float("-inf"))
            kv = torch.cat([before_kv, kv[..., d:]], dim=2)
            gate = torch.cat([before_gate, gate[..., d:]], dim=2)
        pooled = (kv * gate.softmax(dim=2)).sum(2)
        positions = torch.arange(rows, device=x.device) * r
        return rotate(self.norm(pooled), positions, f).to(x.dtype)


class Indexer(nn.Module):
    """Scores of compressed rows (spec 5.8)."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.width = config["index_n_heads"], config["index_head_dim"]
        self.wq_b = linear(config["q_lora_rank"], self.heads * self.width)
        self.weights_proj = linear(config["hidden_size"], self.heads)
        self.compressor = Compressor(4, config["hidden_size"], self.width, config["rms_norm_eps"])

    def forward(self, x: Tensor, qr: Tensor, positions: Tensor, f: Tensor) -> Tensor:
        """-> scores [B, S, rows]"""
        keys = self.compressor(x, f)  # [B, rows, width]
        q = self.wq_b(qr).unflatten(-1, (self.heads, self.width)).transpose(1, 2)  # [B, heads, S, width]
        q = rotate(q, positions, f)
        w = self.weights_proj(x) * (self.width**-0.5 * self.heads**-0.5)  # [B, S, heads]
        hits = torch.relu(q @ keys[:, None].transpose(-1, -2))  # [B, heads, S, rows]
        return (hits * w.transpose(1, 2)[..., None]).float().sum(1)


class Attention(nn.Module):
    """Shared-KV attention over window and compressed rows, with sink and inverse rotary (spec 5.5)."""

    def __init__(self, config: dict[str, Any], ratio: int) -> None:
        super().__init__()
        self.ratio, self.window, self.topk = ratio, config["sliding_window"], config["index_topk"]
        self.heads, self.width, self.eps = config["num_attention_heads"], config["head_dim"], config["rms_norm_eps"]
        self.groups, self.o_rank = config["o_groups"], config["o_lora_rank"]
        d, h = config["hidden_size"], self.heads * self.width
        self.wq_a, self.wq_b = linear(d, config["q_lora_rank"]), linear(config["q_lora_rank"], h)
        self.q_norm, self.kv_norm = Norm(config["q_lora_rank"], self.eps), Norm(self.width, self.eps)
        self.wkv = linear(d, self.width)
        self.attn_sink = nn.Parameter(torch.zeros(self.heads))
        self.wo_a = linear(h // self.groups, self.groups * self.o_rank)
        self.wo_b = linear(self.groups * self.o_rank, d, 0.5)
        if ratio:
            self.compressor = Compressor(ratio, d, self.width, self.eps)
        if ratio == 4:
            self.indexer = Indexer(config)
        self.register_buffer("f", frequencies(config, ratio > 0), persistent=False)

    def queries(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        qr = self.q_norm(self.wq_a(x))
        q = rms(self.wq_b(qr).unflatten(-1, (self.heads, self.width)), self.eps).transpose(1, 2)
        return qr, rotate(q, positions, self.f)  # [B, H, S, D]

    def output(self, o: Tensor, positions: Tensor) -> Tensor:
        """o [B, H, S, D] -> [B, S, d]"""
        o = rotate(o, positions, self.f, inverse=True).transpose(1, 2).flatten(-2).unflatten(-1, (self.groups, -1))
        wo_a = self.wo_a.weight.unflatten(0, (self.groups, self.o_rank))
        return self.wo_b(torch.einsum("bsgi,gri->bsgr", o, wo_a.to(o.dtype)).flatten(-2))

    def near(self, q: Tensor, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the window in bands: q [B, H, S, D], kv [B, S, D], W divides S -> [B, H, S / W, W, 2 W], keys."""
        w = self.window
        bands = kv.unflatten(1, (-1, w))
        keys = torch.cat([F.pad(bands[:, :-1], (0, 0, 0, 0, 1, 0)), bands], dim=2)  # [B, S / W, 2 W, D]
        scores = (q.unflatten(2, (-1, w)) @ keys[:, None].transpose(-1, -2)).float() * self.width**-0.5
        i, j = torch.arange(w, device=q.device)[:, None], torch.arange(2 * w, device=q.device)[None]
        seen = (j > i) & (j <= i + w)
        first = torch.arange(bands.shape[1], device=q.device)[:, None, None] == 0
        return scores.masked_fill(~(seen & ~(first & (j < w))), NEVER), keys

    def mixed(self, q: Tensor, kv: Tensor, rows: Tensor | None, far: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Attention over the window and compressed rows, far = masked scores [B, H, S, rows] -> output, row shares."""
        near, keys = self.near(q, kv)
        total = torch.logaddexp(torch.logsumexp(near, -1).flatten(2, 3), self.attn_sink.float()[:, None])
        if far is not None:
            total = torch.logaddexp(total, torch.logsumexp(far, -1))  # [B, H, S]
        share = torch.exp(near - total.unflatten(2, (-1, self.window))[..., None]).to(kv.dtype)
        o = (share @ keys[:, None]).flatten(2, 3)
        if far is None:
            return o, None
        share = torch.exp(far - total[..., None])
        return o + share.to(kv.dtype) @ rows[:, None], share

    def forward(self, x: Tensor, select: bool) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """-> output, the indexer's loss (None without one), the share of dense mass that its top rows hold"""
        positions = torch.arange(x.shape[1], device=x.device)
        qr, q = self.queries(x, positions)
        kv = rotate(self.kv_norm(self.wkv(x)), positions, self.f)
        if not self.ratio:
            return self.output(self.mixed(q, kv, None, None)[0], positions), None, None
        rows = self.compressor(x, self.f)
        visible = torch.arange(rows.shape[1], device=x.device)[None] < ((positions + 1) // self.ratio)[:, None]
        far = (q @ rows[:, None].transpose(-1, -2)).float() * self.width**-0.5
        far = far.masked_fill(~visible, NEVER)
        if self.ratio != 4:
            return self.output(self.mixed(q, kv, rows, far)[0], positions), None, None
        scores = self.indexer(x.detach(), qr.detach(), positions, self.f).masked_fill(~visible, NEVER)
        k = min(self.topk, rows.shape[1])
        chosen = scores >= scores.detach().topk(k, dim=-1).values[..., -1:]  # a tie at the edge keeps both
        if select:
            with torch.no_grad():
                share = self.mixed(q, kv, rows, far)[1]
            o = self.mixed(q, kv, rows, far.masked_fill(~chosen[:, None], NEVER))[0]
        else:
            o, share = self.mixed(q, kv, rows, far)
        # The indexer learns where dense attention puts its mass (top-k gives it no gradient).
        mass = share.detach().sum(1)  # [B, S, rows]
        whole = mass.sum(-1, keepdim=True).clamp_min(1e-9)
        loss = -(mass / whole * torch.log_softmax(scores, -1).clamp_min(-100.0)).sum(-1).mean()
        full = positions >= 4 * self.topk + 3  # where there are more rows than the top-k takes
        kept = (mass * chosen).sum(-1) / whole[..., 0]
        return self.output(o, positions), loss, (kept * full).sum(-1).mean() / full.sum().clamp_min(1)


class Experts(nn.Module):
    """Routed and shared experts (spec 5.9). All experts run for all tokens: they are few and small here."""

    def __init__(self, config: dict[str, Any], hashed: bool) -> None:
        super().__init__()
        d, i, e = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
        self.k, self.limit, self.scale = (
            config["num_experts_per_tok"],
            config["swiglu_limit"],
            config["routed_scaling_factor"],
        )
        self.gate = linear(d, e)
        if hashed:
            g = torch.Generator().manual_seed(0)
            table = torch.rand(config["vocab_size"], e, generator=g).argsort(-1)[:, : self.k]
            self.register_buffer("tid2eid", table)
        else:
            self.register_buffer("bias", torch.zeros(e))
        self.hashed = hashed
        self.w1 = nn.Parameter(torch.randn(e, i, d) / math.sqrt(d))
        self.w3 = nn.Parameter(torch.randn(e, i, d) / math.sqrt(d))
        self.w2 = nn.Parameter(torch.randn(e, d, i) * 0.5 / math.sqrt(i))
        self.shared = nn.ModuleDict({"w1": linear(d, i), "w3": linear(d, i), "w2": linear(i, d, 0.5)})
        self.register_buffer("load", torch.zeros(e), persistent=False)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate.clamp(max=self.limit)) * up.clamp(-self.limit, self.limit)

    def weights(self, fake: Any = None) -> tuple[Tensor, ...]:
        """w1, w3, w2; fake: weight -> fake-quantised weight, for quantisation-aware steps."""
        return tuple(w if fake is None else fake(w) for w in (self.w1, self.w3, self.w2))

    def forward(self, x: Tensor, tokens: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        """x [B, S, d], tokens [B, S] -> [B, S, d]"""
        with torch.autocast(x.device.type, enabled=False):
            score = torch.sqrt(F.softplus(x.float() @ self.gate.weight.float().T))
        steered = None if self.hashed else score.detach() + self.bias
        index = self.tid2eid[tokens] if steered is None else steered.topk(self.k, dim=-1).indices
        chosen = torch.zeros_like(score).scatter_(-1, index, 1.0)
        if self.training and not self.hashed:
            self.load.copy_(chosen.flatten(0, -2).mean(0))
        weight = score * chosen
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20) * self.scale  # [B, S, E]
        w1, w3, w2 = weights
        flat = x.flatten(0, 1)
        hidden = self.swiglu(
            torch.einsum("td,eid->tei", flat, w1.to(x.dtype)), torch.einsum("td,eid->tei", flat, w3.to(x.dtype))
        )
        hidden = hidden * weight.flatten(0, 1)[..., None].to(x.dtype)
        routed = torch.einsum("tei,edi->td", hidden, w2.to(x.dtype)).view_as(x)
        return routed + self.shared["w2"](self.swiglu(self.shared["w1"](x), self.shared["w3"](x)))

    @torch.no_grad()
    def balance(self, step: float = 1e-3) -> None:
        """Bias-only balancing: experts with less than their share become likelier, without touching any weight."""
        if not self.hashed:
            self.bias += step * torch.sign(self.load.mean() - self.load)


class Block(nn.Module):
    def __init__(self, config: dict[str, Any], ratio: int, hashed: bool) -> None:
        super().__init__()
        d, eps = config["hidden_size"], config["rms_norm_eps"]
        self.attn_norm, self.ffn_norm = Norm(d, eps), Norm(d, eps)
        self.config = config
        for name in ("attn", "ffn"):
            Hyper.register(self, name, config)
        self.attn, self.ffn = Attention(config, ratio), Experts(config, hashed)

    def forward(
        self, x: Tensor, tokens: Tensor, select: bool, weights: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        y, post, comb = Hyper.mix(self, "attn", x)
        a, loss, recall = self.attn(self.attn_norm(y), select)
        x = Hyper.expand(a, x, post, comb)
        y, post, comb = Hyper.mix(self, "ffn", x)
        return Hyper.expand(self.ffn(self.ffn_norm(y), tokens, weights), x, post, comb), loss, recall


class Head(nn.Module):
    """Streams to one vector (no Sinkhorn); parameters sit on the owner under official names."""

    @staticmethod
    def register(owner: nn.Module, config: dict[str, Any]) -> None:
        n, d = config["hc_mult"], config["hidden_size"]
        owner.hc_head_fn = nn.Parameter(torch.randn(n, n * d) * 0.02)
        owner.hc_head_base = nn.Parameter(torch.zeros(n))
        owner.hc_head_scale = nn.Parameter(torch.full((1,), 0.1))

    @staticmethod
    def collapse(owner: nn.Module, x: Tensor, config: dict[str, Any]) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            m = rms(x.float().flatten(-2), config["rms_norm_eps"]) @ owner.hc_head_fn.float().T
            pre = torch.sigmoid(m * owner.hc_head_scale + owner.hc_head_base) + config["hc_eps"]
            return (pre[..., None] * x.float()).sum(-2).to(x.dtype)


class Target(nn.Module):
    def __init__(self, config: dict[str, Any] = CONFIG) -> None:
        super().__init__()
        self.config = config
        d, v, layers = config["hidden_size"], config["vocab_size"], config["num_hidden_layers"]
        self.embed = nn.Embedding(v, d)
        nn.init.normal_(self.embed.weight, std=0.5)
        self.layers = nn.ModuleList(
            Block(config, config["compress_ratios"][i], i < config["num_hash_layers"]) for i in range(layers)
        )
        self.norm, self.head = Norm(d, config["rms_norm_eps"]), linear(d, v, 0.5)
        Head.register(self, config)

    def forward(self, tokens: Tensor, select: bool = True, fake: Any = None) -> dict[str, Any]:
        """tokens [B, S] -> hidden (normed, before the LM head), taps, the indexer's loss and recall"""
        length = tokens.shape[1]
        tokens = F.pad(tokens, (0, -length % self.config["sliding_window"]))  # causal: what is behind does no harm
        x = rows_of(self.embed, tokens)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.bfloat16)
        x = x[:, :, None].expand(-1, -1, self.config["hc_mult"], -1)
        losses, recalls, taps = [], [], []
        for i, block in enumerate(self.layers):
            x, loss, recall = block(x, tokens, select, block.ffn.weights(fake))
            losses += [loss] if loss is not None else []
            recalls += [recall] if recall is not None else []
            if i in self.config["dspark_target_layer_ids"]:
                taps.append(x.mean(-2))
        hidden = self.norm(Head.collapse(self, x, self.config))
        zero = hidden.new_zeros(())
        return {
            "hidden": hidden[:, :length],
            "taps": torch.cat(taps, dim=-1)[:, :length],
            "index_loss": torch.stack(losses).mean() if losses else zero,
            "recall": torch.stack(recalls).mean() if recalls else zero,
        }


def halved(model: nn.Module) -> nn.Module:
    """Frozen, with matrices in bfloat16, which holds every stored form exactly; what is stored in float32 stays so."""
    for name, p in model.named_parameters():
        p.requires_grad_(False)
        if p.ndim >= 2 and "hc_" not in name and "ape" not in name:
            p.data = p.data.bfloat16()
    return model.eval()
