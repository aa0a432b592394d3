// Types, attributes and the interface to the runtime (native/).
#pragma once

#ifdef MSL_LINT  // address-space check: parsed as C++ for OpenCL 2021, declarations matter, bodies do not run
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
#else
#include <stdint.h>
#include <stddef.h>
#endif

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#ifndef MSL_LINT
typedef _Float16 half;
#endif
typedef __bf16 bfloat;

constexpr half operator""h(long double x) { return (half)x; }
constexpr half operator""h(unsigned long long x) { return (half)x; }
constexpr bfloat operator"" bf(long double x) { return (bfloat)(float)x; }

#define MSL_NOSAN __attribute__((no_sanitize("thread")))
#define MSL_NOSAN_FN MSL_NOSAN __attribute__((noinline))
#define MSL_AI inline __attribute__((always_inline))
#ifdef MSL_LINT
#define MSL_STR const __constant char*
#else
#define MSL_STR const char*
#endif
#define MSL_SITE unsigned site = (unsigned)__builtin_LINE() * 512u + (unsigned)__builtin_COLUMN() % 512u

// ---------------------------------------------------------------- runtime ABI
#ifdef MSL_LINT
#define MSL_FN(...) 0
template <class T>
__local T* msl_tg_();
typedef int msl_simd_fn;
void msl_rt_simd(unsigned site, const __constant char* op, int fn, const void* in, void* out);
void msl_rt_barrier(unsigned site, unsigned flags);
void msl_rt_simd_barrier(unsigned site, unsigned flags);
unsigned msl_rt_lane(void);
unsigned msl_rt_fuzz(void);
void msl_rt_atomic(const volatile void* p, unsigned size, int write);
void msl_rt_error(const __constant char* kind, const __constant char* msg);
#else
#define MSL_FN(...) &__VA_ARGS__
extern "C" {
typedef void (*msl_simd_fn)(unsigned long long mask, void* const* in, void* const* out, unsigned n);
void msl_rt_simd(unsigned site, const char* op, msl_simd_fn fn, void* in, void* out);
void msl_rt_barrier(unsigned site, unsigned flags);
void msl_rt_simd_barrier(unsigned site, unsigned flags);
unsigned msl_rt_lane(void);
unsigned msl_rt_simd_width(void);
unsigned msl_rt_fuzz(void);
void* msl_rt_tg(const void* id, size_t size, size_t align, const char* name);
void msl_rt_atomic(const volatile void* p, unsigned size, int write);
void msl_rt_error(const char* kind, const char* msg);
}
#endif

namespace msl {
struct Args {  // filled by the runtime for each thread
  void* buf[32];
  void* tgbuf[32];
  unsigned tpig[3], tgpig[3], tpit[3], tpt[3], tpg[3], tgpg[3], dtpt[3];
  unsigned lane, sg, sgs, dsgs, tiit, width;
};
struct ptr {
  void* p;
  template <class T>
  MSL_AI operator T*() const {
    return (T*)p;
  }
};
struct ref {
  void* p;
  template <class T>
  MSL_AI operator T&() const {
    return *(T*)p;
  }
};
}  // namespace msl

namespace msl {
template <class To, class From, bool triv = __is_trivially_copyable(To) && __is_trivially_copyable(From)>
struct as_type_impl {
  static constexpr MSL_AI To f(const From& x) { return __builtin_bit_cast(To, x); }
};
template <class To, class From>
struct as_type_impl<To, From, false> {
  static MSL_AI To f(const From& x) {
    To r;
    __builtin_memcpy((void*)&r, (const void*)&x, sizeof(To));
    return r;
  }
};
}  // namespace msl
template <class To, class From>
constexpr MSL_AI To as_type(const From& f) {
  static_assert(sizeof(To) == sizeof(From), "as_type: sizes differ");
  return msl::as_type_impl<To, From>::f(f);
}

namespace msl {
template <class To, class From>
struct cast_impl {
  template <class F>
  static constexpr MSL_AI To f(F&& x) {
    return static_cast<To>(static_cast<F&&>(x));
  }
};
template <>
struct cast_impl<bfloat, half> {
  static constexpr MSL_AI bfloat f(half x) { return (bfloat)(float)x; }
};
template <>
struct cast_impl<half, bfloat> {
  static constexpr MSL_AI half f(bfloat x) { return (half)(float)x; }
};
template <class T>
struct bare {
  typedef T type;
};
template <class T>
struct bare<T&> {
  typedef T type;
};
template <class T>
struct bare<const T> {
  typedef T type;
};
template <class T>
struct bare<const T&> {
  typedef T type;
};
}  // namespace msl
template <class To, class F>
constexpr MSL_AI To msl_cast(F&& x) {
  return msl::cast_impl<To, typename msl::bare<F>::type>::f(static_cast<F&&>(x));
}
