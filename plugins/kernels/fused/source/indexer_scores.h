  // score [R, SPAN] = sum_h weight_h relu(<query_h, key>), by tiles: a threadgroup has 16 keys, eight heads are a tile's rows.
  // Heads in eights go round the SPLIT warps. query [R, HEADS, K], keys [SPAN, K].
  RING(SPLIT * RING_WORDS);
  SHARED float part[SPLIT * R * 128];
  const int span = keys_shape[0], first = GROUP_X * 16;
  const size_t last = size_t(span - 1);
  for (int m = 0; m < R; m++) {
    float total[4];
    UNROLL for (int i = 0; i < 4; i++) total[i] = 0.0f;
    for (int at = WARP * 8; at < HEADS; at += SPLIT * 8) {
      const int head = at + tile_x_row(LANE);
      float acc[4];
      UNROLL for (int i = 0; i < 4; i++) acc[i] = 0.0f;
      const auto rows = plain_row(query, size_t(m * HEADS + head) * K, head < HEADS);
      tile_dot<Tile<0, K, 8>, K, 8, 1, MT>(rows, keys, keys, keys, size_t(first), last, 0, LANE, ring + WARP * RING_WORDS,
                                           acc);
      UNROLL for (int i = 0; i < 4; i++) {
        const int h = at + tile_row(LANE, i);
        if (h < HEADS) total[i] = fused(float(weight[m * HEADS + h]), acc[i] > 0.0f ? acc[i] : 0.0f, total[i]);
      }
    }
    keep_tile<MT>(part + (m * SPLIT + WARP) * 128, LANE, total);
  }
  BARRIER();
  for (int at = THREAD; at < R * 16; at += SPLIT * 32) {
    const int m = at / 16, o = at % 16;
    float total = 0.0f;
    for (int i = 0; i < SPLIT * 8; i++) total += part[m * SPLIT * 128 + i * 16 + o];
    if (first + o < span) score[size_t(m) * span + first + o] = total;
  }
