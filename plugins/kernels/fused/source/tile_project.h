  // As project_rows.h, by tiles: normed [R, K] and one product with each matrix of EACH(X), X(letter, first group, rows);
  // GROUPS threadgroups, each of which norms the rows anew and writes a part of them down.
  SHARED float squares[SPLIT * 8];
  SHARED float part[SPLIT * MT * 128];
  {
    float ss[8];
    UNROLL for (int m = 0; m < 8; m++) ss[m] = 0.0f;
    for (int k = THREAD * 8; k < K; k += SPLIT * 256) {
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
  const int mine = tile_x_row(LANE);
  float total = squares[mine];
  UNROLL for (int s = 1; s < SPLIT; s++) total += squares[s * 8 + mine];
  const float own = inverse_root(fused(total, 1.0f / float(K), EPS));
  const auto rows = normed_row<T, K>(x, gain, size_t(mine) * K, own, mine < R);
  for (int at = GROUP_X * SPLIT * 32 + THREAD; at < R * K; at += GROUPS * SPLIT * 32) {
    const int m = at / K, k = at % K;
    float square = squares[m];
    UNROLL for (int s = 1; s < SPLIT; s++) square += squares[s * 8 + m];
    normed[at] = T(float(x[at]) * inverse_root(fused(square, 1.0f / float(K), EPS)) * float(gain[k]));
  }
  float acc[4 * MT], factor = 1.0f;
  UNROLL for (int i = 0; i < 4 * MT; i++) acc[i] = 0.0f;
#define MULTIPLY(M, START, N)                                                                                      \
  if (GROUP_X >= START && (GROUP_X - START) * 16 * MT < N) {                                                          \
    tile_dot<TILE_##M, K, GROUP_##M, SPLIT, MT>(rows, PARTS_##M, size_t((GROUP_X - START) * 16 * MT), size_t(N - 1),    \
                                                WARP, LANE, acc);                                                     \
    factor = TILE_##M::factor();                                                                                      \
  }
  EACH(MULTIPLY)
  keep_tile<MT>(part + WARP * MT * 128, LANE, acc);
  BARRIER();
  for (int at = THREAD; at < MT * 128; at += SPLIT * 32) {
    const int m = at / 16 % 8, o = at / 128 * 16 + at % 16;
    const float sum = tile_total<SPLIT, MT>(part, at) * factor;
#define WRITE(M, START, N)                                                                                       \
  if (m < R && GROUP_X >= START && (GROUP_X - START) * 16 * MT + o < N && (GROUP_X - START) * 16 * MT < N)             \
    y_##M[m * N + (GROUP_X - START) * 16 * MT + o] = T(sum);
    EACH(WRITE)
  }
