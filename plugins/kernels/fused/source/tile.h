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
  static constexpr CONSTANT int LEN = 16, SIZE = 8, DEEP = 2;
  static constexpr CONSTANT bool SUMS = false;
  static FN float factor() { return 1.0f; }
  template <typename W, typename S>
  static FN void load(W w, S, size_t row, uint k, LOCAL Pair* raw) {
    weights8(w + (row * K + k), raw);
    weights8(w + (row * K + k + 8), raw + 4);
  }
  static FN void pairs(LOCAL Pair* raw, int e, LOCAL Pair* out) {
    UNROLL for (int i = 0; i < 4; i++) out[i] = raw[4 * e + i];
  }
};
template <int K, int GROUP>
struct Tile<MXFP4, K, GROUP> {
  typedef uint Raw;
  static constexpr CONSTANT int LEN = MXFP4_LEN(K), WORDS = LEN / 8, SIZE = WORDS + LEN / 32, DEEP = 128 / LEN;
  static constexpr CONSTANT bool SUMS = false;
  static FN float factor() { return MX_FACTOR; }
  template <typename W, typename S>
  static FN void load(W w, S s, size_t row, uint k, LOCAL uint* raw) {
    words<WORDS>(w + (row * (K / 8) + k / 8), raw);
    bytes<LEN / 32>(s + (row * (K / 32) + k / 32), raw + WORDS);
  }
  static FN void pairs(LOCAL uint* raw, int e, LOCAL Pair* out) { fp4_pairs(raw[e], raw[WORDS + e / 4], out); }
};
template <int K, int GROUP>
struct Tile<MXFP8, K, GROUP> {
  typedef uint Raw;
  static constexpr CONSTANT int LEN = 32, WORDS = LEN / 4, SIZE = WORDS + 1, DEEP = 1;
  static constexpr CONSTANT bool SUMS = false;
  static FN float factor() { return MX_FACTOR; }
  template <typename W, typename S>
  static FN void load(W w, S s, size_t row, uint k, LOCAL uint* raw) {
    words<WORDS>(w + (row * (K / 4) + k / 4), raw);
    bytes<1>(s + (row * (K / 32) + k / 32), raw + WORDS);
  }
  static FN void pairs(LOCAL uint* raw, int e, LOCAL Pair* out) {
    fp8_pairs(raw[2 * e], raw[2 * e + 1], raw[WORDS], out);
  }
};
// Affine: a block is a group; codes are made symmetric (MIDDLE off), scale and bias are applied to the group's sums.
template <int K, int GROUP>
struct Tile<AFFINE4, K, GROUP> {
  typedef uint Raw;
  static constexpr CONSTANT int LEN = GROUP / TILE_CHUNKS, SIZE = LEN / 8, DEEP = 4;
  static constexpr CONSTANT bool SUMS = true;
  static FN float middle() { return 8.0f; }
  static FN float factor() { return 1.0f; }
  template <typename W, typename S>
  static FN void load(W w, S, size_t row, uint k, LOCAL uint* raw) {
    words<SIZE>(w + (row * (K / 8) + k / 8), raw);
  }
  static FN void pairs(LOCAL uint* raw, int e, LOCAL Pair* out) { u4_pairs(raw[e], out); }
};
template <int K, int GROUP>
struct Tile<AFFINE8, K, GROUP> {
  typedef uint Raw;
  static constexpr CONSTANT int LEN = GROUP / TILE_CHUNKS, SIZE = LEN / 4, DEEP = 4;
  static constexpr CONSTANT bool SUMS = true;
  static FN float middle() { return 128.0f; }
  static FN float factor() { return 1.0f; }
  template <typename W, typename S>
  static FN void load(W w, S, size_t row, uint k, LOCAL uint* raw) {
    words<SIZE>(w + (row * (K / 4) + k / 4), raw);
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

// acc[4 * t ..] += rows first + 16 t .. of the matrix (past `last`: `last` again) times the rows, t < MT, over the blocks of
// columns that warp `warp` of SPLIT has: DEEP neighbouring ones at a time where there are enough. LOADED(): nothing that is
// loaded before it may be put off until after it.
template <typename M, int K, int GROUP, int SPLIT, int MT, typename A, typename W, typename S, typename B>
FN void tile_dot(A rows, W w, S s, B b, size_t first, size_t last, int warp, int lane, LOCAL float* acc) {
  constexpr int LEN = M::LEN, BLOCK = LEN * TILE_CHUNKS, EIGHTS = LEN / 8, MOST = M::DEEP / MT;
  constexpr int DEEP = MOST >= 4 && K >= BLOCK * SPLIT * MOST ? MOST : MOST >= 2 && K >= BLOCK * SPLIT * 2 ? 2 : 1;
  for (int at = warp * BLOCK * DEEP; at < K; at += SPLIT * BLOCK * DEEP) {
    typename M::Raw raw[DEEP * MT * TILE_WEIGHTS * M::SIZE];
    UNROLL for (int d = 0; d < DEEP; d++) {
      uint k = uint(at + d * BLOCK + tile_chunk(lane) * LEN);
      if (K % (BLOCK * DEEP) != 0) k = k < uint(K) ? k : uint(K - LEN);
      UNROLL for (int i = 0; i < MT * TILE_WEIGHTS; i++) {
        const size_t row = first + i / TILE_WEIGHTS * 16 + tile_weight(lane, i % TILE_WEIGHTS);
        M::load(w, s, row < last ? row : last, k, raw + (d * MT * TILE_WEIGHTS + i) * M::SIZE);
      }
    }
    LOADED();
    UNROLL for (int d = 0; d < DEEP; d++) {
      if (K % (BLOCK * DEEP) == 0 || at + d * BLOCK < K) {  // the same for the whole warp
        float sums[MT * 4], xsums[4];
        UNROLL for (int i = 0; i < MT * 4; i++) sums[i] = 0.0f;
        UNROLL for (int i = 0; i < 4; i++) xsums[i] = 0.0f;
        UNROLL for (int e = 0; e < EIGHTS; e++) {
          Pair xs[TILE_XS * 4], ws[TILE_WEIGHTS * 4];
          UNROLL for (int j = 0; j < TILE_XS; j++) {
            const int k = at + d * BLOCK + tile_x_chunk(lane, j) * LEN + 8 * e;
            UNROLL for (int i = 0; i < 4; i++) xs[4 * j + i] = pair_of(0.0f, 0.0f);
            if (rows.here && (K % BLOCK == 0 || k < K)) rows.pairs(k, xs + 4 * j);
          }
          UNROLL for (int t = 0; t < MT; t++) {
            UNROLL for (int i = 0; i < TILE_WEIGHTS; i++)
              M::pairs(raw + ((d * MT + t) * TILE_WEIGHTS + i) * M::SIZE, e, ws + 4 * i);
            tile_multiply(ws, xs, (M::SUMS ? sums : acc) + 4 * t);
          }
          if (M::SUMS) {
            UNROLL for (int i = 0; i < TILE_WEIGHTS * 4; i++) ws[i] = pair_of(1.0f, 1.0f);
            tile_multiply(ws, xs, xsums);
          }
        }
        UNROLL for (int t = 0; t < MT; t++)
          Scaled<M::SUMS>::template add<M, K, GROUP>(s, b, first + 16 * t, last, at + d * BLOCK, lane, sums + 4 * t, xsums,
                                                     acc + 4 * t);
      }
    }
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
