  // As experts_down.h, by tiles: a threadgroup has 16 MT columns of y, its warps share the groups of pairs.
  SHARED float part[R * TOPK * 16 * MT];
  const int first = GROUP_X * 16 * MT;
  for (int pair = WARP; pair < R * TOPK; pair += WARPS) {
    const Members group = members_of(index, pair, LANE);
    if (group.count > 0) {  // the same for the whole warp
      const size_t base = size_t(index[pair]) * N;
      const auto rows = member_row<1>(hidden, group, tile_x_row(LANE), K);
      float acc[4 * MT];
      UNROLL for (int i = 0; i < 4 * MT; i++) acc[i] = 0.0f;
      tile_dot<TILE_A, K, GROUP_A, 1, MT>(rows, PARTS_A, base + first, base + N - 1, 0, LANE, acc);
      UNROLL for (int i = 0; i < 4 * MT; i++) {
        const int m = tile_row(LANE, i % 4);
        if (m < group.count) part[pair_at(group, m) * 16 * MT + i / 4 * 16 + tile_out(LANE, i % 4)] = acc[i];
      }
    }
  }
  BARRIER();
  for (int at = THREAD; at < 16 * MT * R; at += WARPS * 32) {
    const int m = at / (16 * MT), o = at % (16 * MT);
    float total = 0.0f;
    for (int j = 0; j < TOPK; j++) {
      const float sum = part[(m * TOPK + j) * 16 * MT + o] * TILE_A::factor();
      total = fused(weight[m * TOPK + j], float(T(sum)), total);
    }
    if (first + o < N) y[m * N + first + o] = total;
  }
