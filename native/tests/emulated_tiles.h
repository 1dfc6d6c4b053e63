// The tiles of isa/amx.h in plain code, for tests where the processor has none (SAMOVAR_EMULATED_TILES).
//
// Source of the operations: Intel's Architecture Instruction Set Extensions Programming Reference, chapter on
// AMX.  What a processor would refuse ends the program.

struct TileFile {
  alignas(64) uint8_t bytes[8][kTileRows][kTileRowBytes];
  int rows[8]; // none: not configured
};
inline thread_local TileFile tile_file;

inline void require_tile(bool ok) {
  if (!ok)
    __builtin_trap();
}

template <int t> inline void tile_zero() {
  require_tile(tile_file.rows[t] > 0);
  __builtin_memset(tile_file.bytes[t], 0, kTileBytes);
}
// tile[t] = 64 bytes of each row; rows that the tile does not have are zero
template <int t> inline void tile_load(const void* p, int64_t stride) {
  tile_zero<t>();
  for (int r = 0; r < tile_file.rows[t]; ++r)
    __builtin_memcpy(tile_file.bytes[t][r], static_cast<const uint8_t*>(p) + r * stride, kTileRowBytes);
}
template <int t> inline void tile_store(void* p, int64_t stride) {
  require_tile(tile_file.rows[t] > 0);
  for (int r = 0; r < tile_file.rows[t]; ++r)
    __builtin_memcpy(static_cast<uint8_t*>(p) + r * stride, tile_file.bytes[t][r], kTileRowBytes);
}

// The shapes of a product: its sums have the rows of `a`, and `b` a row for each word of those.
template <int c, int a, int b> inline void require_product() {
  require_tile(c != a && c != b && a != b);
  require_tile(tile_file.rows[c] > 0 && tile_file.rows[c] == tile_file.rows[a]);
  require_tile(tile_file.rows[b] == kTileRowBytes / 4);
}

// tile[c] += tile[a] . tile[b], signed bytes in int32
template <int c, int a, int b> inline void tile_dot_s8() {
  require_product<c, a, b>();
  const auto x = reinterpret_cast<const int8_t (*)[16][4]>(tile_file.bytes[a]);
  const auto w = reinterpret_cast<const int8_t (*)[16][4]>(tile_file.bytes[b]);
  const auto sum = reinterpret_cast<int32_t (*)[16]>(tile_file.bytes[c]);
  for (int m = 0; m < tile_file.rows[c]; ++m)
    for (int k = 0; k < 16; ++k)
      for (int n = 0; n < 16; ++n)
        for (int i = 0; i < 4; ++i)
          sum[m][n] += x[m][k][i] * w[k][n][i];
}

// tile[c] += tile[a] . tile[b] of bf16: even and odd products apart from zero, then added, then to the sum
template <int c, int a, int b> inline void tile_dot_bf16() {
  require_product<c, a, b>();
  const auto widened = [](uint16_t bits) { return __builtin_bit_cast(float, uint32_t{bits} << 16); };
  const auto x = reinterpret_cast<const uint16_t (*)[16][2]>(tile_file.bytes[a]);
  const auto w = reinterpret_cast<const uint16_t (*)[16][2]>(tile_file.bytes[b]);
  const auto sum = reinterpret_cast<float (*)[16]>(tile_file.bytes[c]);
  for (int m = 0; m < tile_file.rows[c]; ++m)
    for (int n = 0; n < 16; ++n) {
      float part[2] = {0, 0};
      for (int k = 0; k < 16; ++k)
        for (int odd = 0; odd < 2; ++odd)
          part[odd] = __builtin_fmaf(widened(x[m][k][odd]), widened(w[k][n][odd]), part[odd]);
      sum[m][n] += part[0] + part[1];
    }
}

class Tiles {
public:
  Tiles(int rows, unsigned short_tiles) {
    require_tile(rows > 0 && rows <= kTileRows);
    for (int t = 0; t < 8; ++t)
      tile_file.rows[t] = short_tiles >> t & 1 ? rows : kTileRows;
    __builtin_memset(tile_file.bytes, 0, sizeof tile_file.bytes);
  }
  ~Tiles() {
    for (int& rows : tile_file.rows)
      rows = 0;
  }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};
