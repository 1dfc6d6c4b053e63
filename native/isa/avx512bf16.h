// The vector type of AVX-512, with VDPBF16PS: two products of bf16 in one instruction.
#pragma once

#include "avx512.h"

namespace samovar::avx512bf16 {
namespace {
using namespace avx512; // what is declared below hides AVX-512's own

// VDPBF16PS adds the products of the upper halves of its words, then those of the lower ones, each rounded as
// an fma: two steps of one sum.  A word therefore holds two even factors or two odd ones, the first above.
SAMOVAR_INLINE F bf16_dot(F sum, I words, float factors) {
  const I word = _mm512_castps_si512(_mm512_set1_ps(factors));
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(words), reinterpret_cast<__m512bh>(word));
}
// Words of the even and of the odd ones of two pairs that follow each other.
constexpr __mmask32 kUpper = 0xaaaaaaaa;
SAMOVAR_INLINE I even_words(I pair, I next) {
  return _mm512_mask_blend_epi16(kUpper, next, _mm512_slli_epi32(pair, 16));
}
SAMOVAR_INLINE I odd_words(I pair, I next) {
  return _mm512_mask_blend_epi16(kUpper, _mm512_srli_epi32(next, 16), pair);
}
// Words of 32 bf16 that follow each other: even, odd, even, odd, ...
SAMOVAR_INLINE I word_order() {
  return _mm512_set_epi16(29, 31, 28, 30, 25, 27, 24, 26, 21, 23, 20, 22, 17, 19, 16, 18, 13, 15, 12, 14, 9,
                          11, 8, 10, 5, 7, 4, 6, 1, 3, 0, 2);
}
SAMOVAR_INLINE I words_of(I pairs) {
  return _mm512_permutexvar_epi16(word_order(), pairs);
}
// The same of two vectors of floats that are rounded to bf16.
SAMOVAR_INLINE I words_of(F first, F second) {
  const I upper = _mm512_add_epi16(_mm512_slli_epi16(word_order(), 1), _mm512_set1_epi16(1));
  return _mm512_permutex2var_epi16(as_int(first), upper, as_int(second));
}

// One stream that is fetched far ahead is what these processors read fastest: a core of a Zen 5 gets 42 to
// 47 GB/s, with four streams 25 to 35.
constexpr TileShape one_stream(int rows, int panels, int few_rows = 4) {
  return {.few_rows = few_rows,
          .stream_rows = few_rows,
          .stream_panels = 1,
          .stream_ahead = 8192,
          .rows = rows,
          .panels = panels,
          .parts = 1,
          .ahead = 8192};
}
constexpr TileShape kQ8Tiles = one_stream(4, 2), kFloatTiles = one_stream(8, 2),
                    kBf16Tiles = one_stream(4, 2);
// Memory is what 8 rows wait for, and a second pass over the bytes only delays what they ask of it.
constexpr TileShape kByteTiles = one_stream(4, 2, 8);
// Of an L1 of 48 KB: what follows is being fetched, and activations pass by.  Slices of 12 to 40 KB differ
// little.  From so many rows on, what is prepared once is won back.
constexpr Q8Slices kQ8Slices{.bytes = 24 << 10, .scale_rows = 16, .unpack_rows = 32};

} // namespace
} // namespace samovar::avx512bf16
