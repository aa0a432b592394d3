  // As experts_up.h, by tiles: a threadgroup has 16 MT rows of W1 and of W3 of the expert of pair GROUP_Y.
  SHARED float part[2 * SPLIT * MT * 128];
  const Members group = members_of(index, GROUP_Y, LANE);
  if (group.count > 0) {  // the same for the whole threadgroup
    const int first = GROUP_X * 16 * MT;
    const size_t base = size_t(index[GROUP_Y]) * N;
    const auto rows = member_row<TOPK>(x, group, tile_x_row(LANE), K);
    float acc[8 * MT];
    UNROLL for (int i = 0; i < 8 * MT; i++) acc[i] = 0.0f;
    tile_dot<TILE_A, K, GROUP_A, SPLIT, MT>(rows, PARTS_A, base + first, base + N - 1, WARP, LANE, acc);
    tile_dot<TILE_B, K, GROUP_B, SPLIT, MT>(rows, PARTS_B, base + first, base + N - 1, WARP, LANE, acc + 4 * MT);
    keep_tile<MT>(part + WARP * MT * 128, LANE, acc);
    keep_tile<MT>(part + (SPLIT + WARP) * MT * 128, LANE, acc + 4 * MT);
    BARRIER();
    for (int at = THREAD; at < MT * 128; at += SPLIT * 32) {
      const int m = at / 16 % 8, n = first + at / 128 * 16 + at % 16;
      const float gate = tile_total<SPLIT, MT>(part, at) * TILE_A::factor();
      const float up = tile_total<SPLIT, MT>(part + SPLIT * MT * 128, at) * TILE_B::factor();
      if (m < group.count && n < N)
        hidden[size_t(pair_at(group, m)) * N + n] = T(swiglu(float(T(gate)), float(T(up)), LIMIT));
    }
  }
