#define ROWS const auto rows = plain_rows<K, G>(x, g);
