  // One query row (GROUP_Y) and HEADS of its heads: online softmax over its window keys and its selected rows, in order, BATCH
  // neighbouring keys of a list at a time, batch j by warp j % WARPS; -1 is no key. Then the warps' parts, the sink, and the
  // rotation taken back. What is loaded ahead hides the way to memory: keys of a batch do not wait for each other.
  SHARED float tops[WARPS * HEADS];
  SHARED float totals[WARPS * HEADS];
  SHARED float sums[WARPS * D];
  const int row = GROUP_Y, head = GROUP_X * HEADS;
  float q[HEADS * LANES], acc[HEADS * LANES], top[HEADS], total[HEADS];
  UNROLL for (int h = 0; h < HEADS; h++) {
    top[h] = LOWEST;
    total[h] = 0.0f;
    Channels<D, LANES, VECTOR>::load(query + (size_t(row) * H + (head + h < H ? head + h : 0)) * D, head + h < H, LANE,
                                     q + h * LANES);
    UNROLL for (int i = 0; i < LANES; i++) {
      acc[h * LANES + i] = 0.0f;
      q[h * LANES + i] *= SCALE;
    }
  }
#define VISIT(KEYS, INDEX, COUNT)                                                                                  \
  for (int first = WARP * BATCH; first < COUNT; first += WARPS * BATCH) {                                          \
    int at[BATCH];                                                                                                 \
    bool some = false;                                                                                             \
    UNROLL for (int b = 0; b < BATCH; b++) {                                                                       \
      at[b] = first + b < COUNT ? INDEX[row * COUNT + first + b] : -1;                                             \
      some = some || at[b] >= 0;                                                                                   \
    }                                                                                                              \
    if (some) { /* the same for the whole warp */                                                                  \
      float key[BATCH * LANES], dots[HEADS * BATCH];                                                               \
      UNROLL for (int b = 0; b < BATCH; b++)                                                                       \
        Channels<D, LANES, VECTOR>::load(KEYS + size_t(at[b] < 0 ? 0 : at[b]) * D, at[b] >= 0, LANE, key + b * LANES); \
      UNROLL for (int h = 0; h < HEADS; h++) {                                                                     \
        UNROLL for (int b = 0; b < BATCH; b++) {                                                                   \
          float dot = 0.0f;                                                                                        \
          UNROLL for (int i = 0; i < LANES; i++) dot = fused(q[h * LANES + i], key[b * LANES + i], dot);           \
          dots[h * BATCH + b] = dot;                                                                               \
        }                                                                                                          \
      }                                                                                                            \
      const float mine = warp_sums<HEADS * BATCH>(dots, LANE);                                                     \
      UNROLL for (int h = 0; h < HEADS; h++) {                                                                     \
        float score[BATCH], higher = top[h];                                                                       \
        UNROLL for (int b = 0; b < BATCH; b++) {                                                                   \
          score[b] = float_of_lane(mine, (h * BATCH + b) * (32 / (HEADS * BATCH)));                                \
          higher = at[b] >= 0 && score[b] > higher ? score[b] : higher;                                            \
        }                                                                                                          \
        const float shrink = exponential(top[h] - higher);                                                         \
        top[h] = higher;                                                                                           \
        float masses = 0.0f;                                                                                       \
        UNROLL for (int i = 0; i < LANES; i++) acc[h * LANES + i] *= shrink;                                       \
        UNROLL for (int b = 0; b < BATCH; b++) {                                                                   \
          const float mass = at[b] >= 0 ? exponential(score[b] - higher) : 0.0f;                                   \
          masses += mass;                                                                                          \
          UNROLL for (int i = 0; i < LANES; i++)                                                                   \
            acc[h * LANES + i] = fused(mass, key[b * LANES + i], acc[h * LANES + i]);                              \
        }                                                                                                          \
        total[h] = fused(total[h], shrink, masses);                                                                \
      }                                                                                                            \
    }                                                                                                              \
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
      if (channel_of<D, VECTOR>(LANE, i) < D) sums[WARP * D + channel_of<D, VECTOR>(LANE, i)] = mine;
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
