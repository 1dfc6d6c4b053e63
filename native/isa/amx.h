// AMX tiles: the registers, their shapes, and the state that a thread must leave behind clean.
//
// The instructions are written out here because the compiler's own intrinsics do not tell it which memory
// they touch (GCC 12 drops the stores that fill a configuration).
#pragma once

#include <stdint.h>

#include "avx512.h"

namespace samovar::amx {
namespace {

constexpr int kTileRows = 16;
constexpr int kTileRowBytes = 64;
constexpr int kTileBytes = kTileRows * kTileRowBytes;

#ifdef SAMOVAR_EMULATED_TILES
#include "../tests/emulated_tiles.h"
#else

// tile[t] = 64 bytes of each row
template <int t> SAMOVAR_INLINE void tile_load(const void* p, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(t) : "memory");
}
template <int t> SAMOVAR_INLINE void tile_store(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(t) : "memory");
}
template <int t> SAMOVAR_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(t));
}
// tile[c] += tile[a] . tile[b], signed bytes in int32
template <int c, int a, int b> SAMOVAR_INLINE void tile_dot_s8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
}
// tile[c] += tile[a] . tile[b] of bf16, in the order that kernels.h states
template <int c, int a, int b> SAMOVAR_INLINE void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
}

// While it lives this thread has tiles.  Those of `short_tiles` (a bit for each) have `rows` rows, all
// others 16.  Without release a thread that sleeps would still carry 8 KB of state.
class Tiles {
public:
  SAMOVAR_INLINE Tiles(int rows, unsigned short_tiles) {
    struct alignas(64) Config {
      uint8_t palette;
      uint8_t start_row;
      uint8_t reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    } config{};
    static_assert(sizeof(Config) == 64);
    config.palette = 1;
    for (int t = 0; t < 8; ++t) {
      config.row_bytes[t] = kTileRowBytes;
      config.rows[t] = static_cast<uint8_t>(short_tiles >> t & 1 ? rows : kTileRows);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
  }
  SAMOVAR_INLINE ~Tiles() { asm volatile("tilerelease" : : : "memory"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

#endif

} // namespace
} // namespace samovar::amx
