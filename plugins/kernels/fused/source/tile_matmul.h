  // y [R, G, N] = x [R, G, K] W^T, W [G, N, K]: a threadgroup has 16 MT rows of a W. TILE_ROWS: a lane's row (rows_*.h).
  SHARED float part[SPLIT * MT * 128];
  float acc[4 * MT];
  UNROLL for (int i = 0; i < 4 * MT; i++) acc[i] = 0.0f;
  const int first = GROUP_X * 16 * MT, g = GROUP_Y, mine = tile_x_row(LANE);
  TILE_ROWS
  tile_dot<TILE_A, K, GROUP_A, SPLIT, MT>(rows, PARTS_A, size_t(g) * N + first, size_t(g) * N + N - 1, WARP, LANE, acc);
  keep_tile<MT>(part + WARP * MT * 128, LANE, acc);
  BARRIER();
  for (int at = THREAD; at < MT * 128; at += SPLIT * 32) {
    const int m = at / 16 % 8, n = first + at / 128 * 16 + at % 16;
    const float total = tile_total<SPLIT, MT>(part, at) * TILE_A::factor();
    if (m < R && n < N) y[size_t(m * G + g) * N + n] = Y(total);
  }
