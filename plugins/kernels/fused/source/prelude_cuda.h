// The portable kernel dialect, for CUDA (NVRTC). What each name means is said in prelude_metal.h.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define FN __device__ __forceinline__
#define LOCAL
#define SHARED __shared__
#define CONSTANT
#define UNROLL _Pragma("unroll")
#define BARRIER() __syncthreads()
typedef unsigned int uint;

FN float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
FN float exponential(float x) { return expf(x); }
FN float inverse_root(float x) { return __frsqrt_rn(x); }
FN float square_root(float x) { return __fsqrt_rn(x); }
FN float float_of_bits(uint bits) { return __uint_as_float(bits); }
FN float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
FN int lane_value(int x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
FN float warp_sum(float x) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) x = __fadd_rn(x, shuffle_xor(x, mask));
  return x;
}
FN float warp_max(float x) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, shuffle_xor(x, mask));
  return x;
}
FN int warp_total(int x) {
  UNROLL for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffffu, x, mask);
  return x;
}
FN int bits(uint x) { return __popc((int)x); }
FN uint bits_of_float(float x) { return __float_as_uint(x); }
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
template <typename T>
FN void store_first(T* p, int count, const float* v) {
  UNROLL for (int i = 0; i < 8; i++) {
    if (i < count) p[i] = T(v[i]);
  }
}
FN void store8(float* p, const float* v) {
  reinterpret_cast<float4*>(p)[0] = make_float4(v[0], v[1], v[2], v[3]);
  reinterpret_cast<float4*>(p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}
FN uint bfloat_pair(float low, float high) {
  return (uint)__bfloat16_as_ushort(__float2bfloat16_rn(low)) | (uint)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16;
}
FN void store8(__nv_bfloat16* p, const float* v) {
  *reinterpret_cast<uint4*>(p) =
      make_uint4(bfloat_pair(v[0], v[1]), bfloat_pair(v[2], v[3]), bfloat_pair(v[4], v[5]), bfloat_pair(v[6], v[7]));
}
FN void store8(__half* p, const float* v) {
  UNROLL for (int i = 0; i < 8; i++) p[i] = __half(v[i]);
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
