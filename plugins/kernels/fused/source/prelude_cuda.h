// The portable kernel dialect, for CUDA (NVRTC). What each name means is said in prelude_metal.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define FN __device__ __forceinline__
#define LOCAL
#define SHARED __shared__
#define UNROLL _Pragma("unroll")
#define BARRIER() __syncthreads()
typedef unsigned int uint;

FN float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FN float exponential(float x) { return expf(x); }
FN float inverse_root(float x) { return __frsqrt_rn(x); }
FN float float_of_bits(uint bits) { return __uint_as_float(bits); }
FN float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
FN float warp_sum(float x) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) x = __fadd_rn(x, shuffle_xor(x, mask));
  return x;
}
FN float warp_max(float x) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}
FN uint ballot(bool x) { return __ballot_sync(0xffffffffu, x); }
FN int lowest(uint x) { return __ffs((int)x) - 1; }

FN void pair_of_bits(uint bits, float* low, float* high) {  // two bfloat16 in a word
  *low = __uint_as_float(bits << 16);
  *high = __uint_as_float(bits & 0xffff0000u);
}
FN void load8(const float* p, float* v) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
  v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
}
FN void load8(const __nv_bfloat16* p, float* v) {
  const uint4 a = *reinterpret_cast<const uint4*>(p);
  pair_of_bits(a.x, v, v + 1);
  pair_of_bits(a.y, v + 2, v + 3);
  pair_of_bits(a.z, v + 4, v + 5);
  pair_of_bits(a.w, v + 6, v + 7);
}
FN void halves_of_bits(uint bits, float* low, float* high) {
  *low = __half2float(__ushort_as_half((unsigned short)(bits & 0xffffu)));
  *high = __half2float(__ushort_as_half((unsigned short)(bits >> 16)));
}
FN void load8(const __half* p, float* v) {
  const uint4 a = *reinterpret_cast<const uint4*>(p);
  halves_of_bits(a.x, v, v + 1);
  halves_of_bits(a.y, v + 2, v + 3);
  halves_of_bits(a.z, v + 4, v + 5);
  halves_of_bits(a.w, v + 6, v + 7);
}
FN void u4x8(uint word, float* v) {  // 1024 + code is a half with the code in its low bits: two codes an operation
  UNROLL for (int i = 0; i < 4; i++) {
    float low, high;
    halves_of_bits(((word >> (4 * i)) & 0x000f000fu) | 0x64006400u, &low, &high);
    v[i] = low - 1024.0f;
    v[i + 4] = high - 1024.0f;
  }
}
FN void fp4x8(uint word, float* v) {
  UNROLL for (int i = 0; i < 4; i++) {
    const uint codes = word >> (4 * i);
    halves_of_bits(((codes & 0x00070007u) << 9) | ((codes & 0x00080008u) << 12), v + i, v + i + 4);
  }
}
FN void u8x4(uint word, float* v) {
  UNROLL for (int i = 0; i < 2; i++) {
    float low, high;
    halves_of_bits(((word >> (8 * i)) & 0x00ff00ffu) | 0x64006400u, &low, &high);
    v[i] = low - 1024.0f;
    v[i + 2] = high - 1024.0f;
  }
}
FN void fp8x4(uint word, float* v) {
  UNROLL for (int i = 0; i < 2; i++) {
    const uint codes = word >> (8 * i);
    halves_of_bits(((codes & 0x007f007fu) << 7) | ((codes & 0x00800080u) << 8), v + i, v + i + 2);
  }
}
