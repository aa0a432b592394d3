  // y [R, H, D] = x, normed (NORMED) with a gain (GAINED), its last ROTARY channels turned in pairs; a head a warp.
  const int row = GROUP_Y, head = GROUP_X * WARPS + WARP;
  if (head < H) {  // the same for the whole warp
    const size_t at = (size_t(row) * H + head) * D;
    float v[2 * PAIRS], scale = 1.0f;
    UNROLL for (int i = 0; i < PAIRS; i++) {
      const int d = 2 * (i * 32 + LANE);
      v[2 * i] = d < D ? float(x[at + d]) : 0.0f;
      v[2 * i + 1] = d < D ? float(x[at + d + 1]) : 0.0f;
    }
#ifdef NORMED
    float ss = 0.0f;
    UNROLL for (int i = 0; i < 2 * PAIRS; i++) ss = fused(v[i], v[i], ss);
    scale = inverse_root(fused(warp_sum(ss), 1.0f / float(D), NORMED));
#endif
    UNROLL for (int i = 0; i < PAIRS; i++) {
      const int d = 2 * (i * 32 + LANE), pair = (d - (D - ROTARY)) / 2;
      if (d < D) {
        float a = v[2 * i] * scale, b = v[2 * i + 1] * scale;
#ifdef GAINED
        a = a * float(gain[d]);
        b = b * float(gain[d + 1]);
#endif
        if (d >= D - ROTARY) {
          const float c = float(cos[row * (ROTARY / 2) + pair]), s = float(sin[row * (ROTARY / 2) + pair]);
          const float turned = fused(a, c, -(b * s));
          b = fused(a, s, b * c);
          a = turned;
        }
        y[at + d] = T(a);
        y[at + d + 1] = T(b);
      }
    }
  }
