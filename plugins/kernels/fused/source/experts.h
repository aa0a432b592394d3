// Portable. Which (row, choice) pairs share an expert. Pairs are numbered row * TOPK + choice; the lowest pair with an expert
// leads, and brings every row that chose it. A row that names an expert twice is counted once in its group; the second
// mention leads a group of its own.
#define WORDS ((R * TOPK + 31) / 32)

struct Members {  // pairs of one group, in ascending order; count 0: the pair asked about does not lead
  int pair[R];
  int count;
};

template <typename P>
FN bool again(P index, int pair) {  // no early end: all of the row is read at once
  const int mine = index[pair], start = pair - pair % TOPK;
  bool seen = false;
  UNROLL for (int t = 0; t < TOPK; t++) seen = seen | (start + t < pair && index[start + t] == mine);
  return seen;
}

// The same for all lanes of a warp; every lane of it must be here.
template <typename P>
FN Members members_of(P index, int pair, int lane) {
  Members group;
  group.count = 0;
  UNROLL for (int m = 0; m < R; m++) group.pair[m] = 0;
  const bool repeated = again(index, pair);
  bool lower = false;
  UNROLL for (int word = 0; word < WORDS; word++) {
    const int mine = word * 32 + lane;
    const bool same = mine < R * TOPK && index[mine < R * TOPK ? mine : 0] == index[pair] &&
                      !again(index, mine < R * TOPK ? mine : 0);
    uint mask = ballot(same);
    UNROLL for (int m = 0; m < R; m++) {
      if (mask != 0u && group.count <= m) {
        group.pair[m] = word * 32 + lowest(mask);
        mask &= mask - 1u;
        group.count = m + 1;
      }
    }
  }
  lower = group.pair[0] < pair;
  if (repeated) {
    group.pair[0] = pair;
    group.count = 1;
  } else if (lower) {
    group.count = 0;
  }
  return group;
}

template <int K, int DIVIDE, typename P>
struct MemberRows {  // row m is that of pair m of the group: pair / DIVIDE of x [.., K]
  P x;
  Members group;
  FN bool has(int m) const { return m < group.count; }
  FN void load(int m, int k, LOCAL float* v) const { activations<K>(x, size_t(group.pair[m] / DIVIDE), k, v); }
};

FN int pair_at(Members group, int m) {  // registers are not indexed by what is known at run time only
  int pair = 0;
  UNROLL for (int i = 0; i < R; i++) pair = i == m ? group.pair[i] : pair;
  return pair;
}

template <int K, int DIVIDE, typename P>
FN MemberRows<K, DIVIDE, P> member_rows(P x, Members group) {
  MemberRows<K, DIVIDE, P> rows;
  rows.x = x;
  rows.group = group;
  return rows;
}
