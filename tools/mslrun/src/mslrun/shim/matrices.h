// 8x8 SIMD-group matrices.
#pragma once
#include "simd.h"

namespace metal {
// ---------------------------------------------------------------- SIMD-group matrices (8x8)
template <class T, int C, int R>
struct simdgroup_matrix {
  static_assert(C == 8 && R == 8, "only 8x8");
  vec<T, 2> e;
  simdgroup_matrix() = default;
  MSL_AI simdgroup_matrix(T diag) {
    const unsigned r = row(), c = col();
    e.x = r == c ? diag : T(0);
    e.y = r == c + 1 ? diag : T(0);
  }
  MSL_AI vec<T, 2>& thread_elements() { return e; }
  MSL_AI const vec<T, 2>& thread_elements() const { return e; }
  static MSL_AI unsigned row() {
    const unsigned l = msl_rt_lane(), q = l / 4;
    return (q & 4) + (l / 2) % 4;
  }
  static MSL_AI unsigned col() {
    const unsigned l = msl_rt_lane(), q = l / 4;
    return (q & 2) * 2 + (l % 2) * 2;
  }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int C, int R = C>
MSL_AI simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, C, R> m;
  m.e = vec<T, 2>(v, v);
  return m;
}
template <class T, int C, int R, class P>
MSL_AI void simdgroup_load(simdgroup_matrix<T, C, R>& m, const volatile P* p, ulong ld = 8,
                           vec<ulong, 2> org = vec<ulong, 2>(0ul, 0ul), bool tr = false, MSL_SITE) {
  const unsigned r = m.row(), c = m.col();
  for (unsigned i = 0; i < 2; i++) {
    ulong y = tr ? c + i : r, x = tr ? r : c + i;
    m.e.d[i] = p[(y + org.y) * ld + x + org.x];
  }
  msl_rt_simd(site, "simdgroup_load", 0, 0, 0);
}
template <class T, int C, int R, class P>
MSL_AI void simdgroup_store(const simdgroup_matrix<T, C, R>& m, volatile P* p, ulong ld = 8,
                            vec<ulong, 2> org = vec<ulong, 2>(0ul, 0ul), bool tr = false, MSL_SITE) {
  const unsigned r = m.row(), c = m.col();
  for (unsigned i = 0; i < 2; i++) {
    ulong y = tr ? c + i : r, x = tr ? r : c + i;
    p[(y + org.y) * ld + x + org.x] = m.e.d[i];
  }
  msl_rt_simd(site, "simdgroup_store", 0, 0, 0);
}
namespace detail {
template <class D, class A, class B, class Cc>
struct mma_io {
  vec<A, 2> a;
  vec<B, 2> b;
  vec<Cc, 2> c;
};
template <class D, class A, class B, class Cc>
MSL_NOSAN_FN void mma(unsigned long long mask, void* const* in, void* const* out, unsigned n) {
  if (n < 32 || (unsigned)mask != 0xffffffffu) {
    msl_rt_error("simd-inactive", "simdgroup matrix multiply without all 32 lanes");
    return;
  }
  float a[8][8], b[8][8], c[8][8];
  for (unsigned l = 0; l < 32; l++) {
    const unsigned q = l / 4, r = (q & 4) + (l / 2) % 4, k = (q & 2) * 2 + (l % 2) * 2;
    const mma_io<D, A, B, Cc>* s = (const mma_io<D, A, B, Cc>*)in[l];
    for (int i = 0; i < 2; i++) {
      a[r][k + i] = (float)s->a.d[i];
      b[r][k + i] = (float)s->b.d[i];
      c[r][k + i] = (float)s->c.d[i];
    }
  }
  for (unsigned l = 0; l < 32; l++) {
    const unsigned q = l / 4, r = (q & 4) + (l / 2) % 4, k = (q & 2) * 2 + (l % 2) * 2;
    for (unsigned i = 0; i < 2; i++) {
      float s = c[r][k + i];
      for (int j = 0; j < 8; j++) s += a[r][j] * b[j][k + i];
      ((vec<D, 2>*)out[l])->d[i] = (D)s;
    }
  }
}
}  // namespace detail
template <class D, class A, class B, class Cc>
MSL_AI void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                          const simdgroup_matrix<B, 8, 8>& b,
                                          const simdgroup_matrix<Cc, 8, 8>& c, MSL_SITE) {
  detail::mma_io<D, A, B, Cc> io;
  io.a = a.e;
  io.b = b.e;
  io.c = c.e;
  vec<D, 2> r;
  msl_rt_simd(site, "simdgroup_multiply_accumulate", MSL_FN(detail::mma<D, A, B, Cc>), &io, &r);
  d.e = r;
}
template <class D, class A, class B>
MSL_AI void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                               const simdgroup_matrix<B, 8, 8>& b, MSL_SITE) {
  simdgroup_matrix<D, 8, 8> z;
  z.e = vec<D, 2>(D(0), D(0));
  simdgroup_multiply_accumulate(d, a, b, z, site);
}

template <class T>
MSL_AI simdgroup_matrix<T, 8, 8> operator*(const simdgroup_matrix<T, 8, 8>& a,
                                           const simdgroup_matrix<T, 8, 8>& b) {
  simdgroup_matrix<T, 8, 8> d;
  simdgroup_multiply(d, a, b);
  return d;
}

}  // namespace metal
