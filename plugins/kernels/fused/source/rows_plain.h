template <int K, int G, typename P>
FN Rows<K, G, P> plain_rows(P x, int g) {
  Rows<K, G, P> rows;
  rows.x = x;
  rows.first = g;
  return rows;
}
#define ROWS const auto rows = plain_rows<K, G>(x, g);
#define TILE_ROWS const auto rows = plain_row(x, size_t(mine * G + g) * K, mine < R);
