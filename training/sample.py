"""Many texts at once from the trained target, token by token and in lockstep: the drafter's training samples.

All sequences have one length, so one position is processed for all of them at a time; sparkwright is what decodes in
earnest, and `python sample.py` holds this against the whole-sequence form.
"""

from __future__ import annotations

import torch
from model import Attention, Compressor, Head, Hyper, Target, rotate, rows_of
from torch import Tensor


class Pool:
    """A compressor's open window, and the rows that it has emitted."""

    def __init__(self, compressor: Compressor, batch: int, length: int, dtype: torch.dtype) -> None:
        self.c, r = compressor, compressor.ratio
        device, wide = compressor.ape.device, compressor.ape.shape[1]
        slots = 2 * r if compressor.overlap else r
        self.kv = torch.zeros(batch, slots, wide, device=device)
        self.gate = torch.full((batch, slots, wide), float("-inf"), device=device)
        self.rows = torch.zeros(batch, max(length // r, 1), compressor.width, device=device, dtype=dtype)

    def push(self, x: Tensor, t: int, f: Tensor) -> None:
        """x [B, 1, d]"""
        c, r, d = self.c, self.c.ratio, self.c.width
        j = t % r
        slot = j + (r if c.overlap else 0)
        self.kv[:, slot] = c.wkv(x)[:, 0].float()
        self.gate[:, slot] = c.wgate(x)[:, 0].float() + c.ape[j]
        if j < r - 1:
            return
        kv, gate = self.kv, self.gate
        if c.overlap:
            kv = torch.cat([kv[:, :r, :d], kv[:, r:, d:]], dim=1)
            gate = torch.cat([gate[:, :r, :d], gate[:, r:, d:]], dim=1)
        row = c.norm((kv * gate.softmax(dim=1)).sum(1, keepdim=True))
        at = torch.tensor([t - r + 1], device=x.device)
        self.rows[:, t // r] = rotate(row, at, f)[:, 0].to(self.rows.dtype)
        if c.overlap:
            self.kv[:, :r], self.gate[:, :r] = self.kv[:, r:].clone(), self.gate[:, r:].clone()


class Decoder:
    def __init__(self, target: Target, batch: int, length: int) -> None:
        self.target, self.w = target, target.config["sliding_window"]
        dtype, device = target.embed.weight.dtype, target.embed.weight.device
        width = target.config["head_dim"]
        self.ring = [torch.zeros(batch, self.w, width, device=device, dtype=dtype) for _ in target.layers]
        self.pools: list[Pool | None] = []
        self.index: list[Pool | None] = []
        for block in target.layers:
            a = block.attn
            self.pools.append(Pool(a.compressor, batch, length, dtype) if a.ratio else None)
            self.index.append(Pool(a.indexer.compressor, batch, length, dtype) if a.ratio == 4 else None)

    def attend(self, i: int, a: Attention, x: Tensor, t: int) -> Tensor:
        at = torch.tensor([t], device=x.device)
        qr, q = a.queries(x, at)
        ring = self.ring[i]
        ring[:, t % self.w] = rotate(a.kv_norm(a.wkv(x)), at, a.f)[:, 0]
        keys = ring[:, : min(t + 1, self.w)]
        pool, index = self.pools[i], self.index[i]
        if pool is not None:
            pool.push(x, t, a.f)
            n = (t + 1) // a.ratio
            rows = pool.rows[:, :n]
            if index is not None:
                index.push(x, t, a.f)
                if n > a.topk:
                    qi = a.indexer.wq_b(qr).unflatten(-1, (a.indexer.heads, a.indexer.width)).transpose(1, 2)
                    hits = torch.relu(rotate(qi, at, a.f)[:, :, 0] @ index.rows[:, :n].transpose(-1, -2))
                    w = a.indexer.weights_proj(x)[:, 0] * (a.indexer.width**-0.5 * a.indexer.heads**-0.5)
                    best = (hits * w[..., None]).float().sum(1).topk(a.topk, dim=-1).indices
                    rows = rows.gather(1, best[..., None].expand(-1, -1, rows.shape[-1]))
            keys = torch.cat([keys, rows], dim=1)
        scores = (q @ keys[:, None].transpose(-1, -2)).float() * a.width**-0.5
        sink = a.attn_sink.float()[None, :, None, None].expand(scores.shape[0], -1, 1, 1)
        share = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]
        return a.output(share.to(keys.dtype) @ keys[:, None], at)

    @torch.no_grad()
    def step(self, tokens: Tensor, t: int) -> Tensor:
        """tokens [B] at position t -> logits [B, V] float32"""
        m = self.target
        tokens = tokens[:, None]
        x = rows_of(m.embed, tokens)[:, :, None].expand(-1, -1, m.config["hc_mult"], -1)
        for i, block in enumerate(m.layers):
            y, post, comb = Hyper.mix(block, "attn", x)
            x = Hyper.expand(self.attend(i, block.attn, block.attn_norm(y), t), x, post, comb)
            y, post, comb = Hyper.mix(block, "ffn", x)
            x = Hyper.expand(block.ffn(block.ffn_norm(y), tokens, block.ffn.weights()), x, post, comb)
        return m.head(m.norm(Head.collapse(m, x, m.config)))[:, 0].float()


@torch.no_grad()
def sample(target: Target, prompts: Tensor, given: Tensor, length: int, temperature: Tensor) -> Tensor:
    """prompts [B, P], the first given [B] of which count, temperature [B] (0: greedy) -> tokens [B, length]."""
    decoder = Decoder(target, prompts.shape[0], length)
    out = torch.zeros(prompts.shape[0], length, dtype=torch.long, device=prompts.device)
    out[:, : prompts.shape[1]] = prompts
    t0, some, all_ = temperature[:, None], int(given.min()), int(given.max())
    for t in range(length - 1):
        logits = decoder.step(out[:, t], t)
        if t + 1 < some:
            continue
        noise = -torch.log(torch.empty_like(logits).exponential_().clamp_min(1e-30))
        drawn = torch.where(t0 > 0, logits / t0.clamp_min(1e-3) + noise, logits).argmax(-1)
        out[:, t + 1] = drawn if t + 1 >= all_ else torch.where(given > t + 1, out[:, t + 1], drawn)
    return out


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Target({**Target().config, "index_topk": 16}).eval()
    tokens = torch.randint(3, 4096, (2, 300))
    whole = model.head(model(tokens)["hidden"])
    decoder = Decoder(model, 2, 300)
    whole = whole.detach()
    steps = torch.stack([decoder.step(tokens[:, t], t) for t in range(300)], dim=1)
    print({"largest difference": float((steps - whole).abs().max()), "logits": float(whole.abs().max())})
