// The vector type of AVX2, with VNNI's dot products in the same registers (AVX-VNNI).
#pragma once

#include "avx2.h"

namespace samovar::avxvnni {
namespace {
using namespace avx2; // what is declared below hides AVX2's own

// VPDPBUSD: the weights are the unsigned operand, so bytes keep their bias of 128.
constexpr int kByteOffset = 128;
SAMOVAR_INLINE I byte_codes(I bytes) {
  return bytes;
}
template <int bits> struct Dot {
  I sum;
  Dot() = default;
  SAMOVAR_INLINE explicit Dot(I start) : sum(start) {}
  template <int step, int j> SAMOVAR_INLINE void add(I w, const int8_t* a) {
    int32_t four;
    __builtin_memcpy(&four, a + 4 * j, 4);
    sum = _mm256_dpbusd_avx_epi32(sum, w, iset1(four));
  }
  SAMOVAR_INLINE I total() const { return sum; }
};

constexpr TileShape kQ8Tiles{
    .few_rows = 4, .stream_rows = 4, .stream_panels = 4, .rows = 8, .panels = 1, .parts = 1};
constexpr TileShape kByteTiles = kQ8Tiles;

} // namespace
} // namespace samovar::avxvnni
