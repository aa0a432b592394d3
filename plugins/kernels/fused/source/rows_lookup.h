template <typename M, typename W, typename S, typename B>
struct LookupRows {  // one row: that of a token in a stored table
  W w;
  S s;
  B b;
  size_t token;
  FN bool has(int) const { return true; }
  FN void load(int, int k, LOCAL float* v) const { M::load(w, s, b, token, k, v); }
};
template <typename M, typename W, typename S, typename B>
FN LookupRows<M, W, S, B> lookup_rows(W w, S s, B b, size_t token) {
  LookupRows<M, W, S, B> rows;
  rows.w = w;
  rows.s = s;
  rows.b = b;
  rows.token = token;
  return rows;
}
#define ROWS const auto rows = lookup_rows<MATRIX_B>(PARTS_B, size_t(token[0]));
#define ADDED(n) float(base[n])
