"""The DSpark drafter in PyTorch, in its training form: many anchors of a sequence at once, teacher-forced.

Attention mask: a block's rows see the 128 context rows before its anchor and the whole block, nothing of other blocks
(spec 8.3 and 12). Names and meaning are the official `mtp.*`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from model import CONFIG, NEVER, Attention, Block, Head, Hyper, Norm, linear, rms, rotate, rows_of
from torch import Tensor, nn


class Drafter(nn.Module):
    def __init__(self, config: dict[str, Any] = CONFIG) -> None:
        super().__init__()
        self.config = config
        d, v, rank = config["hidden_size"], config["vocab_size"], config["dspark_markov_rank"]
        taps, eps = len(config["dspark_target_layer_ids"]), config["rms_norm_eps"]
        self.main_proj, self.main_norm = linear(taps * d, d), Norm(d, eps)
        self.stages = nn.ModuleList(Block(config, 0, hashed=False) for _ in range(3))
        self.norm = Norm(d, eps)
        Head.register(self, config)
        self.markov_w1, self.markov_w2 = nn.Embedding(v, rank), nn.Linear(rank, v, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.5)
        nn.init.zeros_(self.markov_w2.weight)
        self.confidence = linear(d + rank, 1, 0.1)

    def attend(self, attn: Attention, x: Tensor, c: Tensor, anchors: Tensor) -> Tensor:
        """x [B, N * g, d] block rows, c [B, S, d] projected taps, anchors [B, N] -> [B, N * g, d]"""
        g, w = self.config["dspark_block_size"], attn.window
        n = anchors.shape[1]
        at = (anchors[..., None] + torch.arange(g, device=x.device)).flatten(1)  # [B, N * g] absolute positions
        ring = rotate(attn.kv_norm(attn.wkv(c)), torch.arange(c.shape[1], device=x.device), attn.f)
        own = each(attn.kv_norm(attn.wkv(x)), at, attn.f).unflatten(1, (n, g))
        back = anchors[..., None] - w + torch.arange(w, device=x.device)  # [B, N, w] the context's positions
        index = back.clamp_min(0).flatten(1)[..., None].expand(-1, -1, ring.shape[-1])
        keys = torch.cat([ring.gather(1, index).unflatten(1, (n, w)), own], dim=2)  # [B, N, w + g, D]
        mask = F.pad(back >= 0, (0, g), value=True)[:, :, None, None]
        q = attn.wq_b(attn.q_norm(attn.wq_a(x))).unflatten(-1, (attn.heads, attn.width))
        q = each(rms(q, attn.eps).transpose(1, 2), at[:, None], attn.f)
        q = q.unflatten(2, (n, g)).transpose(1, 2)  # [B, N, H, g, D]
        scores = (q @ keys[:, :, None].transpose(-1, -2)).float() * attn.width**-0.5
        scores = scores.masked_fill(~mask, NEVER)
        sink = attn.attn_sink.float()[None, None, :, None, None].expand(*scores.shape[:4], 1)
        share = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
        o = (share.to(keys.dtype) @ keys[:, :, None]).transpose(1, 2).flatten(2, 3)  # [B, H, N * g, D]
        o = each(o, at[:, None], attn.f, inverse=True).transpose(1, 2).flatten(-2).unflatten(-1, (attn.groups, -1))
        wo_a = attn.wo_a.weight.unflatten(0, (attn.groups, attn.o_rank))
        return attn.wo_b(torch.einsum("bsgi,gri->bsgr", o, wo_a.to(o.dtype)).flatten(-2))

    def stage(
        self, stage: Block, x: Tensor, c: Tensor, anchors: Tensor, ids: Tensor, weights: tuple[Tensor, ...]
    ) -> Tensor:
        y, post, comb = Hyper.mix(stage, "attn", x)
        x = Hyper.expand(self.attend(stage.attn, stage.attn_norm(y), c, anchors), x, post, comb)
        y, post, comb = Hyper.mix(stage, "ffn", x)
        return Hyper.expand(stage.ffn(stage.ffn_norm(y), ids, weights), x, post, comb)

    def forward(
        self, taps: Tensor, tokens: Tensor, anchors: Tensor, embed: nn.Embedding, fake: Any = None
    ) -> tuple[Tensor, Tensor]:
        """taps [B, S, 3d], tokens [B, S], anchors [B, N] -> x [B, N, g, d], not normed, confidence logits [B, N, g].

        The previous tokens of the Markov and confidence heads are the text's.
        """
        g, noise = self.config["dspark_block_size"], self.config["dspark_noise_token_id"]
        c = self.main_norm(self.main_proj(taps))
        ids = torch.full((*anchors.shape, g), noise, device=tokens.device, dtype=tokens.dtype)
        ids[..., 0] = tokens.gather(1, anchors)
        ids = ids.flatten(1)
        x = rows_of(embed, ids).to(taps.dtype)[:, :, None].expand(-1, -1, self.config["hc_mult"], -1)
        for stage in self.stages:
            x = self.stage(stage, x, c, anchors, ids, stage.ffn.weights(fake))
        h = Head.collapse(self, x, self.config).unflatten(1, (-1, g))
        e = self.previous(tokens, anchors)
        with torch.autocast(x.device.type, enabled=False):
            confidence = F.linear(torch.cat([h.float(), e.float()], dim=-1), self.confidence.weight.float())[..., 0]
        return h, confidence

    def previous(self, tokens: Tensor, anchors: Tensor) -> Tensor:
        """Markov embeddings [B, N, g, rank] of the token before each draft."""
        g = self.config["dspark_block_size"]
        at = anchors[..., None] + torch.arange(g, device=tokens.device)
        return rows_of(self.markov_w1, tokens.gather(1, at.flatten(1)).unflatten(1, (-1, g)))

    def logits(self, h: Tensor, tokens: Tensor, anchors: Tensor, head: nn.Linear, markov: bool = True) -> Tensor:
        """-> [B, N, g, V] float32"""
        base = head(self.norm(h)).float()
        return base + self.markov_w2(self.previous(tokens, anchors)).float() if markov else base


def each(x: Tensor, positions: Tensor, f: Tensor, inverse: bool = False) -> Tensor:
    """As `rotate`, with positions for each sequence: x [..., S, D], positions broadcast to x's axes but the last."""
    angle = positions.float()[..., None] * f * (-1 if inverse else 1)
    width = 2 * f.shape[0]
    head, tail = x[..., :-width], x[..., -width:].float().unflatten(-1, (-1, 2))
    a, b, cos, sin = tail[..., 0], tail[..., 1], angle.cos(), angle.sin()
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
    return torch.cat([head, turned.to(x.dtype)], dim=-1)
