// Portable. A lane's LANES of the D elements of a row: eights (VECTOR 8) where those of a warp fill it, else every 32nd.
template <int D, int VECTOR>
FN int channel_of(int lane, int i) { return (i / VECTOR * 32 + lane) * VECTOR + i % VECTOR; }
template <int D, int LANES, int VECTOR>
struct Channels {
  template <typename P>
  static FN void load(P p, bool there, int lane, LOCAL float* v) {
    UNROLL for (int i = 0; i < LANES; i++) {
      const int d = channel_of<D, VECTOR>(lane, i);
      v[i] = there && d < D ? float(p[d]) : 0.0f;
    }
  }
};
template <int D, int LANES>
struct Channels<D, LANES, 8> {
  template <typename P>
  static FN void load(P p, bool there, int lane, LOCAL float* v) {
    UNROLL for (int i = 0; i < LANES; i++) v[i] = 0.0f;
    if (there) {  // the same for the whole warp
      UNROLL for (int i = 0; i < LANES; i += 8) load8(p + channel_of<D, 8>(lane, i), v + i);
    }
  }
};
FN float float_of_lane(float x, int lane) { return float_of_bits(uint(lane_value(int(bits_of_float(x)), lane))); }
