// Type traits and numeric limits.
#pragma once
#include "base.h"

namespace metal {
using ::as_type;
using ::int16_t;
using ::int32_t;
using ::int64_t;
using ::int8_t;
using ::ptrdiff_t;
using ::size_t;
using ::uint16_t;
using ::uint32_t;
using ::uint64_t;
using ::uint8_t;

// ---------------------------------------------------------------- type traits
template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
  typedef T value_type;
  typedef integral_constant type;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool b>
using bool_constant = integral_constant<bool, b>;
typedef integral_constant<bool, true> true_type;
typedef integral_constant<bool, false> false_type;
template <class A, class B>
struct is_same : false_type {};
template <class A>
struct is_same<A, A> : true_type {};
template <class A, class B>
constexpr bool is_same_v = is_same<A, B>::value;
template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  typedef T type;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F>
struct conditional {
  typedef T type;
};
template <class T, class F>
struct conditional<false, T, F> {
  typedef F type;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;
template <class T>
struct remove_cv {
  typedef T type;
};
template <class T>
struct remove_cv<const T> {
  typedef T type;
};
template <class T>
struct remove_cv<volatile T> {
  typedef T type;
};
template <class T>
struct remove_cv<const volatile T> {
  typedef T type;
};
template <class T>
using remove_cv_t = typename remove_cv<T>::type;
template <class T>
struct remove_reference {
  typedef T type;
};
template <class T>
struct remove_reference<T&> {
  typedef T type;
};
template <class T>
struct remove_reference<T&&> {
  typedef T type;
};
template <class T>
using remove_reference_t = typename remove_reference<T>::type;
template <class T>
struct remove_const {
  typedef T type;
};
template <class T>
struct remove_const<const T> {
  typedef T type;
};
template <class T>
using remove_const_t = typename remove_const<T>::type;
template <class T>
struct remove_pointer {
  typedef T type;
};
template <class T>
struct remove_pointer<T*> {
  typedef T type;
};
template <class T>
using remove_pointer_t = typename remove_pointer<T>::type;
template <class T>
using decay_t = remove_cv_t<remove_reference_t<T>>;
template <class T>
struct is_floating_point : false_type {};
template <>
struct is_floating_point<float> : true_type {};
template <>
struct is_floating_point<half> : true_type {};
template <>
struct is_floating_point<bfloat> : true_type {};
template <class T>
struct is_integral : false_type {};
#define MSL_X(T) \
  template <>    \
  struct is_integral<T> : true_type {};
MSL_X(bool)
MSL_X(char) MSL_X(signed char) MSL_X(uchar) MSL_X(short) MSL_X(ushort) MSL_X(int) MSL_X(uint) MSL_X(long)
    MSL_X(ulong) MSL_X(long long) MSL_X(unsigned long long)
#undef MSL_X
#ifdef MSL_LINT
#define MSL_X(AS)                                           \
  template <class T>                                        \
  struct is_integral<AS T> : is_integral<T> {};             \
  template <class T>                                        \
  struct is_integral<AS const T> : is_integral<T> {};       \
  template <class T>                                        \
  struct is_floating_point<AS T> : is_floating_point<T> {}; \
  template <class T>                                        \
  struct is_floating_point<AS const T> : is_floating_point<T> {};
        MSL_X(__global) MSL_X(__local) MSL_X(__constant) MSL_X(__private) MSL_X(__generic)
#undef MSL_X
#endif
            template <class T>
            constexpr bool is_integral_v = is_integral<T>::value;
template <class T>
constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <class T>
constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T>
struct is_signed : bool_constant<is_arithmetic<T>::value && (T(-1) < T(0))> {};
template <class T>
struct is_unsigned : bool_constant<is_integral<T>::value && !(T(-1) < T(0))> {};
template <class T>
constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class T>
constexpr bool is_signed_v = is_signed<T>::value;
template <class T>
struct is_pointer : false_type {};
template <class T>
struct is_pointer<T*> : true_type {};
template <class T>
constexpr bool is_pointer_v = is_pointer<T>::value;
template <class A, class B>
struct is_convertible : bool_constant<__is_convertible(A, B)> {};
template <class A, class B>
constexpr bool is_convertible_v = is_convertible<A, B>::value;
template <class T>
T&& declval() noexcept;
template <class T>
struct make_unsigned {
  typedef __make_unsigned(T) type;
};
template <class T>
using make_unsigned_t = typename make_unsigned<T>::type;
template <class T>
struct make_signed {
  typedef __make_signed(T) type;
};
template <class... B>
struct _disjunction : false_type {};
template <class H, class... B>
struct _disjunction<H, B...> : bool_constant<H::value || _disjunction<B...>::value> {};
template <class T>
using uniform = T;
template <class T>
constexpr MSL_AI T make_uniform(T v) {
  return v;
}
template <class T>
using remove_addrspace_t = T;
template <class T>
struct remove_addrspace {
  typedef T type;
};
template <class T>
constexpr remove_reference_t<T>&& move(T&& t) {
  return static_cast<remove_reference_t<T>&&>(t);
}

// ---------------------------------------------------------------- limits
template <class T>
struct numeric_limits {
  static constexpr bool is_specialized = false;
};
template <class T>
struct _int_limits {
  static constexpr bool is_specialized = true, is_integer = true, is_signed = T(-1) < T(0);
  static constexpr int digits = int(sizeof(T) * 8) - (is_signed ? 1 : 0);
  static constexpr T min() { return is_signed ? T(T(1) << (sizeof(T) * 8 - 1)) : T(0); }
  static constexpr T max() { return T(~min()); }
  static constexpr T lowest() { return min(); }
  static constexpr T infinity() { return T(0); }
};
#define MSL_X(T) \
  template <>    \
  struct numeric_limits<T> : _int_limits<T> {};
MSL_X(char)
MSL_X(signed char) MSL_X(uchar) MSL_X(short) MSL_X(ushort) MSL_X(int) MSL_X(uint) MSL_X(long) MSL_X(ulong)
#undef MSL_X
    template <>
    struct numeric_limits<bool> {
  static constexpr bool min() { return false; }
  static constexpr bool max() { return true; }
  static constexpr bool lowest() { return false; }
};
template <>
struct numeric_limits<float> {
  static constexpr bool is_specialized = true, is_integer = false, is_signed = true;
  static constexpr int digits = 24;
  static constexpr float max() { return 3.40282346638528859812e+38f; }
  static constexpr float min() { return 1.17549435082228750797e-38f; }
  static constexpr float lowest() { return -max(); }
  static constexpr float infinity() { return __builtin_inff(); }
  static constexpr float quiet_NaN() { return __builtin_nanf(""); }
  static constexpr float epsilon() { return 1.1920928955078125e-07f; }
  static constexpr float denorm_min() { return 1.40129846432481707092e-45f; }
};
template <>
struct numeric_limits<half> {
  static constexpr bool is_specialized = true, is_integer = false, is_signed = true;
  static constexpr int digits = 11;
  static constexpr half max() { return (half)65504.0f; }
  static constexpr half min() { return (half)6.103515625e-05f; }
  static constexpr half lowest() { return -max(); }
  static constexpr half infinity() { return (half)__builtin_inff(); }
  static constexpr half quiet_NaN() { return (half)__builtin_nanf(""); }
  static constexpr half epsilon() { return (half)9.765625e-04f; }
};
template <>
struct numeric_limits<bfloat> {
  static constexpr bool is_specialized = true, is_integer = false, is_signed = true;
  static constexpr int digits = 8;
  static constexpr bfloat max() { return (bfloat)3.3895313892515355e38f; }
  static constexpr bfloat min() { return (bfloat)1.17549435082228750797e-38f; }
  static constexpr bfloat lowest() { return -max(); }
  static constexpr bfloat infinity() { return (bfloat)__builtin_inff(); }
  static constexpr bfloat quiet_NaN() { return (bfloat)__builtin_nanf(""); }
  static constexpr bfloat epsilon() { return (bfloat)0.0078125f; }
};

}  // namespace metal
