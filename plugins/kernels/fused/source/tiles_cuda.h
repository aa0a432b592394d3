// Tiles (tile.h) by mma.sync m16n8k16 in bfloat16: 16 rows of a matrix, 8 of activations, 4 parts of columns.
typedef uint Pair;  // two bfloat16
#define TILE_WEIGHTS 2
#define TILE_CHUNKS 4
#define TILE_XS 1
#define MX_SHIFT 64  // codes come out times 2^-62 and their scale
#define MX_FACTOR 4.611686018e18f
// Columns of a lane's chunk, as measured: more of a row at once where one warp has all of its columns.
#define MXFP4_LEN(k) ((k) <= 2048 && (k) % 64 == 0 ? 64 : 32)
// Left to itself the compiler puts a load off until its value is used, and a warp waits for memory time and again.
#define LOADED() __syncwarp()
FN int tile_weight(int lane, int i) { return lane / 4 + 8 * i; }
FN int tile_chunk(int lane) { return lane % 4; }
FN int tile_x_row(int lane) { return lane / 4; }
FN int tile_x_chunk(int lane, int) { return lane % 4; }
FN int tile_out(int lane, int i) { return lane / 4 + 8 * (i / 2); }
FN int tile_row(int lane, int i) { return lane % 4 * 2 + i % 2; }
FN void tile_step(float* acc, uint a0, uint a1, uint a2, uint a3, uint b0, uint b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
FN void tile_multiply(const Pair* w, const Pair* x, float* acc) {
  tile_step(acc, w[0], w[4], w[1], w[5], x[0], x[1]);
  tile_step(acc, w[2], w[6], w[3], w[7], x[2], x[3]);
}
FN Pair pair_of(float low, float high) { return bfloat_pair(low, high); }
FN void pairs_of_bits(uint4 a, Pair* out) {
  out[0] = __byte_perm(a.x, a.z, 0x5410);
  out[1] = __byte_perm(a.x, a.z, 0x7632);
  out[2] = __byte_perm(a.y, a.w, 0x5410);
  out[3] = __byte_perm(a.y, a.w, 0x7632);
}
FN void pairs8(const __nv_bfloat16* p, Pair* out) { pairs_of_bits(*reinterpret_cast<const uint4*>(p), out); }
// Weights must not drive activations out of the first cache.
FN uint4 read_once(const void* p) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}
FN void weights8(const __nv_bfloat16* p, Pair* out) { pairs_of_bits(read_once(p), out); }
template <int N>
FN void words(const uint* p, uint* out) {
  UNROLL for (int i = 0; i < N / 4; i++) {
    const uint4 v = read_once(p + 4 * i);
    out[4 * i] = v.x; out[4 * i + 1] = v.y; out[4 * i + 2] = v.z; out[4 * i + 3] = v.w;
  }
  if (N % 4 == 2)
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(out[N / 4 * 4]), "=r"(out[N / 4 * 4 + 1]) : "l"(p + N / 4 * 4) : "memory");
}
template <int N>
FN void bytes(const uint8_t* p, uint* out) {
  UNROLL for (int i = 0; i < N; i++) asm volatile("ld.global.u8 %0, [%1];" : "=r"(out[i]) : "l"(p + i) : "memory");
}
FN uint product(uint a, uint b) {  // of two bfloat16 each
  uint y;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
FN uint difference(uint a, uint b) {
  uint y;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
  return y;
}
FN uint scale_bits(uint byte) { return (byte + MX_SHIFT) * 0x00800080u; }
// A code times 2^6 + 2^12 has its magnitude where a bfloat16 has it, and its sign: a product is another unit's work.
FN void fp4_pairs(uint word, uint byte, Pair* out) {
  const uint scale = scale_bits(byte), high = word >> 8;
  out[0] = product(((word & 0x000f000fu) * 0x1040u) & 0x81c081c0u, scale);
  out[1] = product(((word & 0x00f000f0u) * 0x0104u) & 0x81c081c0u, scale);
  out[2] = product(((high & 0x000f000fu) * 0x1040u) & 0x81c081c0u, scale);
  out[3] = product(((high & 0x00f000f0u) * 0x0104u) & 0x81c081c0u, scale);
}
FN void fp8_pairs(uint first, uint second, uint byte, Pair* out) {
  const uint scale = scale_bits(byte - 6u);
  const uint codes[4] = {__byte_perm(first, second, 0x4400), __byte_perm(first, second, 0x5511),
                         __byte_perm(first, second, 0x6622), __byte_perm(first, second, 0x7733)};
  UNROLL for (int i = 0; i < 4; i++)
    out[i] = product(((codes[i] * 16u) & 0x07f007f0u) | (codes[i] & 0x80008000u), scale);
}
FN void u4_pairs(uint word, Pair* out) {  // 128 + code is a bfloat16 with the code in its low bits
  UNROLL for (int i = 0; i < 4; i++) out[i] = difference(((word >> (4 * i)) & 0x000f000fu) | 0x43004300u, 0x43084308u);
}
FN void u8_pairs(uint first, uint second, Pair* out) {  // a float of 2^23 + code
  UNROLL for (int i = 0; i < 4; i++) {
    const float low = __uint_as_float(__byte_perm(first, 0x4b000000u, 0x7650 + i));
    const float high = __uint_as_float(__byte_perm(second, 0x4b000000u, 0x7650 + i));
    out[i] = bfloat_pair(low - 8388736.0f, high - 8388736.0f);
  }
}
