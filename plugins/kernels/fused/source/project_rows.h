  // normed [R, K] = RMSNorm(x) * gain, and one product with each matrix of EACH(X), X(letter, first group, rows). Every
  // threadgroup norms the rows anew (they stay in its cache); the first one writes them down.
  SHARED float squares[SPLIT * 8];
  SHARED float part[SPLIT * C];
  auto rows = normed_rows<T, K, R>(x, gain);
  {
    float ss[8];
    UNROLL for (int m = 0; m < 8; m++) ss[m] = 0.0f;
    for (int k = (WARP * 32 + LANE) * 8; k < K; k += SPLIT * 256) {
      UNROLL for (int m = 0; m < R; m++) {
        float v[8];
        activations<K>(x, size_t(m), k, v);
        UNROLL for (int i = 0; i < 8; i++) ss[m] = fused(v[i], v[i], ss[m]);
      }
    }
    const float sum = warp_sums<8>(ss, LANE);
    if (LANE % 4 == 0) squares[WARP * 8 + LANE / 4] = sum;
  }
  BARRIER();
  UNROLL for (int m = 0; m < R; m++) {
    float total = squares[m];
    UNROLL for (int s = 1; s < SPLIT; s++) total += squares[s * 8 + m];
    rows.inverse[m] = inverse_root(fused(total, 1.0f / float(K), EPS));
  }
  if (GROUP_X == 0) {
    for (int k = (WARP * 32 + LANE) * 8; k < K; k += SPLIT * 256) {
      for (int m = 0; m < R; m++) {
        float v[8];
        rows.load(m, k, v);
        for (int i = 0; i < 8 && k + i < K; i++) normed[m * K + k + i] = T(v[i]);
      }
    }
  }
  float acc[C];
  UNROLL for (int c = 0; c < C; c++) acc[c] = 0.0f;
#define MULTIPLY(M, START, N)                                                                                        \
  if (GROUP_X >= START && (GROUP_X - START) * OUTS < N)                                                              \
    dot_rows<MATRIX_##M, R, OUTS, K, SPLIT * 256>(rows, PARTS_##M, size_t((GROUP_X - START) * OUTS), size_t(N - 1),  \
                                                  (WARP * 32 + LANE) * 8, acc);
  EACH(MULTIPLY)
  const float sum = warp_sums<C>(acc, LANE);
  if (LANE % (32 / C) == 0) part[WARP * C + LANE / (32 / C)] = sum;
  BARRIER();
  if (THREAD < OUTS * R) {
    float total = part[THREAD];
    UNROLL for (int s = 1; s < SPLIT; s++) total += part[s * C + THREAD];
    const int o = THREAD / R, m = THREAD % R;
#define WRITE(M, START, N)                                                   \
  if (GROUP_X >= START && (GROUP_X - START) * OUTS + o < N && (GROUP_X - START) * OUTS < N)  \
    y_##M[m * N + (GROUP_X - START) * OUTS + o] = T(total);
    EACH(WRITE)
  }
