template <typename T, int K, typename P, typename Q>
struct SwigluRows {  // rounded to T, as the op's meaning has it
  P gate;
  Q up;
  float limit;
  FN bool has(int) const { return true; }
  FN void load(int m, int k, LOCAL float* v) const {
    float u[8];
    activations<K>(gate, size_t(m), k, v);
    activations<K>(up, size_t(m), k, u);
    UNROLL for (int i = 0; i < 8; i++) v[i] = float(T(swiglu(v[i], u[i], limit)));
  }
};
template <typename T, int K, typename P, typename Q>
FN SwigluRows<T, K, P, Q> swiglu_rows(P gate, Q up, float limit) {
  SwigluRows<T, K, P, Q> rows;
  rows.gate = gate;
  rows.up = up;
  rows.limit = limit;
  return rows;
}
#define ROWS const auto rows = swiglu_rows<T, K>(gate, up, LIMIT);
