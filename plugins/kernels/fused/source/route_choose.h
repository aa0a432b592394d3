  // The TOPK experts of row GROUP_Y of largest sqrt(softplus(score)) + bias, of equal ones the lower; ascending, with their
  // shares. One warp a row; expert i * 32 + LANE in slot i.
  SHARED int picked[TOPK];
  SHARED float values[TOPK];
  const int row = GROUP_Y;
  float by[LANES];
  UNROLL for (int i = 0; i < LANES; i++) {
    const int e = i * 32 + LANE;
    by[i] = e < E ? affinity(float(score[row * E + e])) + float(bias[e]) : LOWEST;
  }
  int rank = 0, own = 0;
  for (int t = 0; t < TOPK; t++) {
    float top = LOWEST;
    UNROLL for (int i = 0; i < LANES; i++) top = by[i] > top ? by[i] : top;
    top = warp_max(top);
    int first = E - 1;
    UNROLL for (int i = LANES - 1; i >= 0; i--) {
      if (by[i] == top && i * 32 + LANE < E) first = i * 32 + LANE;
    }
    const int e = -int(warp_max(-float(first)));  // the lowest expert of this score: small integers are exact
    UNROLL for (int i = 0; i < LANES; i++) by[i] = i * 32 + LANE == e ? LOWEST : by[i];
    if (LANE == t) own = e;
  }
  for (int t = 0; t < TOPK; t++) {
    const int other = lane_value(own, t);
    rank += other < own || (other == own && t < LANE) ? 1 : 0;
  }
  if (LANE < TOPK) {
    picked[rank] = own;
    values[rank] = affinity(float(score[row * E + own]));
  }
  BARRIER();
  if (LANE < TOPK) {
    float total = 0.0f;
    for (int t = 0; t < TOPK; t++) total += values[t];
    index[row * TOPK + LANE] = picked[LANE];
    weight[row * TOPK + LANE] = values[LANE] / (total + 1e-20f) * SCALE;
  }
