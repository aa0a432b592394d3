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
