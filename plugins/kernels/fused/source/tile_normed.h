template <typename T, int K, typename P, typename Q>
struct NormedRow {
  P x;
  Q gain;
  size_t at;
  float inverse;
  bool here;
  FN void pairs(int k, LOCAL Pair* out) const {
    float v[8], g[8];
    load8(x + (at + k), v);
    activations<K>(gain, size_t(0), k, g);
    UNROLL for (int i = 0; i < 8; i++) v[i] = float(T(v[i] * inverse * g[i]));
    pairs_of_eight(v, out);
  }
};
template <typename T, int K, typename P, typename Q>
FN NormedRow<T, K, P, Q> normed_row(P x, Q gain, size_t at, float inverse, bool here) {
  NormedRow<T, K, P, Q> row;
  row.x = x;
  row.gain = gain;
  row.at = at;
  row.inverse = inverse;
  row.here = here;
  return row;
}
