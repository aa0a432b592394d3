  // y_k [R, HC, D] = post_k branch + sum_j comb_jk X_j of row GROUP_Y: eight columns a thread.
  const int row = GROUP_Y, column = (GROUP_X * THREADS + THREAD) * 8;
  if (column < D) {
    float acc[HC * 8], v[8];
    activations<D>(branch, size_t(row), column, v);
    UNROLL for (int k = 0; k < HC; k++) {
      UNROLL for (int i = 0; i < 8; i++) acc[k * 8 + i] = float(post[row * HC + k]) * v[i];
    }
    UNROLL for (int j = 0; j < HC; j++) {
      activations<D>(x, size_t(row * HC + j), column, v);
      UNROLL for (int k = 0; k < HC; k++) {
        const float share = float(comb[(row * HC + j) * HC + k]);
        UNROLL for (int i = 0; i < 8; i++) acc[k * 8 + i] = fused(share, v[i], acc[k * 8 + i]);
      }
    }
    UNROLL for (int k = 0; k < HC; k++)
      store_some<D>(y + (size_t(row * HC + k) * D + column), D - column, acc + k * 8);
  }
