  // y [R, N] = sum over a row's choices of weight * (hidden W2^T), float32. A threadgroup has OUTS columns of y; its warps
  // share the pairs, the sum over choices runs in their own order. C: OUTS * R up to a power of two.
  SHARED float part[R * TOPK * OUTS];
  const int first = GROUP_X * OUTS;
  for (int pair = WARP; pair < R * TOPK; pair += WARPS) {
    const auto rows = member_rows<K, 1>(hidden, members_of(index, pair, LANE));
    if (rows.group.count > 0) {  // the same for the whole warp
      const size_t base = size_t(index[pair]) * N;
      float acc[C];
      UNROLL for (int c = 0; c < C; c++) acc[c] = 0.0f;
      dot_rows<MATRIX_A, R, OUTS, K, 256>(rows, PARTS_A, base + first, base + N - 1, LANE * 8, acc);
      const float sum = warp_sums<C>(acc, LANE);
      const int slot = LANE / (32 / C), m = slot % R;
      int mine = 0;
      UNROLL for (int i = 0; i < R; i++) mine = i == m ? rows.group.pair[i] : mine;
      if (LANE % (32 / C) == 0 && slot < OUTS * R && m < rows.group.count) part[mine * OUTS + slot / R] = float(T(sum));
    }
  }
  BARRIER();
  if (THREAD < OUTS * R) {
    const int m = THREAD / OUTS, o = THREAD % OUTS;
    float total = 0.0f;
    for (int j = 0; j < TOPK; j++) total = fused(weight[m * TOPK + j], part[(m * TOPK + j) * OUTS + o], total);
    if (first + o < N) y[m * N + first + o] = total;
  }
