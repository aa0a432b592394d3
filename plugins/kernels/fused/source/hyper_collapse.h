  // y [R, D] = sum_i pre_i X_i of row GROUP_Y, X [R, HC, D], pre out of the logits' parts [R, SLICES, N + 1] (the last one is
  // the sum of squares of all of the row). With SINKHORN one more threadgroup writes post [R, HC] and comb [R, HC, HC].
  SHARED float sums[N + 1];
  const int row = GROUP_Y;
  for (int c = THREAD; c <= N; c += THREADS) {
    float total = 0.0f;
    for (int i = 0; i < SLICES; i++) total += part[(row * SLICES + i) * (N + 1) + c];
    sums[c] = total;
  }
  BARRIER();
  const float inverse = inverse_root(fused(sums[N], 1.0f / float(HC * D), EPS));
  const int column = (GROUP_X * THREADS + THREAD) * 8;
  if (column < D) {
    float acc[8];
    UNROLL for (int j = 0; j < 8; j++) acc[j] = 0.0f;
    UNROLL for (int i = 0; i < HC; i++) {
      float v[8];
      const float pre = sigmoid(fused(sums[i] * inverse, float(scale[0]), float(base[i]))) + HC_EPS;
      activations<D>(x, size_t(row * HC + i), column, v);
      UNROLL for (int j = 0; j < 8; j++) acc[j] = fused(pre, v[j], acc[j]);
    }
    store_some<D>(y + (size_t(row) * D + column), D - column, acc);
  }
#ifdef SINKHORN
  if (GROUP_X == GROUPS - 1 && THREAD == 0) {
    float c[HC * HC];
    UNROLL for (int j = 0; j < HC; j++) {
      float top = LOWEST, total = 0.0f;
      UNROLL for (int k = 0; k < HC; k++) {
        const int n = (2 + j) * HC + k;
        c[j * HC + k] = fused(sums[n] * inverse, float(scale[2]), float(base[n]));
        top = c[j * HC + k] > top ? c[j * HC + k] : top;
      }
      UNROLL for (int k = 0; k < HC; k++) {
        c[j * HC + k] = exponential(c[j * HC + k] - top);
        total += c[j * HC + k];
      }
      const float share = 1.0f / total;
      UNROLL for (int k = 0; k < HC; k++) c[j * HC + k] = c[j * HC + k] * share + HC_EPS;
    }
    shares<HC, true>(c, HC_EPS);
    for (int i = 1; i < SINKHORN; i++) {
      shares<HC, false>(c, HC_EPS);
      shares<HC, true>(c, HC_EPS);
    }
    UNROLL for (int i = 0; i < HC; i++)
      post[row * HC + i] = 2.0f * sigmoid(fused(sums[HC + i] * inverse, float(scale[1]), float(base[HC + i])));
    UNROLL for (int i = 0; i < HC * HC; i++) comb[row * HC * HC + i] = c[i];
  }
#endif
