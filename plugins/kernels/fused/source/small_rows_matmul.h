  // y [R, G, N] = x [R, G, K] W^T, W [G, N, K]. A threadgroup has OUTS rows of a W, each of its SPLIT warps every SPLIT-th
  // slice of 256 columns; every weight is read once. C: OUTS * R up to a power of two. ROWS: where the rows come from
  // (rows_*.h); ADDED(n), if there is one, is added to column n.
  SHARED float part[SPLIT * C];
  float acc[C];
  UNROLL for (int c = 0; c < C; c++) acc[c] = 0.0f;
  const int first = GROUP_X * OUTS, g = GROUP_Y;
  ROWS
  dot_rows<MATRIX_A, R, OUTS, K, SPLIT * 256>(rows, PARTS_A, size_t(g) * N + first, size_t(g) * N + N - 1,
                                              (WARP * 32 + LANE) * 8, acc);
  const float sum = warp_sums<C>(acc, LANE);
  if (LANE % (32 / C) == 0) part[WARP * C + LANE / (32 / C)] = sum;
  BARRIER();
  if (THREAD < OUTS * R) {
    float total = part[THREAD];
    UNROLL for (int s = 1; s < SPLIT; s++) total += part[s * C + THREAD];
    const int n = first + THREAD / R, m = THREAD % R;
#ifdef ADDED
    if (n < N) y[size_t(m * G + g) * N + n] = Y(total + ADDED(n));
#else
    if (n < N) y[size_t(m * G + g) * N + n] = Y(total);
#endif
  }
