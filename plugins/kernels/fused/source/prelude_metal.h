// The portable kernel dialect, for Metal. prelude_cuda.h defines the same names; nothing else may be used in a body.
//
//   FN            a device function            LOCAL / SHARED   address spaces of a thread / a threadgroup; CONSTANT: of a static member
//   UNROLL        in front of a loop of constant length whose index addresses registers
//   BARRIER()     of threadgroup memory; every thread of the group reaches it
//   LANE WARP THREAD GROUP_X GROUP_Y           where a thread is (declared by the prologue, as int)
//   fused(a, b, c) = a * b + c rounded once    the only way to accumulate: no compiler may choose for itself
//   warp_sum, warp_max, shuffle_xor, warp_total, lane_value, ballot, lowest, bits;
//   exponential, inverse_root, square_root, float_of_bits, bits_of_float
//   load8(p, v): eight elements, p a multiple of eight elements from the start of a row-contiguous array
//   store8(p, v): eight elements, likewise, rounded to p's type
//   u4x8, fp4x8, u8x4, fp8x4: the codes of one word as floats; fp4 comes out times 2^-14, fp8 times 2^-8
#define FN METAL_FUNC
#define LOCAL thread
#define SHARED threadgroup
#define CONSTANT constant
#define UNROLL _Pragma("clang loop unroll(full)")
#define BARRIER() threadgroup_barrier(mem_flags::mem_threadgroup)

FN float fused(float a, float b, float c) { return metal::fma(a, b, c); }
FN float exponential(float x) { return metal::precise::exp(x); }
FN float inverse_root(float x) { return metal::precise::rsqrt(x); }
FN float square_root(float x) { return metal::precise::sqrt(x); }
FN float float_of_bits(uint bits) { return as_type<float>(bits); }
FN float warp_sum(float x) { return simd_sum(x); }
FN float warp_max(float x) { return simd_max(x); }
FN float shuffle_xor(float x, int mask) { return simd_shuffle_xor(x, (ushort)mask); }
FN int lane_value(int x, int lane) { return simd_shuffle(x, (ushort)lane); }
FN int warp_total(int x) { return simd_sum(x); }
FN int bits(uint x) { return (int)popcount(x); }
FN uint bits_of_float(float x) { return as_type<uint>(x); }
FN uint ballot(bool x) { return (uint)(ulong)simd_ballot(x); }
FN int lowest(uint x) { return (int)ctz(x); }

template <typename P>
FN void load8(P p, LOCAL float* v) {
  UNROLL for (int i = 0; i < 8; i++) v[i] = float(p[i]);
}
template <typename T>
FN void store_first(device T* p, int count, LOCAL float* v) {
  UNROLL for (int i = 0; i < 8; i++) {
    if (i < count) p[i] = T(v[i]);
  }
}
template <typename T>
FN void store8(device T* p, LOCAL float* v) {
  UNROLL for (int i = 0; i < 8; i++) p[i] = T(v[i]);
}
FN float half_of_bits(uint bits) { return float(as_type<half>((ushort)bits)); }
FN void u4x8(uint word, LOCAL float* v) {
  UNROLL for (int i = 0; i < 8; i++) v[i] = float((word >> (4 * i)) & 15u);
}
FN void fp4x8(uint word, LOCAL float* v) {
  UNROLL for (int i = 0; i < 8; i++) {
    const uint code = word >> (4 * i);
    v[i] = half_of_bits(((code & 7u) << 9) | ((code & 8u) << 12));
  }
}
FN void u8x4(uint word, LOCAL float* v) {
  UNROLL for (int i = 0; i < 4; i++) v[i] = float((word >> (8 * i)) & 255u);
}
FN void fp8x4(uint word, LOCAL float* v) {
  UNROLL for (int i = 0; i < 4; i++) {
    const uint code = word >> (8 * i);
    v[i] = half_of_bits(((code & 127u) << 7) | ((code & 128u) << 8));
  }
}

// Tiles (tile.h) by matrices of 8 by 8: two of them 16 rows of a matrix, 8 of activations, 8 parts of columns.
typedef float2 Pair;
#define TILE_WEIGHTS 4
#define TILE_CHUNKS 8
#define TILE_XS 2
#define MX_FACTOR 1.0f
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
