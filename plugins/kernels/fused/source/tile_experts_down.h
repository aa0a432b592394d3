  // As experts_down.h, by tiles: a threadgroup has 16 MT columns of y; its warps share the groups of pairs, PARTS of them the
  // columns of one.
  SHARED float part[R * TOPK * PARTS * 16 * MT];
  const int first = GROUP_X * 16 * MT;
  for (int job = WARP; job < R * TOPK * PARTS; job += WARPS) {
    const int pair = job / PARTS, piece = job % PARTS;
    const Members group = members_of(index, pair, LANE);
    if (group.count > 0) {  // the same for the whole warp
      const size_t base = size_t(index[pair]) * N;
      const auto rows = member_row<1>(hidden, group, tile_x_row(LANE), K);
      float acc[4 * MT];
      UNROLL for (int i = 0; i < 4 * MT; i++) acc[i] = 0.0f;
      tile_dot<TILE_A, K, GROUP_A, PARTS, MT>(rows, PARTS_A, base + first, base + N - 1, piece, LANE, acc);
      UNROLL for (int i = 0; i < 4 * MT; i++) {
        const int m = tile_row(LANE, i % 4);
        if (m < group.count)
          part[(pair_at(group, m) * PARTS + piece) * 16 * MT + i / 4 * 16 + tile_out(LANE, i % 4)] = acc[i];
      }
    }
  }
  BARRIER();
  for (int at = THREAD; at < 16 * MT * R; at += WARPS * 32) {
    const int m = at / (16 * MT), o = at % (16 * MT);
    float total = 0.0f;
    for (int j = 0; j < TOPK; j++) {
      float sum = part[(m * TOPK + j) * PARTS * 16 * MT + o];
      UNROLL for (int p = 1; p < PARTS; p++) sum += part[((m * TOPK + j) * PARTS + p) * 16 * MT + o];
      total = fused(weight[m * TOPK + j], float(T(sum * TILE_A::factor())), total);
    }
    if (first + o < N) y[m * N + first + o] = total;
  }
