// vec, swizzles, packed vectors, matrices, array.
#pragma once
#include "traits.h"
#include "msl_swizzle.h"

namespace metal {
// ---------------------------------------------------------------- vectors
template <class T, int N>
struct vec;
template <class T, int M, int... I>
struct swz;
namespace detail {
template <class V>
struct vt {
  static constexpr int n = 0;
};
template <class T, int N>
struct vt<vec<T, N>> {
  static constexpr int n = N;
  typedef T elem;
  typedef vec<T, N> type;
};
template <class T, int M, int... I>
struct vt<swz<T, M, I...>> {
  static constexpr int n = sizeof...(I);
  typedef T elem;
  typedef vec<T, sizeof...(I)> type;
};
#ifdef MSL_LINT
#define MSL_X(AS)             \
  template <class T>          \
  struct vt<AS T> : vt<T> {}; \
  template <class T>          \
  struct vt<AS const T> : vt<T> {};
MSL_X(__global)
MSL_X(__local) MSL_X(__constant) MSL_X(__private) MSL_X(__generic)
#undef MSL_X
#endif
    template <class V>
    using vec_t = typename vt<V>::type;
template <class T, int N>
MSL_AI T at(const vec<T, N>& v, int i) {
  return v.d[i];
}
template <class T, int M, int... I>
MSL_AI T at(const swz<T, M, I...>& v, int i) {
  const int ix[] = {I...};
  return v.d[ix[i]];
}
#ifdef MSL_LINT
template <class V>
typename vt<V>::elem at(const V& v, int i);
#endif
template <class E, class V, bool isv = (vt<V>::n > 0)>
struct lift {
  static MSL_AI E get(const V& v, int i) { return at(v, i); }
};
template <class E, class V>
struct lift<E, V, false> {
  static MSL_AI E get(const V& v, int) { return (E)v; }
};
template <class T, class S>
constexpr bool scalar_ok() {
  return is_arithmetic<S>::value && (is_floating_point<T>::value || !is_floating_point<S>::value);
}
// common vector type of a binary operation: same vectors, or vector with scalar
template <class A, class B, int na = vt<A>::n, int nb = vt<B>::n>
struct bin {};
template <class A, class B, int n>
struct bin<A, B, n, n>
    : enable_if<is_same<typename vt<A>::elem, typename vt<B>::elem>::value, vec<typename vt<A>::elem, n>> {};
template <class A, class B>
struct bin<A, B, 0, 0> {};
template <class A, class B, int n>
struct bin<A, B, n, 0> : enable_if<scalar_ok<typename vt<A>::elem, B>(), vec<typename vt<A>::elem, n>> {};
template <class A, class B, int n>
struct bin<A, B, 0, n> : enable_if<scalar_ok<typename vt<B>::elem, A>(), vec<typename vt<B>::elem, n>> {};
template <class A, class B>
using bin_t = typename bin<A, B>::type;
template <class... A>
struct total {
  static constexpr int n = 0;
};
template <class H, class... A>
struct total<H, A...> {
  static constexpr int n = (vt<H>::n ? vt<H>::n : 1) + total<A...>::n;
};
template <class T>
MSL_AI void fill(T*) {}
template <class T, class H, class... A>
MSL_AI void fill(T* p, const H& h, const A&... a) {
  constexpr int n = vt<H>::n ? vt<H>::n : 1;
  for (int i = 0; i < n; i++) p[i] = lift<T, H>::get(h, i);
  fill(p + n, a...);
}
}  // namespace detail

template <class T, int M, int... I>
struct swz {
  T d[M];
  typedef vec<T, sizeof...(I)> V;
  MSL_AI operator V() const {
    V r;
    const int ix[] = {I...};
    for (int i = 0; i < int(sizeof...(I)); i++) r.d[i] = d[ix[i]];
    return r;
  }
  MSL_AI T operator[](int i) const {
    const int ix[] = {I...};
    return d[ix[i]];
  }
  MSL_AI swz& put(const V& v) {
    const int ix[] = {I...};
    for (int i = 0; i < int(sizeof...(I)); i++) d[ix[i]] = v.d[i];
    return *this;
  }
  MSL_AI swz& operator=(const V& v) { return put(v); }
  MSL_AI swz& operator=(const swz& v) { return put(V(v)); }
  swz() = default;
  swz(const swz&) = default;
#define MSL_X(op)                            \
  template <class B>                         \
  MSL_AI swz& operator op## = (const B& b) { \
    return put(V(*this) op b);               \
  }
  MSL_X(+) MSL_X(-) MSL_X(*) MSL_X(/) MSL_X(%) MSL_X(&) MSL_X(|) MSL_X(^) MSL_X(<<) MSL_X(>>)
#undef MSL_X
};

#define MSL_VEC_COMMON(N)                                                                               \
  vec() = default;                                                                                      \
  vec(const vec&) = default;                                                                            \
  MSL_AI vec& operator=(const vec& o) {                                                                 \
    __builtin_memcpy(d, o.d, sizeof(d));                                                                \
    return *this;                                                                                       \
  }                                                                                                     \
  template <class U, class = enable_if_t<!is_same<U, T>::value>>                                        \
  MSL_AI explicit vec(const vec<U, N>& o) {                                                             \
    for (int i = 0; i < N; i++) d[i] = (T)o.d[i];                                                       \
  }                                                                                                     \
  template <class U, int M2, int... I, class = enable_if_t<sizeof...(I) == N && !is_same<U, T>::value>> \
  MSL_AI explicit vec(const swz<U, M2, I...>& o) {                                                      \
    for (int i = 0; i < N; i++) d[i] = (T)detail::at(o, i);                                             \
  }                                                                                                     \
  template <class A, class B, class... R,                                                               \
            class = enable_if_t<detail::total<A, B, R...>::n <= N && (N > int(sizeof...(R)) + 2)>>      \
  MSL_AI vec(const A& a, const B& b, const R&... r) {                                                   \
    for (int i = detail::total<A, B, R...>::n; i < N; i++) d[i] = T(0);                                 \
    detail::fill(d, a, b, r...);                                                                        \
  }                                                                                                     \
  MSL_AI T& operator[](int i) { return d[i]; }                                                          \
  MSL_AI const T& operator[](int i) const { return d[i]; }                                              \
  template <class B>                                                                                    \
  MSL_AI vec& operator+=(const B& b) {                                                                  \
    return *this = *this + b;                                                                           \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator-=(const B& b) {                                                                  \
    return *this = *this - b;                                                                           \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator*=(const B& b) {                                                                  \
    return *this = *this * b;                                                                           \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator/=(const B& b) {                                                                  \
    return *this = *this / b;                                                                           \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator%=(const B& b) {                                                                  \
    return *this = *this % b;                                                                           \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator&=(const B& b) {                                                                  \
    return *this = *this & b;                                                                           \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator|=(const B& b) {                                                                  \
    return *this = *this | b;                                                                           \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator^=(const B& b) {                                                                  \
    return *this = *this ^ b;                                                                           \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator<<=(const B& b) {                                                                 \
    return *this = *this << b;                                                                          \
  }                                                                                                     \
  template <class B>                                                                                    \
  MSL_AI vec& operator>>=(const B& b) {                                                                 \
    return *this = *this >> b;                                                                          \
  }

template <class T>
struct alignas(sizeof(T) * 2) vec<T, 2> {
  union {
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
    T d[2];
    MSL_SWZ2(T, 2)
  };
  MSL_VEC_COMMON(2)
  constexpr MSL_AI vec(T a) : x(a), y(a) {}
  constexpr MSL_AI vec(T a, T b) : x(a), y(b) {}
};
template <class T>
struct alignas(sizeof(T) * 4) vec<T, 3> {
  union {
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
    T d[4];
    MSL_SWZ3(T, 4)
  };
  MSL_VEC_COMMON(3)
  constexpr MSL_AI vec(T a) : x(a), y(a), z(a) {}
  constexpr MSL_AI vec(T a, T b_, T c) : x(a), y(b_), z(c) {}
};
template <class T>
struct alignas(sizeof(T) * 4) vec<T, 4> {
  union {
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
    T d[4];
    MSL_SWZ4(T, 4)
  };
  MSL_VEC_COMMON(4)
  constexpr MSL_AI vec(T s) : x(s), y(s), z(s), w(s) {}
  constexpr MSL_AI vec(T a_, T b_, T c, T e) : x(a_), y(b_), z(c), w(e) {}
};

#define MSL_X(op)                                                                   \
  template <class A, class B, class R = detail::bin_t<A, B>>                        \
  MSL_AI R operator op(const A& a, const B& b) {                                    \
    typedef typename detail::vt<R>::elem E;                                         \
    R r;                                                                            \
    for (int i = 0; i < detail::vt<R>::n; i++)                                      \
      r.d[i] = (E)(detail::lift<E, A>::get(a, i) op detail::lift<E, B>::get(b, i)); \
    return r;                                                                       \
  }
MSL_X(+)
MSL_X(-) MSL_X(*) MSL_X(/) MSL_X(%) MSL_X(&) MSL_X(|) MSL_X(^) MSL_X(<<) MSL_X(>>)
#undef MSL_X
#define MSL_X(op)                                                              \
  template <class A, class B, class R = detail::bin_t<A, B>>                   \
  MSL_AI vec<bool, detail::vt<R>::n> operator op(const A& a, const B& b) {     \
    typedef typename detail::vt<R>::elem E;                                    \
    vec<bool, detail::vt<R>::n> r;                                             \
    for (int i = 0; i < detail::vt<R>::n; i++)                                 \
      r.d[i] = detail::lift<E, A>::get(a, i) op detail::lift<E, B>::get(b, i); \
    return r;                                                                  \
  }
    MSL_X(==) MSL_X(!=) MSL_X(<) MSL_X(>) MSL_X(<=) MSL_X(>=) MSL_X(&&) MSL_X(||)
#undef MSL_X
        template <class V, class R = detail::vec_t<V>>
        MSL_AI R operator-(const V& v) {
  R r;
  for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = -detail::at(v, i);
  return r;
}
template <class V, class R = detail::vec_t<V>>
MSL_AI R operator+(const V& v) {
  return v;
}
template <class V, class R = detail::vec_t<V>>
MSL_AI R operator~(const V& v) {
  R r;
  for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = ~detail::at(v, i);
  return r;
}
template <class V, class R = detail::vec_t<V>>
MSL_AI vec<bool, detail::vt<V>::n> operator!(const V& v) {
  vec<bool, detail::vt<V>::n> r;
  for (int i = 0; i < detail::vt<R>::n; i++) r.d[i] = !detail::at(v, i);
  return r;
}
template <class T, int N>
MSL_AI vec<T, N>& operator++(vec<T, N>& v) {
  return v = v + T(1);
}
template <class T, int N>
MSL_AI vec<T, N>& operator--(vec<T, N>& v) {
  return v = v - T(1);
}

// packed vectors: no extra alignment, only construct / index / convert
template <class T, int N>
struct packed_vec {
  T d[N];
  packed_vec() = default;
  MSL_AI packed_vec(const vec<T, N>& v) {
    for (int i = 0; i < N; i++) d[i] = v.d[i];
  }
  MSL_AI operator vec<T, N>() const {
    vec<T, N> v;
    for (int i = 0; i < N; i++) v.d[i] = d[i];
    return v;
  }
  MSL_AI T& operator[](int i) { return d[i]; }
  MSL_AI const T& operator[](int i) const { return d[i]; }
};

template <class T, int C, int R>
struct matrix {
  vec<T, R> columns[C];
  matrix() = default;
  MSL_AI explicit matrix(T s) {
    for (int c = 0; c < C; c++)
      for (int r = 0; r < R; r++) columns[c][r] = c == r ? s : T(0);
  }
  template <class... V, class = enable_if_t<sizeof...(V) == C && (C > 1)>>
  MSL_AI matrix(const V&... v) {
    const vec<T, R> a[] = {vec<T, R>(v)...};
    for (int c = 0; c < C; c++) columns[c] = a[c];
  }
  template <class U>
  MSL_AI explicit matrix(const matrix<U, C, R>& m) {
    for (int c = 0; c < C; c++) columns[c] = vec<T, R>(m.columns[c]);
  }
  MSL_AI vec<T, R>& operator[](int i) { return columns[i]; }
  MSL_AI const vec<T, R>& operator[](int i) const { return columns[i]; }
};
template <class T, int C, int R>
MSL_AI vec<T, R> operator*(const matrix<T, C, R>& m, const vec<T, C>& v) {
  vec<T, R> r(T(0));
  for (int c = 0; c < C; c++) r = r + m.columns[c] * v.d[c];
  return r;
}
template <class T, int C, int R>
MSL_AI matrix<T, C, R> operator*(const matrix<T, C, R>& m, T s) {
  matrix<T, C, R> r;
  for (int c = 0; c < C; c++) r.columns[c] = m.columns[c] * s;
  return r;
}
template <class T, int C, int R>
MSL_AI matrix<T, C, R> operator+(const matrix<T, C, R>& m, const matrix<T, C, R>& n) {
  matrix<T, C, R> r;
  for (int c = 0; c < C; c++) r.columns[c] = m.columns[c] + n.columns[c];
  return r;
}

template <class T, size_t N>
struct array {
  T __e[N];
  MSL_AI constexpr T& operator[](size_t i) { return __e[i]; }
  MSL_AI constexpr const T& operator[](size_t i) const { return __e[i]; }
  static constexpr size_t size() { return N; }
};
}  // namespace metal

#define MSL_X(T)                                 \
  typedef metal::vec<T, 2> T##2;                 \
  typedef metal::vec<T, 3> T##3;                 \
  typedef metal::vec<T, 4> T##4;                 \
  typedef metal::packed_vec<T, 2> packed_##T##2; \
  typedef metal::packed_vec<T, 3> packed_##T##3; \
  typedef metal::packed_vec<T, 4> packed_##T##4;
MSL_X(bool)
MSL_X(char) MSL_X(uchar) MSL_X(short) MSL_X(ushort) MSL_X(int) MSL_X(uint) MSL_X(long) MSL_X(ulong)
    MSL_X(float) MSL_X(half) MSL_X(bfloat)
#undef MSL_X
#define MSL_X(T, c)                        \
  typedef metal::matrix<T, c, 2> T##c##x2; \
  typedef metal::matrix<T, c, 3> T##c##x3; \
  typedef metal::matrix<T, c, 4> T##c##x4;
        MSL_X(float, 2) MSL_X(float, 3) MSL_X(float, 4) MSL_X(half, 2) MSL_X(half, 3) MSL_X(half, 4)
#undef MSL_X
