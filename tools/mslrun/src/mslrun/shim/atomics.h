// Relaxed atomics.
#pragma once
#include "simd.h"

namespace metal {
// ---------------------------------------------------------------- atomics (relaxed)
template <class T>
struct atomic {
  static_assert(is_same<T, int>::value || is_same<T, uint>::value || is_same<T, bool>::value ||
                    is_same<T, float>::value || is_same<T, ulong>::value,
                "Metal has no atomic of this type");
  T v;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;
template <class T>
MSL_AI T atomic_load_explicit(const volatile atomic<T>* p, memory_order) {
  msl_rt_atomic(p, sizeof(T), 0);
  T r;
  __atomic_load((const volatile T*)&p->v, &r, __ATOMIC_RELAXED);
  return r;
}
template <class T, class U>
MSL_AI void atomic_store_explicit(volatile atomic<T>* p, U v, memory_order) {
  msl_rt_atomic(p, sizeof(T), 1);
  T x = (T)v;
  __atomic_store((volatile T*)&p->v, &x, __ATOMIC_RELAXED);
}
template <class T, class U>
MSL_AI T atomic_exchange_explicit(volatile atomic<T>* p, U v, memory_order) {
  msl_rt_atomic(p, sizeof(T), 3);
  T x = (T)v, r;
  __atomic_exchange((volatile T*)&p->v, &x, &r, __ATOMIC_RELAXED);
  return r;
}
template <class T, class U>
MSL_AI bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* p, T* e, U v, memory_order,
                                                  memory_order) {
  msl_rt_atomic(p, sizeof(T), 3);
  T x = (T)v;
  return __atomic_compare_exchange((volatile T*)&p->v, e, &x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
#define MSL_X(n, e)                                                                                         \
  template <class T, class U>                                                                               \
  MSL_AI T atomic_fetch_##n##_explicit(volatile atomic<T>* p, U b_, memory_order) {                         \
    msl_rt_atomic(p, sizeof(T), 3);                                                                         \
    const T b = (T)b_;                                                                                      \
    T a;                                                                                                    \
    __atomic_load((volatile T*)&p->v, &a, __ATOMIC_RELAXED);                                                \
    T x;                                                                                                    \
    do {                                                                                                    \
      x = (T)(e);                                                                                           \
    } while (                                                                                               \
        !__atomic_compare_exchange((volatile T*)&p->v, &a, &x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
    return a;                                                                                               \
  }
MSL_X(add, a + b)
MSL_X(sub, a - b) MSL_X(min, b < a ? b : a) MSL_X(max, a < b ? b : a) MSL_X(and, a& b) MSL_X(or, a | b)
    MSL_X(xor, a ^ b)
#undef MSL_X
}  // namespace metal
