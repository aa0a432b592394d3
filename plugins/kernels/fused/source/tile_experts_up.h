  // As experts_up.h, by tiles: a threadgroup has 16 rows of W1 and of W3 of the expert of pair GROUP_Y.
  SHARED float part[2 * SPLIT * 128];
  const Members group = members_of(index, GROUP_Y, LANE);
  if (group.count > 0) {  // the same for the whole threadgroup
    const auto rows = member_row<TOPK>(x, group, tile_x_row(LANE), K);
    const int first = GROUP_X * 16;
    const size_t base = size_t(index[GROUP_Y]) * N;
    float acc[8];
    UNROLL for (int i = 0; i < 8; i++) acc[i] = 0.0f;
    tile_dot<TILE_A, K, GROUP_A, SPLIT>(rows, PARTS_A, base + first, base + N - 1, WARP, LANE, acc);
    tile_dot<TILE_B, K, GROUP_B, SPLIT>(rows, PARTS_B, base + first, base + N - 1, WARP, LANE, acc + 4);
    keep_tile(part + WARP * 128, LANE, acc);
    keep_tile(part + (SPLIT + WARP) * 128, LANE, acc + 4);
    BARRIER();
    for (int at = THREAD; at < 128; at += SPLIT * 32) {
      const int m = at / 16, n = first + at % 16;
      const float gate = tile_total<SPLIT>(part, at) * TILE_A::factor();
      const float up = tile_total<SPLIT>(part + SPLIT * 128, at) * TILE_B::factor();
      if (m < group.count && n < N)
        hidden[size_t(pair_at(group, m)) * N + n] = T(swiglu(float(T(gate)), float(T(up)), LIMIT));
    }
  }
