  // hidden [R * TOPK, N] = swiglu(x W1^T, x W3^T) of each pair's expert: a threadgroup has OUTS rows of W1 and of W3 of the
  // expert of pair GROUP_Y, for all rows that chose it. C: 2 * OUTS * R up to a power of two.
  SHARED float part[SPLIT * C];
  const Members group = members_of(index, GROUP_Y, LANE);
  if (group.count > 0) {  // the same for the whole threadgroup
    const auto rows = member_rows<K, TOPK>(x, group);
    const int first = GROUP_X * OUTS;
    const size_t base = size_t(index[GROUP_Y]) * N;
    float acc[C];
    UNROLL for (int c = 0; c < C; c++) acc[c] = 0.0f;
    dot_rows<MATRIX_A, R, OUTS, K, SPLIT * 256>(rows, PARTS_A, base + first, base + N - 1, (WARP * 32 + LANE) * 8, acc);
    dot_rows<MATRIX_B, R, OUTS, K, SPLIT * 256>(rows, PARTS_B, base + first, base + N - 1, (WARP * 32 + LANE) * 8,
                                                acc + OUTS * R);
    const float sum = warp_sums<C>(acc, LANE);
    if (LANE % (32 / C) == 0) part[WARP * C + LANE / (32 / C)] = sum;
    BARRIER();
    if (THREAD < OUTS * R) {
      const int o = THREAD / R, m = THREAD % R;
      float gate = part[THREAD], up = part[OUTS * R + THREAD];
      UNROLL for (int s = 1; s < SPLIT; s++) {
        gate += part[s * C + THREAD];
        up += part[s * C + OUTS * R + THREAD];
      }
      if (m < group.count && first + o < N) {
        int pair = 0;
        UNROLL for (int i = 0; i < R; i++) pair = i == m ? group.pair[i] : pair;
        hidden[size_t(pair) * N + first + o] = T(swiglu(float(T(gate)), float(T(up)), LIMIT));
      }
    }
  }
