// Portable. Eight consecutive weights of one row of a stored matrix [rows, K], as floats, for every stored form; products
// of a few rows with a few of those; the sum of many values over a warp.
//
// Matrix<FORM, K, GROUP>::load(w, s, b, row, k, v): w codes or elements, s scales, b biases (w again where there are none);
// k a multiple of eight. Forms as in weights.py.
#define AFFINE4 1
#define AFFINE8 2
#define MXFP4 3
#define MXFP8 4

template <typename P>
FN void load_some(P p, int count, LOCAL float* v) {  // the first `count` of eight, zeros after them
  UNROLL for (int i = 0; i < 8; i++) v[i] = i < count ? float(p[i]) : 0.0f;
}

template <int FORM, int K, int GROUP>
struct Matrix {  // 0: dense
  template <typename W, typename S, typename B>
  static FN void load(W w, S, B, size_t row, int k, LOCAL float* v) {
    if (K % 8 == 0) load8(w + (row * K + k), v);
    else load_some(w + (row * K + k), K - k, v);
  }
};
template <int K, int GROUP>
struct Matrix<AFFINE4, K, GROUP> {
  template <typename W, typename S, typename B>
  static FN void load(W w, S s, B b, size_t row, int k, LOCAL float* v) {
    const size_t at = row * (K / GROUP) + k / GROUP;
    const float scale = float(s[at]), bias = float(b[at]);
    u4x8(w[row * (K / 8) + k / 8], v);
    UNROLL for (int i = 0; i < 8; i++) v[i] = fused(scale, v[i], bias);
  }
};
template <int K, int GROUP>
struct Matrix<AFFINE8, K, GROUP> {
  template <typename W, typename S, typename B>
  static FN void load(W w, S s, B b, size_t row, int k, LOCAL float* v) {
    const size_t at = row * (K / GROUP) + k / GROUP;
    const float scale = float(s[at]), bias = float(b[at]);
    u8x4(w[row * (K / 4) + k / 4], v);
    u8x4(w[row * (K / 4) + k / 4 + 1], v + 4);
    UNROLL for (int i = 0; i < 8; i++) v[i] = fused(scale, v[i], bias);
  }
};
// A scale byte is 2^(byte - 127); the codes' own factor is taken into it. Exact for scales up to 2^113.
template <int K, int GROUP>
struct Matrix<MXFP4, K, GROUP> {
  template <typename W, typename S, typename B>
  static FN void load(W w, S s, B, size_t row, int k, LOCAL float* v) {
    const float scale = float_of_bits((uint(s[row * (K / GROUP) + k / GROUP]) + 14u) << 23);
    fp4x8(w[row * (K / 8) + k / 8], v);
    UNROLL for (int i = 0; i < 8; i++) v[i] = scale * v[i];
  }
};
template <int K, int GROUP>
struct Matrix<MXFP8, K, GROUP> {
  template <typename W, typename S, typename B>
  static FN void load(W w, S s, B, size_t row, int k, LOCAL float* v) {
    const float scale = float_of_bits((uint(s[row * (K / GROUP) + k / GROUP]) + 8u) << 23);
    fp8x4(w[row * (K / 4) + k / 4], v);
    fp8x4(w[row * (K / 4) + k / 4 + 1], v + 4);
    UNROLL for (int i = 0; i < 8; i++) v[i] = scale * v[i];
  }
};

// Rows of activations, eight elements at a time; `has(m)` says whether there is a row m (the same for a whole warp).
template <int K, typename P>
FN void activations(P x, size_t row, int k, LOCAL float* v) {
  if (K % 8 == 0) load8(x + (row * K + k), v);
  else load_some(x + (row * K + k), K - k, v);
}
template <int K, int STRIDE, typename P>
struct Rows {  // row m of x [rows, K] is row m * STRIDE + first
  P x;
  int first;
  FN bool has(int) const { return true; }
  FN void load(int m, int k, LOCAL float* v) const { activations<K>(x, size_t(m * STRIDE + first), k, v); }
};

template <int K, int STRIDE, typename P>
FN Rows<K, STRIDE, P> plain_rows(P x, int first) {
  Rows<K, STRIDE, P> rows;
  rows.x = x;
  rows.first = first;
  return rows;
}

// acc[o * R + m] += <row m, row first + o of the matrix>, o < OUTS, over the columns k0, k0 + STEP, ... in eights. Rows of
// the matrix past `last` are read as `last`. Each weight is read once and used for all rows; the order of the sum of a
// row is the same for every R and whatever the other rows hold.
template <typename M, int R, int OUTS, int K, int STEP, typename A, typename W, typename S, typename B>
FN void dot_rows(A rows, W w, S s, B b, size_t first, size_t last, int k0, LOCAL float* acc) {
  for (int k = k0; k < K; k += STEP) {
    float xs[R * 8];
    UNROLL for (int m = 0; m < R; m++) {
      if (rows.has(m)) rows.load(m, k, xs + m * 8);
    }
    UNROLL for (int o = 0; o < OUTS; o++) {
      float v[8];
      M::load(w, s, b, first + o < last ? first + o : last, k, v);
      UNROLL for (int m = 0; m < R; m++) {
        if (rows.has(m)) {
          UNROLL for (int i = 0; i < 8; i++) acc[o * R + m] = fused(v[i], xs[m * 8 + i], acc[o * R + m]);
        }
      }
    }
  }
}

// Sums v[0 .. C) over the warp, C a power of two up to 32: lane l is left with the sum of v[l / (32 / C)]. Each sum is
// taken over the same tree whatever C is, so a row's bits do not depend on how many rows share the reduction.
template <int C>
FN float warp_sums(LOCAL float* v, int lane) {
  int kept = C;
  UNROLL for (int offset = 16; offset > 0; offset /= 2) {
    if (kept > 1) {
      kept /= 2;
      const bool upper = (lane & offset) != 0;
      UNROLL for (int i = 0; i < 16; i++) {
        if (i >= kept) continue;
        const float keep = upper ? v[i + kept] : v[i];
        const float send = upper ? v[i] : v[i + kept];
        v[i] = keep + shuffle_xor(send, offset);
      }
    } else {
      v[0] = v[0] + shuffle_xor(v[0], offset);
    }
  }
  return v[0];
}

// silu(min(gate, limit)) * clip(up, -limit, limit)
FN float swiglu(float gate, float up, float limit) {
  gate = gate < limit ? gate : limit;
  up = up < limit ? up : limit;
  up = up > -limit ? up : -limit;
  return gate * (1.0f / (1.0f + exponential(-gate))) * up;
}

FN float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// sqrt(softplus(x)). log1p(e) = 2 artanh(e / (2 + e)) by its series: e is at most one, the terms shrink ninefold.
FN float affinity(float x) {
  const float e = exponential(x > 0.0f ? -x : x), s = e / (2.0f + e), q = s * s;
  float sum = 1.0f / 17.0f;
  UNROLL for (int n = 15; n > 0; n -= 2) sum = fused(sum, q, 1.0f / float(n));
  return square_root((x > 0.0f ? x : 0.0f) + 2.0f * s * sum);
}

// Eight elements to p, or `count` of them where rows of K elements do not come in eights.
template <int K, typename P>
FN void store_some(P p, int count, LOCAL float* v) {
  if (K % 8 == 0) store8(p, v);
  else store_first(p, count, v);
}

// Floats as unsigned numbers of the same order; both zeros are one.
FN uint ordered(float x) {
  const uint u = bits_of_float(x == 0.0f ? 0.0f : x);
  return (u & 0x80000000u) != 0u ? ~u : u | 0x80000000u;
}
