  // score [R, SPAN] = sum_h weight_h relu(<query_h, key>), by tiles: a threadgroup has 16 keys, which a warp reads once; eight
  // heads are a tile's rows, and go round the SPLIT warps. query [R, HEADS, K], keys [SPAN, K].
  constexpr int LEN = 8, BLOCK = LEN * TILE_CHUNKS, BLOCKS = (K + BLOCK - 1) / BLOCK;
  SHARED float part[SPLIT * R * 128];
  const int span = keys_shape[0], first = GROUP_X * 16;
  Pair kept[BLOCKS * TILE_WEIGHTS * 4];
  UNROLL for (int d = 0; d < BLOCKS; d++) {
    const int k = d * BLOCK + tile_chunk(LANE) * LEN;
    UNROLL for (int i = 0; i < TILE_WEIGHTS; i++) {
      const int key = first + tile_weight(LANE, i);
      UNROLL for (int j = 0; j < 4; j++) kept[(d * TILE_WEIGHTS + i) * 4 + j] = pair_of(0.0f, 0.0f);
      if (key < span && (K % BLOCK == 0 || k < K)) pairs8(keys + (size_t(key) * K + k), kept + (d * TILE_WEIGHTS + i) * 4);
    }
  }
  for (int m = 0; m < R; m++) {
    float total[4];
    UNROLL for (int i = 0; i < 4; i++) total[i] = 0.0f;
    for (int at = WARP * 8; at < HEADS; at += SPLIT * 8) {
      const int head = at + tile_x_row(LANE);
      const auto rows = plain_row(query, size_t(m * HEADS + head) * K, head < HEADS);
      float acc[4];
      UNROLL for (int i = 0; i < 4; i++) acc[i] = 0.0f;
      UNROLL for (int d = 0; d < BLOCKS; d++) {
        Pair xs[TILE_XS * 4];
        UNROLL for (int j = 0; j < TILE_XS; j++) {
          const int k = d * BLOCK + tile_x_chunk(LANE, j) * LEN;
          UNROLL for (int i = 0; i < 4; i++) xs[4 * j + i] = pair_of(0.0f, 0.0f);
          if (rows.here && (K % BLOCK == 0 || k < K)) rows.pairs(k, xs + 4 * j);
        }
        tile_multiply(kept + d * TILE_WEIGHTS * 4, xs, acc);
      }
      UNROLL for (int i = 0; i < 4; i++) {
        const int h = at + tile_row(LANE, i);
        if (h < HEADS) total[i] = fused(float(weight[m * HEADS + h]), acc[i] > 0.0f ? acc[i] : 0.0f, total[i]);
      }
    }
    keep_tile<1>(part + (m * SPLIT + WARP) * 128, LANE, total);
  }
  BARRIER();
  for (int at = THREAD; at < R * 16; at += SPLIT * 32) {
    const int m = at / 16, o = at % 16;
    float total = 0.0f;
    for (int i = 0; i < SPLIT * 8; i++) total += part[m * SPLIT * 128 + i * 16 + o];
    if (first + o < span) score[size_t(m) * span + first + o] = total;
  }
