  // y [M, D]: window GROUP_X pooled over its SLOTS, for every channel on its own, normed with a gain, rotated. Two channels
  // at a time a thread, PAIRS times.
  SHARED float squares[WARPS];
  const int window = GROUP_X;
  float v[2 * PAIRS], ss = 0.0f;
  UNROLL for (int i = 0; i < 2 * PAIRS; i++) {
    const int d = 2 * ((i / 2) * WARPS * 32 + THREAD) + i % 2;
    v[i] = 0.0f;
    if (d < D) {
      float top = LOWEST, total = 0.0f, sum = 0.0f;
      for (int s = 0; s < SLOTS; s++) {
        const float g = float(gate[(size_t(window) * SLOTS + s) * D + d]);
        top = g > top ? g : top;
      }
      for (int s = 0; s < SLOTS; s++) {
        const size_t at = (size_t(window) * SLOTS + s) * D + d;
        const float g = float(gate[at]);
        const float share = exponential((g > LOWEST ? g : LOWEST) - top);
        total += share;
        sum = fused(share, float(kv[at]), sum);
      }
      v[i] = sum / total;
    }
    ss = fused(v[i], v[i], ss);
  }
  const float mine = warp_sum(ss);
  if (LANE == 0) squares[WARP] = mine;
  BARRIER();
  float total = squares[0];
  UNROLL for (int w = 1; w < WARPS; w++) total += squares[w];
  const float scale = inverse_root(fused(total, 1.0f / float(D), EPS));
  UNROLL for (int i = 0; i < PAIRS; i++) {
    const int d = 2 * (i * WARPS * 32 + THREAD), pair = (d - (D - ROTARY)) / 2;
    if (d < D) {
      float a = v[2 * i] * scale * float(gain[d]), b = v[2 * i + 1] * scale * float(gain[d + 1]);
      if (d >= D - ROTARY) {
        const float c = float(cos[window * (ROTARY / 2) + pair]), s = float(sin[window * (ROTARY / 2) + pair]);
        const float turned = fused(a, c, -(b * s));
        b = fused(a, s, b * c);
        a = turned;
      }
      y[size_t(window) * D + d] = a;
      y[size_t(window) * D + d + 1] = b;
    }
  }
