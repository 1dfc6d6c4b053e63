// The vector type on AVX2 with FMA and F16C: the 16 lanes are two registers.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "../kernels/tile_shape.h"

namespace samovar::avx2 {
namespace {

constexpr int kLanes = 8;
constexpr int kRegisters = 16; // vectors that they hold
using F = __m256;
using I = __m256i;

SAMOVAR_INLINE F zero() {
  return _mm256_setzero_ps();
}
SAMOVAR_INLINE F set1(float x) {
  return _mm256_set1_ps(x);
}
SAMOVAR_INLINE F load(const float* p) {
  return _mm256_loadu_ps(p);
}
SAMOVAR_INLINE void store(float* p, F a) {
  _mm256_storeu_ps(p, a);
}
SAMOVAR_INLINE F add(F a, F b) {
  return _mm256_add_ps(a, b);
}
SAMOVAR_INLINE F sub(F a, F b) {
  return _mm256_sub_ps(a, b);
}
SAMOVAR_INLINE F mul(F a, F b) {
  return _mm256_mul_ps(a, b);
}
SAMOVAR_INLINE F div(F a, F b) {
  return _mm256_div_ps(a, b);
}
SAMOVAR_INLINE F fma(F a, F b, F c) {
  return _mm256_fmadd_ps(a, b, c);
}
SAMOVAR_INLINE F max(F a, F b) {
  return _mm256_max_ps(a, b);
} // a > b ? a : b
SAMOVAR_INLINE F min(F a, F b) {
  return _mm256_min_ps(a, b);
} // a < b ? a : b
SAMOVAR_INLINE I as_int(F a) {
  return _mm256_castps_si256(a);
}
SAMOVAR_INLINE F as_float(I a) {
  return _mm256_castsi256_ps(a);
}
SAMOVAR_INLINE F select_lt(F a, F b, F yes, F no) {
  return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

SAMOVAR_INLINE I iset1(int32_t x) {
  return _mm256_set1_epi32(x);
}
SAMOVAR_INLINE I iload(const void* p) {
  return _mm256_loadu_si256(static_cast<const I*>(p));
}
SAMOVAR_INLINE void istore(void* p, I a) {
  _mm256_storeu_si256(static_cast<I*>(p), a);
}
SAMOVAR_INLINE I iadd(I a, I b) {
  return _mm256_add_epi32(a, b);
}
SAMOVAR_INLINE I isub(I a, I b) {
  return _mm256_sub_epi32(a, b);
}
SAMOVAR_INLINE I iand(I a, I b) {
  return _mm256_and_si256(a, b);
}
SAMOVAR_INLINE I ior(I a, I b) {
  return _mm256_or_si256(a, b);
}
template <int n> SAMOVAR_INLINE I shl(I a) {
  return _mm256_slli_epi32(a, n);
}
template <int n> SAMOVAR_INLINE I shr(I a) {
  return _mm256_srli_epi32(a, n);
}
template <int n> SAMOVAR_INLINE I sra(I a) {
  return _mm256_srai_epi32(a, n);
}
SAMOVAR_INLINE F to_float(I a) {
  return _mm256_cvtepi32_ps(a);
}
SAMOVAR_INLINE I to_int(F a) {
  return _mm256_cvtps_epi32(a);
} // to nearest even

SAMOVAR_INLINE F load_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
SAMOVAR_INLINE I load_u8(const void* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
SAMOVAR_INLINE I load_s8(const void* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
}
SAMOVAR_INLINE void store_s8(void* p, I a) {
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

// Over the lanes of one vector; the order does not matter.
SAMOVAR_INLINE float max_of(F a) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
SAMOVAR_INLINE int32_t sum_of(I a) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  s = _mm_add_epi32(s, _mm_unpackhi_epi64(s, s));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 1)));
}
SAMOVAR_INLINE bool any_bit(I a) {
  return !_mm256_testz_si256(a, a);
}

// VPMADDUBSW adds pairs of products in 16 bits, where as many vectors of them are summed as cannot
// overflow: a pair of codes below 2^bits is at most 2 * (2^bits - 1) * 127.
constexpr int kByteOffset = 0;
SAMOVAR_INLINE I byte_codes(I bytes) {
  return _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
}
template <int bits> struct Dot {
  static constexpr int kVectors = 32767 / (2 * ((1 << bits) - 1) * 127); // 8, 4, 2 for 4, 5, 6 bits
  I sum, words;
  Dot() = default;
  SAMOVAR_INLINE explicit Dot(I start) : sum(start), words(iset1(0)) {}
  template <int step, int j> SAMOVAR_INLINE void add(I w, const int8_t* a) {
    int32_t four;
    __builtin_memcpy(&four, a + 4 * j, 4);
    const I products = _mm256_maddubs_epi16(w, iset1(four));
    words = step % kVectors == 0 ? products : _mm256_add_epi16(words, products);
    if constexpr ((step + 1) % kVectors == 0) {
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
    }
  }
  SAMOVAR_INLINE I total() const { return sum; }
};
// Signed bytes, and a pair may reach 2 * 128 * 127: the sign moves to the activation (abs is unsigned).
template <> struct Dot<8> {
  I sum;
  Dot() = default;
  SAMOVAR_INLINE explicit Dot(I start) : sum(start) {}
  template <int step, int j> SAMOVAR_INLINE void add(I w, const int8_t* a) {
    int32_t four;
    __builtin_memcpy(&four, a + 4 * j, 4);
    const I products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(iset1(four), w));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(products, _mm256_set1_epi16(1)));
  }
  SAMOVAR_INLINE I total() const { return sum; }
};

constexpr TileShape kQ8Tiles{
    .few_rows = 2, .stream_rows = 2, .stream_panels = 4, .rows = 4, .panels = 1, .parts = 1};
constexpr TileShape kByteTiles = kQ8Tiles;
constexpr Q8Slices kQ8Slices{};
constexpr TileShape kFloatTiles{
    .few_rows = 1, .stream_rows = 1, .stream_panels = 4, .rows = 4, .panels = 1, .parts = 2};
constexpr TileShape kBf16Tiles{
    .few_rows = 1, .stream_rows = 1, .stream_panels = 2, .rows = 4, .panels = 1, .parts = 2};
constexpr int kAttendRows = 4, kAttendUnits = 2, kBf16Sums = 8;

} // namespace
} // namespace samovar::avx2
