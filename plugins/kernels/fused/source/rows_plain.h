template <int K, int G, typename P>
FN Rows<K, G, P> plain_rows(P x, int g) {
  Rows<K, G, P> rows;
  rows.x = x;
  rows.first = g;
  return rows;
}
#define ROWS const auto rows = plain_rows<K, G>(x, g);
