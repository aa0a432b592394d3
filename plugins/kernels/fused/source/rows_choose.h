  // index [R, WIDTH] of row GROUP_Y: the TOPK of its first visible[row] scores that are largest, of equal ones the lower, all
  // of them where they are not more; ascending, then -1. The TOPK-th largest value is found bit by bit from above, on
  // scores as unsigned numbers of the same order; each warp has a stretch of the row, so that what it takes is in order.
  SHARED int counts[WARPS * 3];
  SHARED int places[WARPS * 2];
  const int row = GROUP_Y, span = score_shape[1];
  const int seen = visible[row] < span ? visible[row] : span;
  const int stretch = ((seen + WARPS - 1) / WARPS + 31) / 32 * 32;
  const int begin = WARP * stretch, end = begin + stretch < seen ? begin + stretch : seen;
  uint least = 0u;
  if (seen > TOPK) {  // the same for the whole threadgroup
    for (int shift = 30; shift >= 0; shift -= 2) {  // two bits a time: how many are at least least + 1, 2, 3 steps
      int found[3];
      UNROLL for (int c = 0; c < 3; c++) found[c] = 0;
      for (int i = begin + LANE; i < end; i += 32) {
        const uint value = ordered(float(score[size_t(row) * span + i]));
        UNROLL for (int c = 0; c < 3; c++) found[c] += value >= least + (uint(c + 1) << shift) ? 1 : 0;
      }
      UNROLL for (int c = 0; c < 3; c++) found[c] = warp_total(found[c]);
      if (LANE == 0) {
        UNROLL for (int c = 0; c < 3; c++) counts[WARP * 3 + c] = found[c];
      }
      BARRIER();
      int steps = 0;
      UNROLL for (int c = 0; c < 3; c++) {
        int total = 0;
        for (int w = 0; w < WARPS; w++) total += counts[w * 3 + c];
        steps = total >= TOPK ? c + 1 : steps;
      }
      least += uint(steps) << shift;
      BARRIER();
    }
  }
  int above = 0, level = 0;
  for (int i = begin + LANE; i < end; i += 32) {
    const uint value = ordered(float(score[size_t(row) * span + i]));
    above += seen <= TOPK || value > least ? 1 : 0;
    level += seen > TOPK && value == least ? 1 : 0;
  }
  above = warp_total(above);
  level = warp_total(level);
  if (LANE == 0) {
    places[WARP * 2] = above;
    places[WARP * 2 + 1] = level;
  }
  BARRIER();
  int higher = 0, at = 0, equal = 0;
  for (int w = 0; w < WARPS; w++) higher += places[w * 2];
  const int missing = seen > TOPK ? TOPK - higher : 0;
  for (int w = 0; w < WARP; w++) {
    at += places[w * 2];
    equal += places[w * 2 + 1];
  }
  at += equal < missing ? equal : missing;
  for (int base = begin; base < end; base += 32) {
    const int i = base + LANE;
    const uint value = i < end ? ordered(float(score[size_t(row) * span + i])) : 0u;
    const bool same = i < end && seen > TOPK && value == least;
    const uint level_mask = ballot(same), before = (1u << LANE) - 1u;
    const bool taken = i < end && (seen <= TOPK || value > least || (same && equal + bits(level_mask & before) < missing));
    const uint mask = ballot(taken);
    if (taken) index[row * WIDTH + at + bits(mask & before)] = i;
    at += bits(mask);
    equal += bits(level_mask);
  }
  const int kept = seen <= TOPK ? seen : TOPK;
  for (int i = kept + THREAD; i < WIDTH; i += WARPS * 32) index[row * WIDTH + i] = -1;
