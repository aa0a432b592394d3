// Declarations of what the CUDA prelude uses, so that clang can parse a kernel's CUDA text without a CUDA toolkit.
#pragma once
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef decltype(sizeof(0)) size_t;
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
struct dim { unsigned x, y, z; };
extern const __device__ dim threadIdx, blockIdx;
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __device__ __nv_bfloat16(float);
  __device__ operator float() const;
};
struct __half {
  unsigned short bits;
  __half() = default;
  __device__ __half(float);
  __device__ operator float() const;
};
__device__ void __syncthreads();
__device__ void __syncwarp();
__device__ float __fmaf_rn(float, float, float);
__device__ float __fadd_rn(float, float);
__device__ float __frsqrt_rn(float);
__device__ float expf(float);
__device__ float fmaxf(float, float);
__device__ float __uint_as_float(unsigned);
__device__ float __half2float(__half);
__device__ __half __ushort_as_half(unsigned short);
__device__ float __shfl_xor_sync(unsigned, float, int);
__device__ unsigned __ballot_sync(unsigned, int);
__device__ int __shfl_xor_sync(unsigned, int, int);
__device__ int __shfl_sync(unsigned, int, int);
__device__ int __popc(unsigned);
__device__ int __ffs(int);
__device__ float __fsqrt_rn(float);
__device__ unsigned __float_as_uint(float);
__device__ unsigned __byte_perm(unsigned, unsigned, unsigned);
__device__ __nv_bfloat16 __float2bfloat16_rn(float);
__device__ unsigned short __bfloat16_as_ushort(__nv_bfloat16);
__device__ float4 make_float4(float, float, float, float);
__device__ uint4 make_uint4(unsigned, unsigned, unsigned, unsigned);
