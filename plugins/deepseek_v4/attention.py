"""Attention of a block: shared-KV latent attention over the window and the selected compressed rows (spec 5.5 - 5.8).

The same code serves every forward of the target. A drafter's stage uses the pieces `project`, `context_rows` and
`attend` with rows of its own choosing.
"""

from __future__ import annotations

import attrs
import mlx.core as mx

from sparkwright.core.contracts import Op
from sparkwright.plugins.deepseek_v4 import ops
from sparkwright.plugins.deepseek_v4.compressor import Compressor
from sparkwright.plugins.deepseek_v4.config import ModelConfig
from sparkwright.plugins.deepseek_v4.kernels import Kernels
from sparkwright.plugins.deepseek_v4.linear import Linear, Weights
from sparkwright.plugins.deepseek_v4.state import CompressorState, LayerState
from sparkwright.plugins.deepseek_v4.step import Angles, Step


@attrs.frozen(eq=False)
class Projected:
    """What a row's projections give. query [r, H, D] and kv [r, D] are normed and rotated; `extra` are the raw outputs
    of the compressors' and the indexer's matrices, `index_query` [r, Hi, Di] is rotated (compressed layers only)."""

    query: mx.array
    kv: mx.array
    extra: tuple[mx.array, ...]
    index_query: mx.array | None


@attrs.frozen(eq=False)
class Indexer:
    """Chooses the compressed rows of a ratio-4 layer (5.8)."""

    heads: int
    dim: int
    topk: int
    wq_b: Linear
    weights_proj: Linear
    compressor: Compressor
    _select: Op

    @classmethod
    def build(cls, config: ModelConfig, weights: Weights, name: str, kernels: Kernels) -> Indexer:
        return cls(
            heads=config.index_heads,
            dim=config.index_dim,
            topk=config.index_topk,
            wq_b=weights.linear(f"{name}.wq_b"),
            weights_proj=weights.linear(f"{name}.weights_proj"),
            compressor=Compressor.build(config, weights, f"{name}.compressor", 4, config.index_dim, kernels),
            select=kernels.op(ops.INDEXER_SELECT, widths=(config.index_heads, config.index_dim, config.index_topk)),
        )

    def select(self, query: mx.array, weight: mx.array, state: CompressorState, step: Step) -> mx.array:
        """query [r, Hi, Di], weight [r, Hi] unscaled -> row indices int32 [r, k]."""
        span = step.span(4)
        state.rows.reserve(span)
        weight = weight.astype(mx.float32) * (self.dim**-0.5 * self.heads**-0.5)
        chosen: mx.array = self._select(
            query, weight, state.rows.array[:span], step.visible(4), step.most(4), self.topk
        )
        return chosen


@attrs.frozen(eq=False)
class Attention:
    """The attention branch under `prefix` ("layers.3." or "mtp.0."), its norm included."""

    ratio: int
    heads: int
    dim: int
    groups: int
    eps: float
    norm: mx.array  # [d]
    q_norm: mx.array  # [q_rank]
    kv_norm: mx.array  # [D]
    sink: mx.array  # [H] float32
    row_linears: tuple[Linear, ...]  # wq_a, wkv, then the compressor's, weights_proj and the indexer's compressor's
    query_linears: tuple[Linear, ...]  # wq_b, indexer.wq_b
    wo_a: Linear  # [g, rank, H D / g]
    wo_b: Linear
    compressor: Compressor | None
    indexer: Indexer | None
    _project: Op
    _query: Op
    _rotate: Op
    _rotate_index: Op
    _attend: Op
    _context: Op
    _group: Op
    _out: Op

    @classmethod
    def build(cls, config: ModelConfig, weights: Weights, prefix: str, ratio: int, kernels: Kernels) -> Attention:
        p = f"{prefix}attn."
        compressor = indexer = None
        rows = [weights.linear(f"{p}wq_a"), weights.linear(f"{p}wkv")]
        queries = [weights.linear(f"{p}wq_b")]
        if ratio:
            compressor = Compressor.build(config, weights, f"{p}compressor", ratio, config.head_dim, kernels)
            rows += compressor.linears
        if ratio == 4:
            indexer = Indexer.build(config, weights, f"{p}indexer", kernels)
            rows += (indexer.weights_proj, *indexer.compressor.linears)
            queries.append(indexer.wq_b)
        wo_a, wo_b = weights.linear(f"{p}wo_a").split(config.o_groups), weights.linear(f"{p}wo_b")
        return cls(
            ratio=ratio,
            heads=config.heads,
            dim=config.head_dim,
            groups=config.o_groups,
            eps=config.rms_eps,
            norm=weights.array(f"{prefix}attn_norm.weight", "float32"),
            q_norm=weights.array(f"{p}q_norm.weight", "float32"),
            kv_norm=weights.array(f"{p}kv_norm.weight", "float32"),
            sink=weights.array(f"{p}attn_sink", "float32"),
            row_linears=tuple(rows),
            query_linears=tuple(queries),
            wo_a=wo_a,
            wo_b=wo_b,
            compressor=compressor,
            indexer=indexer,
            project=kernels.op(ops.PROJECT_ROWS, *rows),
            query=kernels.op(ops.PROJECT_ROWS, *queries),
            rotate=kernels.op(ops.NORM_ROTATE, widths=(config.head_dim, config.rope_dim)),
            rotate_index=kernels.op(ops.NORM_ROTATE, widths=(config.index_dim, config.rope_dim)),
            attend=kernels.op(ops.ATTEND_ROWS, widths=(config.heads, config.head_dim, config.rope_dim)),
            context=kernels.op(ops.SMALL_ROWS_MATMUL, rows[1]),
            group=kernels.op(ops.GROUPED_ROWS_MATMUL, wo_a),
            out=kernels.op(ops.SMALL_ROWS_MATMUL, wo_b),
        )

    def __call__(self, x: mx.array, layer: LayerState, step: Step) -> mx.array:
        """x [r, d] before the norm -> [r, d]; writes the rows' keys and compressor inputs into the layer's state."""
        angles = step.angles(self.ratio)
        p = self.project(x, angles)
        layer.window.write(p.kv, step.real)
        rows, select = self._selected(p, layer, step)
        slots = step.window_slots(layer.window)
        return self.attend(p.query, layer.window.array, slots, rows, select, angles)

    def _selected(self, p: Projected, layer: LayerState, step: Step) -> tuple[mx.array | None, mx.array | None]:
        """Advances the compressors, then: the compressed rows [span, D] and which of them each query attends to."""
        if self.compressor is None or layer.compressor is None:
            return None, None
        kv, gate, *index = p.extra
        self.compressor.advance(kv, gate, layer.compressor, step)
        if self.indexer is not None and layer.indexer is not None:
            self.indexer.compressor.advance(index[1], index[2], layer.indexer, step)
        span = step.span(self.ratio)
        if span == 0:  # no query of this forward sees a compressed row yet
            return None, None
        layer.compressor.rows.reserve(span)
        rows = layer.compressor.rows.array[:span]
        if self.indexer is None or layer.indexer is None:
            return rows, step.all_visible(self.ratio)
        assert p.index_query is not None
        return rows, self.indexer.select(p.index_query, index[0], layer.indexer, step)

    def project(self, x: mx.array, angles: Angles) -> Projected:
        """x [r, d] before the norm; angles of the rows' positions."""
        cos, sin = angles
        r = x.shape[0]
        _, (low, kv, *extra) = self._project(x, self.norm, self.eps, self.row_linears)
        _, (query, *index) = self._query(low, self.q_norm, self.eps, self.query_linears)
        query = self._rotate(query.reshape(r, self.heads, self.dim), cos, sin, self.eps)
        index_query = None
        if self.indexer is not None:
            index_query = index[0].reshape(r, self.indexer.heads, self.indexer.dim)
            index_query = self._rotate_index(index_query, cos, sin)
        return Projected(query, self._key(kv, angles), tuple(extra), index_query)

    def context_rows(self, c: mx.array, angles: Angles) -> mx.array:
        """Keys [m, D] of context rows c [m, d] that take no norm of this block (a drafter's ring, spec 8.3)."""
        return self._key(self._context(c, self.row_linears[1]), angles)

    def _key(self, kv: mx.array, angles: Angles) -> mx.array:
        key: mx.array = self._rotate(kv[:, None, :], *angles, self.eps, self.kv_norm)[:, 0]
        return key

    def attend(
        self,
        query: mx.array,
        ring: mx.array,
        slots: mx.array,
        rows: mx.array | None,
        select: mx.array | None,
        angles: Angles,
    ) -> mx.array:
        """Attention and output projections: query [r, H, D], keys as in the op `attend_rows` -> [r, d]."""
        mixed = self._attend(query, ring, slots, rows, select, self.sink, *angles)  # [r, H, D]
        grouped = self._group(mixed.reshape(mixed.shape[0], self.groups, -1), self.wo_a)  # [r, g, rank]
        out: mx.array = self._out(grouped.reshape(grouped.shape[0], -1), self.wo_b)
        return out
