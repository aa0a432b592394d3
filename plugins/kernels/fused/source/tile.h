// Portable. Products of 16 rows of a stored matrix with up to 8 rows of activations by a warp, on matrix units: the time is
// the same for one row and for eight, and each weight is decoded once. A lane brings TILE_WEIGHTS rows of the matrix and one
// row of activations (TILE_XS parts of it), and is left with four of the 16 x 8 sums: of output tile_out(lane, i) and row
// tile_row(lane, i). Columns come in blocks of TILE_CHUNKS chunks of LEN, one chunk a lane and row of the matrix; which of
// the unit's columns one of the matrix becomes does not matter as long as both sides agree. A Pair is two activations or
// weights as the unit takes them: column i and column i + 4 of eight.
//
// A column of the sums (a row of activations) is computed by itself: bits do not depend on the other rows.
template <int FORM, int K, int GROUP>
struct Tile;

template <int K, int GROUP>
struct Tile<0, K, GROUP> {  // dense
  typedef Pair Raw;
  static constexpr CONSTANT int LEN = 8, SIZE = 4;
  static constexpr CONSTANT bool SUMS = false;
  static FN float factor() { return 1.0f; }
  template <typename W, typename S, typename Q>
  static FN void bring(W w, S, size_t row, uint k, Q ring) { bring_weights<4>(w + (row * K + k), ring); }
  template <typename W, typename S, typename Q>
  static FN void brought(W w, S, size_t row, uint k, Q ring, LOCAL Pair* raw) { weights8(w + (row * K + k), ring, raw); }
  static FN void pairs(LOCAL Pair* raw, int, LOCAL Pair* out) {
    UNROLL for (int i = 0; i < 4; i++) out[i] = raw[i];
  }
};
template <int K, int GROUP>
struct Tile<MXFP4, K, GROUP> {
  typedef uint Raw;
  static constexpr CONSTANT int LEN = 32, SIZE = 5;
  static constexpr CONSTANT bool SUMS = false;
  static FN float factor() { return MX_FACTOR; }
  template <typename W, typename S, typename Q>
  static FN void bring(W w, S s, size_t row, uint k, Q ring) {
    bring_weights<4>(w + (row * (K / 8) + k / 8), ring);
    bring_scale<K>(s, row, k, ring);
  }
  template <typename W, typename S, typename Q>
  static FN void brought(W w, S s, size_t row, uint k, Q ring, LOCAL uint* raw) {
    words<4>(w + (row * (K / 8) + k / 8), ring, raw);
    raw[4] = scale_of<K>(s, row, k, ring);
  }
  static FN void pairs(LOCAL uint* raw, int e, LOCAL Pair* out) { fp4_pairs(raw[e], raw[4], out); }
};
template <int K, int GROUP>
struct Tile<MXFP8, K, GROUP> {
  typedef uint Raw;
  static constexpr CONSTANT int LEN = 16, SIZE = 5;
  static constexpr CONSTANT bool SUMS = false;
  static FN float factor() { return MX_FACTOR; }
  template <typename W, typename S, typename Q>
  static FN void bring(W w, S s, size_t row, uint k, Q ring) {
    bring_weights<4>(w + (row * (K / 4) + k / 4), ring);
    bring_scale<K>(s, row, k, ring);
  }
  template <typename W, typename S, typename Q>
  static FN void brought(W w, S s, size_t row, uint k, Q ring, LOCAL uint* raw) {
    words<4>(w + (row * (K / 4) + k / 4), ring, raw);
    raw[4] = scale_of<K>(s, row, k, ring);
  }
  static FN void pairs(LOCAL uint* raw, int e, LOCAL Pair* out) { fp8_pairs(raw[2 * e], raw[2 * e + 1], raw[4], out); }
};
// Affine: a block is a group; codes are made symmetric (MIDDLE off), scale and bias are applied to the group's sums.
template <int K, int GROUP>
struct Tile<AFFINE4, K, GROUP> {
  typedef uint Raw;
  static constexpr CONSTANT int LEN = GROUP / TILE_CHUNKS, SIZE = LEN / 8;
  static constexpr CONSTANT bool SUMS = true;
  static FN float middle() { return 8.0f; }
  static FN float factor() { return 1.0f; }
  template <typename W, typename S, typename Q>
  static FN void bring(W w, S, size_t row, uint k, Q ring) { bring_weights<SIZE>(w + (row * (K / 8) + k / 8), ring); }
  template <typename W, typename S, typename Q>
  static FN void brought(W w, S, size_t row, uint k, Q ring, LOCAL uint* raw) {
    words<SIZE>(w + (row * (K / 8) + k / 8), ring, raw);
  }
  static FN void pairs(LOCAL uint* raw, int e, LOCAL Pair* out) { u4_pairs(raw[e], out); }
};
template <int K, int GROUP>
struct Tile<AFFINE8, K, GROUP> {
  typedef uint Raw;
  static constexpr CONSTANT int LEN = GROUP / TILE_CHUNKS, SIZE = LEN / 4;
  static constexpr CONSTANT bool SUMS = true;
  static FN float middle() { return 128.0f; }
  static FN float factor() { return 1.0f; }
  template <typename W, typename S, typename Q>
  static FN void bring(W w, S, size_t row, uint k, Q ring) { bring_weights<SIZE>(w + (row * (K / 4) + k / 4), ring); }
  template <typename W, typename S, typename Q>
  static FN void brought(W w, S, size_t row, uint k, Q ring, LOCAL uint* raw) {
    words<SIZE>(w + (row * (K / 4) + k / 4), ring, raw);
  }
  static FN void pairs(LOCAL uint* raw, int e, LOCAL Pair* out) { u8_pairs(raw[2 * e], raw[2 * e + 1], out); }
};

// Scale and bias of a group, only where a form has them.
template <bool SUMS>
struct Scaled {
  template <typename M, int K, int GROUP, typename S, typename B>
  static FN void add(S, B, size_t, size_t, int, int, LOCAL float*, LOCAL float*, LOCAL float*) {}
};
template <>
struct Scaled<true> {
  template <typename M, int K, int GROUP, typename S, typename B>
  static FN void add(S s, B b, size_t first, size_t last, int base, int lane, LOCAL float* sums, LOCAL float* xs,
                     LOCAL float* acc) {
    UNROLL for (int i = 0; i < 4; i++) {
      const size_t row = first + tile_out(lane, i) < last ? first + tile_out(lane, i) : last;
      const float scale = float(s[row * (K / GROUP) + base / GROUP]), bias = float(b[row * (K / GROUP) + base / GROUP]);
      acc[i] = fused(scale, sums[i], fused(fused(scale, M::middle(), bias), xs[i], acc[i]));
    }
  }
};

// A lane's part of the block of columns from `at` on, of MT tiles from row `first` on, on its way into a stage of its warp's
// ring [STAGES, MT * TILE_WEIGHTS, 32, 5 words]; and out of it. `last`: rows of the matrix past it are read as it.
template <typename M, int K, int MT, typename W, typename S, typename Q>
FN void tile_bring(W w, S s, size_t first, size_t last, uint at, bool there, int lane, Q ring, int stage) {
  if (there) {
    uint k = at + uint(tile_chunk(lane) * M::LEN);
    if (K % (M::LEN * TILE_CHUNKS) != 0) k = k < uint(K) ? k : uint(K - M::LEN);
    UNROLL for (int i = 0; i < MT * TILE_WEIGHTS; i++) {
      const size_t row = first + i / TILE_WEIGHTS * 16 + tile_weight(lane, i % TILE_WEIGHTS);
      M::bring(w, s, row < last ? row : last, k, slot_of(ring, stage * MT * TILE_WEIGHTS + i, lane));
    }
  }
  bring_end();
}
template <typename M, int K, int MT, typename W, typename S, typename Q>
FN void tile_brought(W w, S s, size_t first, size_t last, uint at, int lane, Q ring, int stage, LOCAL typename M::Raw* raw) {
  uint k = at + uint(tile_chunk(lane) * M::LEN);
  if (K % (M::LEN * TILE_CHUNKS) != 0) k = k < uint(K) ? k : uint(K - M::LEN);
  bring_wait();
  UNROLL for (int i = 0; i < MT * TILE_WEIGHTS; i++) {
    const size_t row = first + i / TILE_WEIGHTS * 16 + tile_weight(lane, i % TILE_WEIGHTS);
    M::brought(w, s, row < last ? row : last, k, slot_of(ring, stage * MT * TILE_WEIGHTS + i, lane), raw + i * M::SIZE);
  }
}

// acc[4 * t ..] += rows first + 16 t .. of the matrix (past `last`: `last` again) times the rows, t < MT, over the blocks of
// columns that warp `warp` of SPLIT has. A lane brings its weights of STAGES - 1 blocks into `ring` (of its warp) before it
// needs the first: left to registers, compilers put loads off until they are used. Only a lane itself reads what it brought.
template <typename M, int K, int GROUP, int SPLIT, int MT, typename A, typename W, typename S, typename B, typename Q>
FN void tile_dot(A rows, W w, S s, B b, size_t first, size_t last, int warp, int lane, Q ring, LOCAL float* acc) {
  constexpr int LEN = M::LEN, BLOCK = LEN * TILE_CHUNKS, EIGHTS = LEN / 8;
  int stage = 0;
  UNROLL for (int i = 0; i < STAGES - 1; i++) {
    const int at = (warp + i * SPLIT) * BLOCK;
    tile_bring<M, K, MT>(w, s, first, last, at, at < K, lane, ring, i);
  }
  for (int at = warp * BLOCK; at < K; at += SPLIT * BLOCK) {
    const int ahead = at + (STAGES - 1) * SPLIT * BLOCK;
    tile_bring<M, K, MT>(w, s, first, last, ahead, ahead < K, lane, ring, stage == 0 ? STAGES - 1 : stage - 1);
    typename M::Raw raw[MT * TILE_WEIGHTS * M::SIZE];
    tile_brought<M, K, MT>(w, s, first, last, at, lane, ring, stage, raw);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    float sums[MT * 4], xsums[4];
    UNROLL for (int j = 0; j < MT * 4; j++) sums[j] = 0.0f;
    UNROLL for (int j = 0; j < 4; j++) xsums[j] = 0.0f;
    UNROLL for (int e = 0; e < EIGHTS; e++) {
      Pair xs[TILE_XS * 4], ws[TILE_WEIGHTS * 4];
      UNROLL for (int j = 0; j < TILE_XS; j++) {
        const int k = at + tile_x_chunk(lane, j) * LEN + 8 * e;
        UNROLL for (int h = 0; h < 4; h++) xs[4 * j + h] = pair_of(0.0f, 0.0f);
        if (rows.here && (K % BLOCK == 0 || k < K)) rows.pairs(k, xs + 4 * j);
      }
      UNROLL for (int t = 0; t < MT; t++) {
        UNROLL for (int j = 0; j < TILE_WEIGHTS; j++) M::pairs(raw + (t * TILE_WEIGHTS + j) * M::SIZE, e, ws + 4 * j);
        tile_multiply(ws, xs, (M::SUMS ? sums : acc) + 4 * t);
      }
      if (M::SUMS) {
        UNROLL for (int j = 0; j < TILE_WEIGHTS * 4; j++) ws[j] = pair_of(1.0f, 1.0f);
        tile_multiply(ws, xs, xsums);
      }
    }
    UNROLL for (int t = 0; t < MT; t++)
      Scaled<M::SUMS>::template add<M, K, GROUP>(s, b, first + 16 * t, last, at, lane, sums + 4 * t, xsums, acc + 4 * t);
  }
}

// A lane's row of activations: `here` says whether there is one.
template <typename P>
struct PlainRow {
  P x;
  size_t at;
  bool here;
  FN void pairs(int k, LOCAL Pair* out) const { pairs8(x + (at + k), out); }
};
template <typename P>
FN PlainRow<P> plain_row(P x, size_t at, bool here) {
  PlainRow<P> row;
  row.x = x;
  row.at = at;
  row.here = here;
  return row;
}
FN void pairs_of_eight(LOCAL float* v, LOCAL Pair* out) {
  UNROLL for (int i = 0; i < 4; i++) out[i] = pair_of(v[i], v[i + 4]);
}

// The sums of each lane into part [MT, 8, 16], and out of the parts of SPLIT warps again.
template <int MT, typename P>
FN void keep_tile(P part, int lane, LOCAL float* acc) {
  UNROLL for (int t = 0; t < MT; t++) {
    UNROLL for (int i = 0; i < 4; i++) part[t * 128 + tile_row(lane, i) * 16 + tile_out(lane, i)] = acc[4 * t + i];
  }
}
template <int SPLIT, int MT, typename P>
FN float tile_total(P part, int at) {
  float total = part[at];
  UNROLL for (int s = 1; s < SPLIT; s++) total += part[s * MT * 128 + at];
  return total;
}
