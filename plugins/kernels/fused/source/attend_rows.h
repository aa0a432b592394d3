  // One query row (GROUP_Y) and HEADS of its heads: online softmax over its window keys and its selected rows, in order, key
  // j of each list by warp j % WARPS; -1 is no key. Then the warps' parts, the sink, and the rotation taken back.
  SHARED float tops[WARPS * HEADS];
  SHARED float totals[WARPS * HEADS];
  SHARED float sums[WARPS * D];
  const int row = GROUP_Y, head = GROUP_X * HEADS;
  float q[HEADS * LANES], acc[HEADS * LANES], top[HEADS], total[HEADS];
  UNROLL for (int h = 0; h < HEADS; h++) {
    top[h] = LOWEST;
    total[h] = 0.0f;
    UNROLL for (int i = 0; i < LANES; i++) {
      const int d = i * 32 + LANE;
      acc[h * LANES + i] = 0.0f;
      q[h * LANES + i] = d < D && head + h < H ? float(query[(size_t(row) * H + head + h) * D + d]) * SCALE : 0.0f;
    }
  }
#define VISIT(KEYS, INDEX, COUNT)                                                                  \
  for (int j = WARP; j < COUNT; j += WARPS) {                                                      \
    const int at = INDEX[row * COUNT + j];                                                         \
    if (at >= 0) { /* the same for the whole warp */                                               \
      float key[LANES];                                                                            \
      UNROLL for (int i = 0; i < LANES; i++) {                                                     \
        const int d = i * 32 + LANE;                                                               \
        key[i] = d < D ? float(KEYS[size_t(at) * D + d]) : 0.0f;                                   \
      }                                                                                            \
      UNROLL for (int h = 0; h < HEADS; h++) {                                                     \
        float dot = 0.0f;                                                                          \
        UNROLL for (int i = 0; i < LANES; i++) dot = fused(q[h * LANES + i], key[i], dot);         \
        const float score = warp_sum(dot);                                                         \
        const float higher = score > top[h] ? score : top[h];                                      \
        const float shrink = exponential(top[h] - higher), mass = exponential(score - higher);     \
        top[h] = higher;                                                                           \
        total[h] = fused(total[h], shrink, mass);                                                  \
        UNROLL for (int i = 0; i < LANES; i++)                                                     \
          acc[h * LANES + i] = fused(mass, key[i], acc[h * LANES + i] * shrink);                   \
      }                                                                                            \
    }                                                                                              \
  }
  VISIT(ring, slots, slots_shape[1])
#ifdef SELECTED
  VISIT(rows, select, select_shape[1])
#endif
  if (LANE == 0) {
    UNROLL for (int h = 0; h < HEADS; h++) {
      tops[WARP * HEADS + h] = top[h];
      totals[WARP * HEADS + h] = total[h];
    }
  }
  for (int h = 0; h < HEADS; h++) {
    UNROLL for (int i = 0; i < LANES; i++) {
      float mine = 0.0f;
      UNROLL for (int g = 0; g < HEADS; g++) mine = g == h ? acc[g * LANES + i] : mine;
      if (i * 32 + LANE < D) sums[WARP * D + i * 32 + LANE] = mine;
    }
    BARRIER();
    if (head + h < H) {
      float most = float(sink[head + h]), mass = 0.0f;
      for (int w = 0; w < WARPS; w++) most = tops[w * HEADS + h] > most ? tops[w * HEADS + h] : most;
      for (int w = 0; w < WARPS; w++)
        mass = fused(totals[w * HEADS + h], exponential(tops[w * HEADS + h] - most), mass);
      const float share = 1.0f / (mass + exponential(float(sink[head + h]) - most));
      for (int d = THREAD * 2; d < D; d += WARPS * 64) {
        float a = 0.0f, b = 0.0f;
        for (int w = 0; w < WARPS; w++) {
          const float factor = exponential(tops[w * HEADS + h] - most);
          a = fused(sums[w * D + d], factor, a);
          b = fused(sums[w * D + d + 1], factor, b);
        }
        a = a * share;
        b = b * share;
        const int pair = (d - (D - ROTARY)) / 2;
        if (d >= D - ROTARY) {
          const float c = float(cos[row * (ROTARY / 2) + pair]), s = float(sin[row * (ROTARY / 2) + pair]);
          const float turned = fused(a, c, b * s);
          b = fused(b, c, -(a * s));
          a = turned;
        }
        y[(size_t(row) * H + head + h) * D + d] = T(a);
        y[(size_t(row) * H + head + h) * D + d + 1] = T(b);
      }
    }
    BARRIER();
  }
