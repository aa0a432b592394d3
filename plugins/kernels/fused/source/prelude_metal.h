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
