// Integer functions, packing.
#pragma once
#include "math.h"

namespace metal {
// integer functions
#define MSL_Y(T)                                                                                          \
  MSL_AI T popcount(T x) {                                                                                \
    return (T)__builtin_popcountll((unsigned long long)(typename make_unsigned<T>::type)x);               \
  }                                                                                                       \
  MSL_AI T clz(T x) {                                                                                     \
    return x == 0 ? (T)(sizeof(T) * 8)                                                                    \
                  : (T)(__builtin_clzll((unsigned long long)(typename make_unsigned<T>::type)x) -         \
                        (64 - (int)sizeof(T) * 8));                                                       \
  }                                                                                                       \
  MSL_AI T ctz(T x) { return x == 0 ? (T)(sizeof(T) * 8) : (T)__builtin_ctzll((unsigned long long)x); }   \
  MSL_AI T rotate(T v, T n) {                                                                             \
    typedef typename make_unsigned<T>::type U;                                                            \
    const unsigned b = sizeof(T) * 8, k = (unsigned)n & (b - 1);                                          \
    return (T)(U)(((U)v << k) | ((U)v >> ((b - k) & (b - 1))));                                           \
  }                                                                                                       \
  MSL_AI T absdiff(T x, T y) { return x > y ? x - y : y - x; }                                            \
  MSL_AI T hadd(T x, T y) { return (T)(((__int128)x + y) >> 1); }                                         \
  MSL_AI T rhadd(T x, T y) { return (T)(((__int128)x + y + 1) >> 1); }                                    \
  MSL_AI T mulhi(T x, T y) { return (T)(((__int128)x * y) >> (sizeof(T) * 8)); }                          \
  MSL_AI T addsat(T x, T y) {                                                                             \
    T r;                                                                                                  \
    if (__builtin_add_overflow(x, y, &r))                                                                 \
      r = (numeric_limits<T>::is_signed && x < 0) ? numeric_limits<T>::min() : numeric_limits<T>::max();  \
    return r;                                                                                             \
  }                                                                                                       \
  MSL_AI T subsat(T x, T y) {                                                                             \
    T r;                                                                                                  \
    if (__builtin_sub_overflow(x, y, &r))                                                                 \
      r = (!numeric_limits<T>::is_signed || x < 0) ? numeric_limits<T>::min() : numeric_limits<T>::max(); \
    return r;                                                                                             \
  }                                                                                                       \
  MSL_AI T mad24(T x, T y, T z) { return (T)(x * y + z); }                                                \
  MSL_AI T mul24(T x, T y) { return (T)(x * y); }                                                         \
  MSL_AI T reverse_bits(T x) {                                                                            \
    typedef typename make_unsigned<T>::type U;                                                            \
    U u = (U)x, r = 0;                                                                                    \
    for (unsigned i = 0; i < sizeof(T) * 8; i++) {                                                        \
      r = (U)((r << 1) | (u & 1));                                                                        \
      u = (U)(u >> 1);                                                                                    \
    }                                                                                                     \
    return (T)r;                                                                                          \
  }                                                                                                       \
  MSL_AI T extract_bits(T x, uint off, uint n) {                                                          \
    if (n == 0) return 0;                                                                                 \
    const unsigned b = sizeof(T) * 8;                                                                     \
    return (T)((T)(x << (b - off - n)) >> (b - n));                                                       \
  }                                                                                                       \
  MSL_AI T insert_bits(T base, T ins, uint off, uint n) {                                                 \
    typedef typename make_unsigned<T>::type U;                                                            \
    U m = n >= sizeof(T) * 8 ? (U)~U(0) : (U)((U(1) << n) - 1);                                           \
    return (T)(((U)base & ~(U)(m << off)) | (((U)ins & m) << off));                                       \
  }
MSL_Y(char)
MSL_Y(uchar) MSL_Y(short) MSL_Y(ushort) MSL_Y(int) MSL_Y(uint) MSL_Y(long) MSL_Y(ulong)
#undef MSL_Y
#define MSL_Y(nm)                                                             \
  template <class V, class R = detail::vec_t<V>>                              \
  MSL_AI R nm(const V& v) {                                                   \
    R r;                                                                      \
    for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = nm(detail::at(v, i)); \
    return r;                                                                 \
  }
    MSL_Y(popcount) MSL_Y(clz) MSL_Y(ctz)
#undef MSL_Y
    // pack / unpack (those used for quantized data)
    MSL_AI vec<float, 4> unpack_unorm4x8_to_float(uint x) {
  return vec<float, 4>(float(x & 255) / 255.0f, float((x >> 8) & 255) / 255.0f,
                       float((x >> 16) & 255) / 255.0f, float(x >> 24) / 255.0f);
}
MSL_AI vec<float, 4> unpack_snorm4x8_to_float(uint x) {
  vec<float, 4> r;
  for (int i = 0; i < 4; i++) r.d[i] = max(float((signed char)(x >> (8 * i))) / 127.0f, -1.0f);
  return r;
}

}  // namespace metal
