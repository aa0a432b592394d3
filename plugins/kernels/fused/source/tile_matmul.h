  // y [R, G, N] = x [R, G, K] W^T, W [G, N, K]: a threadgroup has 16 rows of a W. TILE_ROWS: a lane's row (rows_*.h).
  SHARED float part[SPLIT * 128];
  float acc[4];
  UNROLL for (int i = 0; i < 4; i++) acc[i] = 0.0f;
  const int first = GROUP_X * 16, g = GROUP_Y, mine = tile_x_row(LANE);
  TILE_ROWS
  tile_dot<TILE_A, K, GROUP_A, SPLIT>(rows, PARTS_A, size_t(g) * N + first, size_t(g) * N + N - 1, WARP, LANE, acc);
  keep_tile(part + WARP * 128, LANE, acc);
  BARRIER();
  for (int at = THREAD; at < 128; at += SPLIT * 32) {
    const int m = at / 16, n = first + at % 16;
    const float total = tile_total<SPLIT>(part, at) * TILE_A::factor();
    if (m < R && n < N) y[size_t(m * G + g) * N + n] = Y(total);
  }
