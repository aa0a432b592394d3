// The part of Metal's standard library that the CPU runner provides: C++14 and clang builtins.
// Included in front of the preprocessed, translated kernel source; includes no hosted header but stdint.h,
// stddef.h.
#pragma once
#include "atomics.h"
#include "matrices.h"

// compiler-level names that MLX's headers call directly
#define MSL_X(n)                             \
  template <class T>                         \
  MSL_AI T __metal_simd_##n(T v, MSL_SITE) { \
    return metal::simd_##n(v, site);         \
  }
MSL_X(sum)
MSL_X(product)
MSL_X(min) MSL_X(max) MSL_X(and) MSL_X(or) MSL_X(xor) MSL_X(prefix_inclusive_sum) MSL_X(prefix_exclusive_sum)
    MSL_X(prefix_inclusive_product) MSL_X(prefix_exclusive_product)
#undef MSL_X
#define MSL_X(n)                                       \
  template <class T>                                   \
  MSL_AI T __metal_simd_##n(T v, ushort k, MSL_SITE) { \
    return metal::simd_##n(v, k, site);                \
  }
        MSL_X(shuffle) MSL_X(shuffle_up) MSL_X(shuffle_down) MSL_X(shuffle_xor) MSL_X(shuffle_rotate_up)
            MSL_X(shuffle_rotate_down) MSL_X(broadcast)
#undef MSL_X
                template <class T>
                MSL_AI T __metal_simd_shuffle_and_fill_up(T v, T f, ushort k, ushort m, MSL_SITE) {
  return metal::simd_shuffle_and_fill_up(v, f, k, m, site);
}
template <class T>
MSL_AI T __metal_simd_shuffle_and_fill_down(T v, T f, ushort k, ushort m, MSL_SITE) {
  return metal::simd_shuffle_and_fill_down(v, f, k, m, site);
}
template <class T>
MSL_AI T __metal_get_simdgroup_size(T) {
  return (T)32;
}
template <class T>
MSL_AI T __metal_get_thread_index_in_simdgroup(T) {
  return (T)msl_rt_lane();
}

namespace msl {
#ifndef MSL_LINT
struct One {  // a single attribute value in the form of the vectors of Args
  unsigned v[3];
  explicit One(unsigned x) : v{x, 0, 0} {}
  operator const unsigned*() const { return v; }
};
#endif
template <class T>
struct attr_conv {
  static MSL_AI T get(const unsigned* v) { return (T)v[0]; }
};
template <class T>
struct attr_conv<metal::vec<T, 2>> {
  static MSL_AI metal::vec<T, 2> get(const unsigned* v) { return metal::vec<T, 2>((T)v[0], (T)v[1]); }
};
template <class T>
struct attr_conv<metal::vec<T, 3>> {
  static MSL_AI metal::vec<T, 3> get(const unsigned* v) {
    return metal::vec<T, 3>((T)v[0], (T)v[1], (T)v[2]);
  }
};
template <class T>
MSL_AI T attr(const unsigned* v) {
  return attr_conv<T>::get(v);
}
}  // namespace msl
