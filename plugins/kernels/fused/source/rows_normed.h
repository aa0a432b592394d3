template <typename T, int K, int R, typename P, typename Q>
struct NormedRows {  // RMSNorm, rounded to T, as the op's meaning has it
  P x;
  Q gain;
  float inverse[R];
  FN bool has(int) const { return true; }
  FN void load(int m, int k, LOCAL float* v) const {
    float g[8];
    activations<K>(x, size_t(m), k, v);
    activations<K>(gain, size_t(0), k, g);
    UNROLL for (int i = 0; i < 8; i++) v[i] = float(T(v[i] * inverse[m] * g[i]));
  }
};
template <typename T, int K, int R, typename P, typename Q>
FN NormedRows<T, K, R, P, Q> normed_rows(P x, Q gain) {
  NormedRows<T, K, R, P, Q> rows;
  rows.x = x;
  rows.gain = gain;
  return rows;
}
