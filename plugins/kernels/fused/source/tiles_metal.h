// Tiles (tile.h) by matrices of 8 by 8: two of them 16 rows of a matrix, 8 of activations, 8 parts of columns.
typedef float2 Pair;
#define TILE_WEIGHTS 4
#define TILE_CHUNKS 8
#define TILE_XS 2
#define MX_FACTOR 1.0f
#define MXFP4_LEN(k) 32
#define LOADED()
FN int matrix_row(int lane) { return (lane / 4 & 4) + lane / 2 % 4; }
FN int matrix_column(int lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }
FN int tile_weight(int lane, int i) { return matrix_column(lane) + i % 2 + 8 * (i / 2); }
FN int tile_chunk(int lane) { return matrix_row(lane); }
FN int tile_x_row(int lane) { return matrix_row(lane); }
FN int tile_x_chunk(int lane, int i) { return matrix_column(lane) + i; }
FN int tile_out(int lane, int i) { return tile_weight(lane, i); }
FN int tile_row(int lane, int) { return matrix_row(lane); }
FN void tile_multiply(LOCAL Pair* w, LOCAL Pair* x, LOCAL float* acc) {
  UNROLL for (int h = 0; h < 2; h++) {
    metal::simdgroup_float8x8 a, b, c;
    c.thread_elements() = float2(acc[2 * h], acc[2 * h + 1]);
    UNROLL for (int i = 0; i < 8; i++) {
      a.thread_elements() = float2(x[i / 2][i % 2], x[4 + i / 2][i % 2]);
      b.thread_elements() = float2(w[8 * h + i / 2][i % 2], w[8 * h + 4 + i / 2][i % 2]);
      metal::simdgroup_multiply_accumulate(c, a, b, c);
    }
    acc[2 * h] = c.thread_elements()[0];
    acc[2 * h + 1] = c.thread_elements()[1];
  }
}
FN Pair pair_of(float low, float high) { return float2(low, high); }
FN void pairs_of(LOCAL float* v, float factor, LOCAL Pair* out) {
  UNROLL for (int i = 0; i < 4; i++) out[i] = float2(factor * v[i], factor * v[i + 4]);
}
template <typename P>
FN void pairs8(P p, LOCAL Pair* out) {
  UNROLL for (int i = 0; i < 4; i++) out[i] = float2(float(p[i]), float(p[i + 4]));
}
template <typename P>
FN void weights8(P p, LOCAL Pair* out) { pairs8(p, out); }
template <int N, typename P>
FN void words(P p, LOCAL uint* out) {
  UNROLL for (int i = 0; i < N; i++) out[i] = p[i];
}
template <int N, typename P>
FN void bytes(P p, LOCAL uint* out) {
  UNROLL for (int i = 0; i < N; i++) out[i] = uint(p[i]);
}
FN void fp4_pairs(uint word, uint byte, LOCAL Pair* out) {
  float v[8];
  fp4x8(word, v);
  pairs_of(v, float_of_bits((byte + 14u) << 23), out);
}
FN void fp8_pairs(uint first, uint second, uint byte, LOCAL Pair* out) {
  float v[8];
  fp8x4(first, v);
  fp8x4(second, v + 4);
  pairs_of(v, float_of_bits((byte + 8u) << 23), out);
}
FN void u4_pairs(uint word, LOCAL Pair* out) {
  float v[8];
  u4x8(word, v);
  UNROLL for (int i = 0; i < 8; i++) v[i] = v[i] - 8.0f;
  pairs_of(v, 1.0f, out);
}
FN void u8_pairs(uint first, uint second, LOCAL Pair* out) {
  float v[8];
  u8x4(first, v);
  u8x4(second, v + 4);
  UNROLL for (int i = 0; i < 8; i++) v[i] = v[i] - 128.0f;
  pairs_of(v, 1.0f, out);
}