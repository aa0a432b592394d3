template <typename T, int K, typename P, typename Q>
struct SwigluRow {
  SwigluRows<T, K, P, Q> all;
  int m;
  bool here;
  FN void pairs(int k, LOCAL Pair* out) const {
    float v[8];
    all.load(m, k, v);
    pairs_of_eight(v, out);
  }
};
template <typename T, int K, typename P, typename Q>
FN SwigluRow<T, K, P, Q> swiglu_row(P gate, Q up, float limit, int m, bool here) {
  SwigluRow<T, K, P, Q> row;
  row.all = swiglu_rows<T, K>(gate, up, limit);
  row.m = m;
  row.here = here;
  return row;
}
#define TILE_ROWS const auto rows = swiglu_row<T, K>(gate, up, LIMIT, mine, mine < R);
