// Floating-point functions.
#pragma once
#include "vectors.h"

// ---------------------------------------------------------------- math builtins (the names that MLX's
// bf16_math.h calls)
#define MSL_B1(n, e) \
  MSL_AI float __metal_##n(float x, int = 0) { return (e); }
#define MSL_B2(n, e) \
  MSL_AI float __metal_##n(float x, float y, int = 0) { return (e); }
#define MSL_B3(n, e) \
  MSL_AI float __metal_##n(float x, float y, float z, int = 0) { return (e); }
MSL_B1(fabs, __builtin_fabsf(x))
MSL_B1(acos, __builtin_acosf(x)) MSL_B1(acosh, __builtin_acoshf(x)) MSL_B1(asin, __builtin_asinf(x)) MSL_B1(
    asinh, __builtin_asinhf(x)) MSL_B1(atan, __builtin_atanf(x)) MSL_B1(atanh, __builtin_atanhf(x))
    MSL_B1(ceil, __builtin_ceilf(x)) MSL_B1(cos, __builtin_cosf(x)) MSL_B1(cosh, __builtin_coshf(x))
        MSL_B1(cospi, (float)__builtin_cos((double)3.14159265358979323846L * (double)x)) MSL_B1(
            exp, __builtin_expf(x)) MSL_B1(exp2, __builtin_exp2f(x)) MSL_B1(exp10, __builtin_exp10f(x))
            MSL_B1(floor, __builtin_floorf(x)) MSL_B1(log, __builtin_logf(x)) MSL_B1(log2, __builtin_log2f(x))
                MSL_B1(log10, __builtin_log10f(x)) MSL_B1(rint, __builtin_rintf(x))
                    MSL_B1(round, __builtin_roundf(x)) MSL_B1(rsqrt, 1.0f / __builtin_sqrtf(x))
                        MSL_B1(sin, __builtin_sinf(x)) MSL_B1(sinh, __builtin_sinhf(x))
                            MSL_B1(sinpi, (float)__builtin_sin((double)3.14159265358979323846L *
                                                               (double)x)) MSL_B1(sqrt, __builtin_sqrtf(x))
                                MSL_B1(tan, __builtin_tanf(x)) MSL_B1(tanh, __builtin_tanhf(x)) MSL_B1(
                                    tanpi,
                                    (float)__builtin_tan((double)3.14159265358979323846L * (double)x))
                                    MSL_B1(trunc, __builtin_truncf(x)) MSL_B1(
                                        fract,
                                        __builtin_fminf(x - __builtin_floorf(x),
                                                        0x1.fffffep-1f)) MSL_B2(atan2, __builtin_atan2f(x, y))
                                        MSL_B2(divide, x / y) MSL_B2(fmax, __builtin_fmaxf(x, y)) MSL_B2(
                                            fmin, __builtin_fminf(x, y)) MSL_B2(fmod, __builtin_fmodf(x, y))
                                            MSL_B2(nextafter, __builtin_nextafterf(x, y)) MSL_B2(
                                                pow, __builtin_powf(x, y)) MSL_B2(powr, __builtin_powf(x, y))
                                                MSL_B2(copysign, __builtin_copysignf(x, y)) MSL_B2(
                                                    fdim,
                                                    __builtin_fdimf(x,
                                                                    y)) MSL_B3(fma, __builtin_fmaf(x, y, z))
                                                    MSL_B3(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z)))
                                                        MSL_B3(fmin3,
                                                               __builtin_fminf(x, __builtin_fminf(y, z)))
                                                            MSL_B3(fmedian3,
                                                                   __builtin_fmaxf(
                                                                       __builtin_fminf(x, y),
                                                                       __builtin_fminf(__builtin_fmaxf(x, y),
                                                                                       z))) MSL_AI
    float __metal_ldexp(float x, int k, int = 0) {
  return __builtin_ldexpf(x, k);
}
MSL_AI float __metal_frexp(float x, int* e, int = 0) { return __builtin_frexpf(x, e); }
#undef MSL_B1
#undef MSL_B2
#undef MSL_B3

// list of elementwise functions, made in metal::, metal::precise:: and metal::fast::
#define MSL_F1(nm, b)                                                         \
  MSL_AI float nm(float x) { return __metal_##b(x); }                         \
  MSL_AI half nm(half x) { return (half)__metal_##b((float)x); }              \
  template <class V, class R = detail::vec_t<V>>                              \
  MSL_AI R nm(const V& v) {                                                   \
    R r;                                                                      \
    for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = nm(detail::at(v, i)); \
    return r;                                                                 \
  }
#define MSL_F2(nm, b)                                                              \
  MSL_AI float nm(float x, float y) { return __metal_##b(x, y); }                  \
  MSL_AI half nm(half x, half y) { return (half)__metal_##b((float)x, (float)y); } \
  template <class A, class B, class R = detail::bin_t<A, B>>                       \
  MSL_AI R nm(const A& a, const B& b_) {                                           \
    typedef typename detail::vt<R>::elem E;                                        \
    R r;                                                                           \
    for (int i = 0; i < detail::vt<R>::n; i++)                                     \
      r.d[i] = nm(detail::lift<E, A>::get(a, i), detail::lift<E, B>::get(b_, i));  \
    return r;                                                                      \
  }
#define MSL_FLOATFUNCS                                                                                   \
  MSL_F1(fabs, fabs)                                                                                     \
  MSL_F1(acos, acos) MSL_F1(acosh, acosh) MSL_F1(asin, asin) MSL_F1(asinh, asinh) MSL_F1(atan, atan)     \
      MSL_F1(atanh, atanh) MSL_F1(ceil, ceil) MSL_F1(cos, cos) MSL_F1(cosh, cosh) MSL_F1(cospi, cospi)   \
          MSL_F1(exp, exp) MSL_F1(exp2, exp2) MSL_F1(exp10, exp10) MSL_F1(floor, floor) MSL_F1(log, log) \
              MSL_F1(log2, log2) MSL_F1(log10, log10) MSL_F1(rint, rint) MSL_F1(round, round)            \
                  MSL_F1(rsqrt, rsqrt) MSL_F1(sin, sin) MSL_F1(sinh, sinh) MSL_F1(sinpi, sinpi)          \
                      MSL_F1(sqrt, sqrt) MSL_F1(tan, tan) MSL_F1(tanh, tanh) MSL_F1(tanpi, tanpi)        \
                          MSL_F1(trunc, trunc) MSL_F1(fract, fract) MSL_F2(atan2, atan2)                 \
                              MSL_F2(divide, divide) MSL_F2(fmax, fmax) MSL_F2(fmin, fmin)               \
                                  MSL_F2(fmod, fmod) MSL_F2(nextafter, nextafter) MSL_F2(pow, pow)       \
                                      MSL_F2(powr, powr) MSL_F2(copysign, copysign) MSL_F2(fdim, fdim)
namespace metal {
MSL_FLOATFUNCS
namespace precise {
using namespace metal;
MSL_FLOATFUNCS
}  // namespace precise
namespace fast {
using namespace metal;
MSL_FLOATFUNCS
}  // namespace fast

// bfloat without MLX's overloads goes to float, as Metal does
#define MSL_X(n)                                                                   \
  template <class T, class = enable_if_t<is_same<T, bfloat>::value>, class = void> \
  MSL_AI float n(T x) {                                                            \
    return n((float)x);                                                            \
  }
MSL_X(exp)
MSL_X(exp2) MSL_X(log) MSL_X(log2) MSL_X(sqrt) MSL_X(rsqrt) MSL_X(fabs) MSL_X(floor) MSL_X(ceil) MSL_X(round)
    MSL_X(rint) MSL_X(sin) MSL_X(cos) MSL_X(tanh)
#undef MSL_X

        MSL_AI float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
MSL_AI half fma(half a, half b, half c) { return (half)__builtin_fmaf((float)a, (float)b, (float)c); }
template <class T, int N>
MSL_AI vec<T, N> fma(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = fma(a.d[i], b.d[i], c.d[i]);
  return r;
}
MSL_AI float ldexp(float x, int k) { return __builtin_ldexpf(x, k); }
MSL_AI half ldexp(half x, int k) { return (half)__builtin_ldexpf((float)x, k); }
MSL_AI float frexp(float x, int& e) { return __builtin_frexpf(x, &e); }
MSL_AI float modf(float x, float& ip) {
  ip = __builtin_truncf(x);
  return x - ip;
}
MSL_AI float sincos(float x, float& c) {
  c = __builtin_cosf(x);
  return __builtin_sinf(x);
}
MSL_AI int ilogb(float x) { return __builtin_ilogbf(x); }
namespace precise {
using metal::fma;
using metal::ldexp;
using metal::sincos;
}  // namespace precise
namespace fast {
using metal::fma;
using metal::ldexp;
using metal::sincos;
}  // namespace fast

#define MSL_X(nm, T, e) \
  MSL_AI T nm(T x, T y) { return (T)(e); }
#define MSL_INTS(F) F(char) F(signed char) F(uchar) F(short) F(ushort) F(int) F(uint) F(long) F(ulong)
#define MSL_Y(T) MSL_X(min, T, y < x ? y : x) MSL_X(max, T, x < y ? y : x)
MSL_INTS(MSL_Y)
#undef MSL_Y
MSL_X(min, float, __builtin_fminf(x, y))
MSL_X(max, float, __builtin_fmaxf(x, y)) MSL_X(min, half, (half)__builtin_fminf((float)x, (float)y))
    MSL_X(max, half, (half)__builtin_fmaxf((float)x, (float)y))
#undef MSL_X
#define MSL_X(nm)                                                                \
  template <class A, class B, class R = detail::bin_t<A, B>>                     \
  MSL_AI R nm(const A& a, const B& b) {                                          \
    typedef typename detail::vt<R>::elem E;                                      \
    R r;                                                                         \
    for (int i = 0; i < detail::vt<R>::n; i++)                                   \
      r.d[i] = nm(detail::lift<E, A>::get(a, i), detail::lift<E, B>::get(b, i)); \
    return r;                                                                    \
  }
        MSL_X(min) MSL_X(max)
#undef MSL_X
            namespace precise {
  using metal::max;
  using metal::min;
}
namespace fast {
using metal::max;
using metal::min;
}  // namespace fast
#define MSL_Y(T)                                                  \
  MSL_AI T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); } \
  MSL_AI T min3(T x, T y, T z) { return min(x, min(y, z)); }      \
  MSL_AI T max3(T x, T y, T z) { return max(x, max(y, z)); }
MSL_INTS(MSL_Y)
MSL_Y(float) MSL_Y(half)
#undef MSL_Y
    template <class T, int N>
    MSL_AI vec<T, N> clamp(const vec<T, N>& x, const vec<T, N>& lo, const vec<T, N>& hi) {
  return min(max(x, lo), hi);
}
template <class T, int N, class S, class = enable_if_t<is_arithmetic<S>::value>>
MSL_AI vec<T, N> clamp(const vec<T, N>& x, S lo, S hi) {
  return min(max(x, lo), hi);
}
namespace precise {
using metal::clamp;
}
namespace fast {
using metal::clamp;
}
#define MSL_Y(T) \
  MSL_AI T abs(T x) { return x < 0 ? (T) - x : x; }
MSL_Y(char)
MSL_Y(signed char) MSL_Y(short) MSL_Y(int) MSL_Y(long)
#undef MSL_Y
#define MSL_Y(T) \
  MSL_AI T abs(T x) { return x; }
    MSL_Y(uchar) MSL_Y(ushort) MSL_Y(uint) MSL_Y(ulong)
#undef MSL_Y
        MSL_AI float abs(float x) {
  return __builtin_fabsf(x);
}
MSL_AI half abs(half x) { return (half)__builtin_fabsf((float)x); }
template <class V, class R = detail::vec_t<V>>
MSL_AI R abs(const V& v) {
  R r;
  for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = abs(detail::at(v, i));
  return r;
}
namespace precise {
using metal::abs;
}
namespace fast {
using metal::abs;
}

#define MSL_Y(T)                                                           \
  MSL_AI T sign(T x) { return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0); } \
  MSL_AI T saturate(T x) { return clamp(x, T(0), T(1)); }                  \
  MSL_AI T mix(T a, T b, T t) { return a + (b - a) * t; }                  \
  MSL_AI T step(T e, T x) { return x < e ? T(0) : T(1); }                  \
  MSL_AI T smoothstep(T a, T b, T x) {                                     \
    T t = saturate((x - a) / (b - a));                                     \
    return t * t * (T(3) - T(2) * t);                                      \
  }
MSL_Y(float)
MSL_Y(half)
#undef MSL_Y
    template <class T, int N>
    MSL_AI vec<T, N> mix(const vec<T, N>& a, const vec<T, N>& b, T t) {
  return a + (b - a) * t;
}
template <class T, int N>
MSL_AI vec<T, N> mix(const vec<T, N>& a, const vec<T, N>& b, const vec<T, N>& t) {
  return a + (b - a) * t;
}
template <class V, class R = detail::vec_t<V>>
MSL_AI R saturate(const V& v) {
  R r;
  for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = saturate(detail::at(v, i));
  return r;
}
template <class V, class R = detail::vec_t<V>>
MSL_AI R sign(const V& v) {
  R r;
  for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = sign(detail::at(v, i));
  return r;
}

#define MSL_Y(T)                                                     \
  MSL_AI bool isnan(T x) { return x != x; }                          \
  MSL_AI bool isinf(T x) { return __builtin_isinf((float)x); }       \
  MSL_AI bool isfinite(T x) { return __builtin_isfinite((float)x); } \
  MSL_AI bool signbit(T x) { return __builtin_signbit((float)x); }   \
  MSL_AI bool isnormal(T x) { return __builtin_isnormal((float)x); }
MSL_Y(float)
MSL_Y(half)
#undef MSL_Y
#define MSL_Y(nm)                                                                  \
  template <class T, class = enable_if_t<is_same<T, bfloat>::value>, class = void> \
  MSL_AI bool nm(T x) {                                                            \
    return nm((float)x);                                                           \
  }                                                                                \
  template <class V, class R = detail::vec_t<V>>                                   \
  MSL_AI vec<bool, detail::vt<V>::n> nm(const V& v) {                              \
    vec<bool, detail::vt<V>::n> r;                                                 \
    for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = nm(detail::at(v, i));      \
    return r;                                                                      \
  }
    MSL_Y(isnan) MSL_Y(isinf) MSL_Y(isfinite) MSL_Y(signbit)
#undef MSL_Y
        MSL_AI bool any(bool x) {
  return x;
}
MSL_AI bool all(bool x) { return x; }
template <int N>
MSL_AI bool any(const vec<bool, N>& v) {
  bool r = false;
  for (int i = 0; i < N; i++) r = r || v.d[i];
  return r;
}
template <int N>
MSL_AI bool all(const vec<bool, N>& v) {
  bool r = true;
  for (int i = 0; i < N; i++) r = r && v.d[i];
  return r;
}
template <class T, class = enable_if_t<is_arithmetic<T>::value>>
MSL_AI T select(T a, T b, bool c) {
  return c ? b : a;
}
template <class T, int N>
MSL_AI vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, const vec<bool, N>& c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = c.d[i] ? b.d[i] : a.d[i];
  return r;
}
template <class T, int N>
MSL_AI vec<T, N> select(const vec<T, N>& a, const vec<T, N>& b, bool c) {
  return c ? b : a;
}

template <class A, class B, class R = detail::bin_t<A, B>>
MSL_AI typename detail::vt<R>::elem dot(const A& a, const B& b) {
  typename detail::vt<R>::elem s = detail::at(a, 0) * detail::at(b, 0);
  for (int i = 1; i < detail::vt<R>::n; i++) s += detail::at(a, i) * detail::at(b, i);
  return s;
}
template <class V, class R = detail::vec_t<V>>
MSL_AI typename detail::vt<R>::elem length_squared(const V& v) {
  return dot(v, v);
}
template <class V, class R = detail::vec_t<V>>
MSL_AI typename detail::vt<R>::elem length(const V& v) {
  return sqrt(dot(v, v));
}
template <class V, class R = detail::vec_t<V>>
MSL_AI R normalize(const V& v) {
  return R(v) * rsqrt(dot(v, v));
}
template <class A, class B, class R = detail::bin_t<A, B>>
MSL_AI typename detail::vt<R>::elem distance(const A& a, const B& b) {
  return length(R(a) - R(b));
}
template <class T>
MSL_AI vec<T, 3> cross(const vec<T, 3>& a, const vec<T, 3>& b) {
  return vec<T, 3>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}

}  // namespace metal
