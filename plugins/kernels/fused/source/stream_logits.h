  // part [R, SLICES, N + 1]: this slice of columns of x [R, K] times fn [N, K] in float32, and the sum of its squares. One
  // slice a threadgroup in y, 256 columns a warp; OUTS rows of fn in x. C: OUTS * R up to a power of two.
  SHARED float sums[WARPS * C];
  SHARED float squares[WARPS * 8];
  const auto rows = plain_rows<K, 1>(x, 0);
  const int first = GROUP_X * OUTS, k = (GROUP_Y * WARPS + WARP) * 256 + LANE * 8;
  float acc[C];
  UNROLL for (int c = 0; c < C; c++) acc[c] = 0.0f;
  dot_rows<Matrix<0, K, 8>, R, OUTS, K, K>(rows, fn, fn, fn, size_t(first), size_t(N - 1), k, acc);
  const float sum = warp_sums<C>(acc, LANE);
  if (LANE % (32 / C) == 0) sums[WARP * C + LANE / (32 / C)] = sum;
  if (GROUP_X == 0) {
    float ss[8];
    UNROLL for (int m = 0; m < 8; m++) ss[m] = 0.0f;
    if (k < K) {
      UNROLL for (int m = 0; m < R; m++) {
        float v[8];
        rows.load(m, k, v);
        UNROLL for (int i = 0; i < 8; i++) ss[m] = fused(v[i], v[i], ss[m]);
      }
    }
    const float square = warp_sums<8>(ss, LANE);
    if (LANE % 4 == 0) squares[WARP * 8 + LANE / 4] = square;
  }
  BARRIER();
  if (THREAD < OUTS * R) {
    float total = sums[THREAD];
    UNROLL for (int w = 1; w < WARPS; w++) total += sums[w * C + THREAD];
    const int n = first + THREAD / R, m = THREAD % R;
    if (n < N) part[(m * SLICES + GROUP_Y) * (N + 1) + n] = total;
  }
  if (GROUP_X == 0 && THREAD < R) {
    float total = squares[THREAD];
    UNROLL for (int w = 1; w < WARPS; w++) total += squares[w * 8 + THREAD];
    part[(THREAD * SLICES + GROUP_Y) * (N + 1) + N] = total;
  }
