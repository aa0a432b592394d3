// Barriers, SIMD-group and quad functions.
#pragma once
#include "integers.h"

namespace metal {
// ---------------------------------------------------------------- barriers
enum class mem_flags : uint {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
enum memory_order {
  memory_order_relaxed = 0,
  memory_order_acquire = 2,
  memory_order_release = 3,
  memory_order_acq_rel = 4,
  memory_order_seq_cst = 5
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_system
};
MSL_AI void threadgroup_barrier(mem_flags f, MSL_SITE) { msl_rt_barrier(site, uint(f)); }
MSL_AI void simdgroup_barrier(mem_flags f, MSL_SITE) { msl_rt_simd_barrier(site, uint(f)); }
MSL_AI void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {
  __asm__ volatile("" ::: "memory");
}

// ---------------------------------------------------------------- SIMD-group functions
namespace detail {
struct op_add {
  template <class T>
  static T f(T a, T b) {
    return (T)(a + b);
  }
};
struct op_mul {
  template <class T>
  static T f(T a, T b) {
    return (T)(a * b);
  }
};
struct op_min {
  template <class T>
  static T f(T a, T b) {
    return metal::min(a, b);
  }
};
struct op_max {
  template <class T>
  static T f(T a, T b) {
    return metal::max(a, b);
  }
};
struct op_and {
  template <class T>
  static T f(T a, T b) {
    return (T)(a & b);
  }
};
struct op_or {
  template <class T>
  static T f(T a, T b) {
    return (T)(a | b);
  }
};
struct op_xor {
  template <class T>
  static T f(T a, T b) {
    return (T)(a ^ b);
  }
  static float f(float a, float b) { return as_type<float>(as_type<uint>(a) ^ as_type<uint>(b)); }
};

template <class T, class Op, unsigned W>
MSL_NOSAN_FN void reduce(unsigned long long mask, void* const* in, void* const* out, unsigned n) {
  for (unsigned b = 0; b < n; b += W) {
    T v[W];
    bool on[W];
    unsigned perm = msl_rt_fuzz();  // 0: tree in lane order; else a lane xor, to vary the rounding
    for (unsigned i = 0; i < W; i++) {
      unsigned l = b + (i ^ (perm & (W - 1)));
      on[i] = l < n && (mask >> l & 1);
      if (on[i]) v[i] = *(const T*)in[l];
    }
    for (unsigned o = W / 2; o; o /= 2)
      for (unsigned i = 0; i < o; i++) {
        if (on[i] && on[i + o])
          v[i] = Op::f(v[i], v[i + o]);
        else if (on[i + o]) {
          v[i] = v[i + o];
          on[i] = true;
        }
      }
    for (unsigned i = b; i < b + W && i < n; i++)
      if (mask >> i & 1) *(T*)out[i] = v[0];
  }
}
template <class T, class Op, bool incl>
MSL_NOSAN_FN void scan(unsigned long long mask, void* const* in, void* const* out, unsigned n) {
  T acc = Op::template f<T>(T(0), T(0));
  bool have = false;
  for (unsigned i = 0; i < n; i++) {
    if (!(mask >> i & 1)) continue;
    T x = *(const T*)in[i];
    if (!incl && have) *(T*)out[i] = acc;  // caller pre-set the identity
    acc = have ? Op::f(acc, x) : x;
    have = true;
    if (incl) *(T*)out[i] = acc;
  }
}
template <class T>
struct shuf {
  T v;
  T fillv;
  int k;
  int mod;
};
enum { SH_ABS, SH_UP, SH_DOWN, SH_XOR, SH_ROTUP, SH_ROTDOWN, SH_BCAST, SH_FILLUP, SH_FILLDOWN, SH_FIRST };
template <class T, int K, unsigned W>
MSL_NOSAN_FN void shuffle(unsigned long long mask, void* const* in, void* const* out, unsigned n) {
  int k0 = 0;
  bool first = true;
  unsigned firstlane = 0;
  for (unsigned i = 0; i < n; i++)
    if (mask >> i & 1) {
      const shuf<T>* s = (const shuf<T>*)in[i];
      if (first) {
        k0 = s->k;
        firstlane = i;
        first = false;
      } else if (K != SH_ABS && K != SH_FIRST && s->k != k0)
        msl_rt_error("simd-uniform",
                     "the delta/mask/lane argument of a SIMD shuffle or broadcast differs between lanes "
                     "(must be uniform)");
    }
  T tmp[32];
  for (unsigned i = 0; i < n; i++)
    if (mask >> i & 1) {
      const shuf<T>* s = (const shuf<T>*)in[i];
      int b = int(i / W * W), l = int(i) - b, src, w = int(W);
      bool fill = false;
      switch (K) {
        case SH_ABS:
        case SH_BCAST:
          src = s->k;
          break;
        case SH_FIRST:
          src = int(firstlane) - b;
          break;
        case SH_UP:
          src = l - s->k;
          if (src < 0) src = l;
          break;
        case SH_DOWN:
          src = l + s->k;
          if (src >= w) src = l;
          break;
        case SH_XOR:
          src = l ^ s->k;
          break;
        case SH_ROTUP:
          src = (l - s->k) & (w - 1);
          break;
        case SH_ROTDOWN:
          src = (l + s->k) & (w - 1);
          break;
        case SH_FILLUP: {
          int m = s->mod, g = l / m * m;
          src = l - s->k;
          if (src < g) {
            fill = true;
            src = g + (((l - g) - s->k) % m + m) % m;
          }
          break;
        }
        default: {
          int m = s->mod, g = l / m * m;
          src = l + s->k;
          if (src >= g + m) {
            fill = true;
            src = g + ((l - g) + s->k) % m;
          }
          break;
        }
      }
      if (src < 0 || src >= w || b + src >= int(n) || !(mask >> (b + src) & 1)) {
        msl_rt_error("simd-inactive",
                     "a SIMD shuffle or broadcast reads a lane that is out of range or inactive");
        src = l;
      }
      tmp[i] = fill ? ((const shuf<T>*)in[b + src])->fillv : ((const shuf<T>*)in[b + src])->v;
    }
  for (unsigned i = 0; i < n; i++)
    if (mask >> i & 1) *(T*)out[i] = tmp[i];
}
template <int K, unsigned W, class T>
MSL_AI T do_shuffle(MSL_STR nm, T v, T f, int k, int mod, unsigned site) {
  shuf<T> s;
  s.v = v;
  s.fillv = f;
  s.k = k;
  s.mod = mod;
  T r;
  msl_rt_simd(site, nm, MSL_FN(shuffle<T, K, W>), &s, &r);
  return r;
}
template <class T, bool isv = (vt<T>::n > 0)>
struct mat {
  typedef T type;
};
template <class T>
struct mat<T, true> {
  typedef vec_t<T> type;
};
}  // namespace detail

#define MSL_RED(q, W, n, Op)                                                        \
  template <class T>                                                                \
  MSL_AI T q##_##n(T v, MSL_SITE) {                                                 \
    T r;                                                                            \
    msl_rt_simd(site, #q "_" #n, MSL_FN(detail::reduce<T, detail::Op, W>), &v, &r); \
    return r;                                                                       \
  }
#define MSL_SCAN(n, Op, incl, id)                                                     \
  template <class T>                                                                  \
  MSL_AI T simd_##n(T v, MSL_SITE) {                                                  \
    T r = T(id);                                                                      \
    msl_rt_simd(site, "simd_" #n, MSL_FN(detail::scan<T, detail::Op, incl>), &v, &r); \
    return r;                                                                         \
  }
MSL_RED(simd, 32, sum, op_add)
MSL_RED(simd, 32, product, op_mul) MSL_RED(simd, 32, min, op_min) MSL_RED(simd, 32, max, op_max)
    MSL_RED(simd, 32, and, op_and) MSL_RED(simd, 32, or, op_or) MSL_RED(simd, 32, xor, op_xor)
        MSL_RED(quad, 4, sum, op_add) MSL_RED(quad, 4, product, op_mul) MSL_RED(quad, 4, min, op_min)
            MSL_RED(quad, 4, max, op_max) MSL_RED(quad, 4, and, op_and) MSL_RED(quad, 4, or, op_or)
                MSL_RED(quad, 4, xor, op_xor) MSL_SCAN(prefix_inclusive_sum, op_add, true,
                                                       0) MSL_SCAN(prefix_exclusive_sum, op_add, false, 0)
                    MSL_SCAN(prefix_inclusive_product, op_mul, true, 1) MSL_SCAN(prefix_exclusive_product,
                                                                                 op_mul, false, 1)
#define MSL_SHUF(q, W, n, K)                                                             \
  template <class T>                                                                     \
  MSL_AI T q##_##n(T v, ushort k, MSL_SITE) {                                            \
    return detail::do_shuffle<detail::K, W, T>(#q "_" #n, v, v, (int)(short)k, W, site); \
  }
                        MSL_SHUF(simd, 32, shuffle, SH_ABS) MSL_SHUF(simd, 32, shuffle_up, SH_UP)
                            MSL_SHUF(simd, 32, shuffle_down, SH_DOWN) MSL_SHUF(simd, 32, shuffle_xor, SH_XOR)
                                MSL_SHUF(simd, 32, shuffle_rotate_up,
                                         SH_ROTUP) MSL_SHUF(simd, 32, shuffle_rotate_down, SH_ROTDOWN)
                                    MSL_SHUF(simd, 32, broadcast, SH_BCAST) MSL_SHUF(quad, 4, shuffle, SH_ABS)
                                        MSL_SHUF(quad, 4, shuffle_up, SH_UP)
                                            MSL_SHUF(quad, 4, shuffle_down, SH_DOWN)
                                                MSL_SHUF(quad, 4, shuffle_xor, SH_XOR)
                                                    MSL_SHUF(quad, 4, shuffle_rotate_up, SH_ROTUP)
                                                        MSL_SHUF(quad, 4, shuffle_rotate_down, SH_ROTDOWN)
                                                            MSL_SHUF(quad, 4, broadcast,
                                                                     SH_BCAST) template <class T>
                                                            MSL_AI T simd_broadcast_first(T v, MSL_SITE) {
  return detail::do_shuffle<detail::SH_FIRST, 32, T>("simd_broadcast_first", v, v, 0, 32, site);
}
template <class T>
MSL_AI T simd_shuffle_and_fill_up(T v, T f, ushort k, MSL_SITE) {
  return detail::do_shuffle<detail::SH_FILLUP, 32, T>("simd_shuffle_and_fill_up", v, f, k, 32, site);
}
template <class T>
MSL_AI T simd_shuffle_and_fill_down(T v, T f, ushort k, MSL_SITE) {
  return detail::do_shuffle<detail::SH_FILLDOWN, 32, T>("simd_shuffle_and_fill_down", v, f, k, 32, site);
}
template <class T>
MSL_AI T simd_shuffle_and_fill_up(T v, T f, ushort k, ushort mod, MSL_SITE) {
  return detail::do_shuffle<detail::SH_FILLUP, 32, T>("simd_shuffle_and_fill_up", v, f, k, mod, site);
}
template <class T>
MSL_AI T simd_shuffle_and_fill_down(T v, T f, ushort k, ushort mod, MSL_SITE) {
  return detail::do_shuffle<detail::SH_FILLDOWN, 32, T>("simd_shuffle_and_fill_down", v, f, k, mod, site);
}
struct simd_vote {
  typedef ulong vote_t;
  vote_t v;
  explicit constexpr simd_vote(vote_t x = 0) : v(x) {}
  explicit operator vote_t() const { return v; }
  bool all() const { return (uint)v == 0xffffffffu; }
  bool any() const { return (uint)v != 0; }
};
namespace detail {
MSL_NOSAN_FN inline void ballot(unsigned long long mask, void* const* in, void* const* out, unsigned n) {
  ulong b = 0, act = mask;
  for (unsigned i = 0; i < n; i++)
    if ((mask >> i & 1) && *(const bool*)in[i]) b |= 1ul << i;
  for (unsigned i = 0; i < n; i++)
    if (mask >> i & 1) {
      ((ulong*)out[i])[0] = b;
      ((ulong*)out[i])[1] = act;
    }
}
}  // namespace detail
MSL_AI simd_vote simd_ballot(bool e, MSL_SITE) {
  ulong r[2];
  msl_rt_simd(site, "simd_ballot", MSL_FN(detail::ballot), &e, r);
  return simd_vote(r[0]);
}
MSL_AI simd_vote simd_active_threads_mask(MSL_SITE) {
  bool e = true;
  ulong r[2];
  msl_rt_simd(site, "simd_active_threads_mask", MSL_FN(detail::ballot), &e, r);
  return simd_vote(r[1]);
}
MSL_AI bool simd_all(bool e, MSL_SITE) {
  ulong r[2];
  msl_rt_simd(site, "simd_all", MSL_FN(detail::ballot), &e, r);
  return r[0] == r[1];
}
MSL_AI bool simd_any(bool e, MSL_SITE) {
  ulong r[2];
  msl_rt_simd(site, "simd_any", MSL_FN(detail::ballot), &e, r);
  return r[0] != 0;
}
MSL_AI bool simd_is_first(MSL_SITE) {
  bool e = true;
  ulong r[2];
  msl_rt_simd(site, "simd_is_first", MSL_FN(detail::ballot), &e, r);
  return (unsigned)__builtin_ctzll(r[1]) == msl_rt_lane();
}

}  // namespace metal
