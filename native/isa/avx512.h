// The vector type on AVX-512 with VNNI: the 16 lanes are one register.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "../kernels/tile_shape.h"

namespace samovar::avx512 {
namespace {

constexpr int kLanes = 16;
constexpr int kRegisters = 32; // vectors that they hold
using F = __m512;
using I = __m512i;

SAMOVAR_INLINE F zero() {
  return _mm512_setzero_ps();
}
SAMOVAR_INLINE F set1(float x) {
  return _mm512_set1_ps(x);
}
SAMOVAR_INLINE F load(const float* p) {
  return _mm512_loadu_ps(p);
}
SAMOVAR_INLINE void store(float* p, F a) {
  _mm512_storeu_ps(p, a);
}
SAMOVAR_INLINE F add(F a, F b) {
  return _mm512_add_ps(a, b);
}
SAMOVAR_INLINE F sub(F a, F b) {
  return _mm512_sub_ps(a, b);
}
SAMOVAR_INLINE F mul(F a, F b) {
  return _mm512_mul_ps(a, b);
}
SAMOVAR_INLINE F div(F a, F b) {
  return _mm512_div_ps(a, b);
}
SAMOVAR_INLINE F fma(F a, F b, F c) {
  return _mm512_fmadd_ps(a, b, c);
}
SAMOVAR_INLINE F max(F a, F b) {
  return _mm512_max_ps(a, b);
} // a > b ? a : b
SAMOVAR_INLINE F min(F a, F b) {
  return _mm512_min_ps(a, b);
} // a < b ? a : b
SAMOVAR_INLINE I as_int(F a) {
  return _mm512_castps_si512(a);
}
SAMOVAR_INLINE F as_float(I a) {
  return _mm512_castsi512_ps(a);
}
SAMOVAR_INLINE F select_lt(F a, F b, F yes, F no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}

SAMOVAR_INLINE I iset1(int32_t x) {
  return _mm512_set1_epi32(x);
}
SAMOVAR_INLINE I iload(const void* p) {
  return _mm512_loadu_si512(p);
}
SAMOVAR_INLINE void istore(void* p, I a) {
  _mm512_storeu_si512(p, a);
}
SAMOVAR_INLINE I iadd(I a, I b) {
  return _mm512_add_epi32(a, b);
}
SAMOVAR_INLINE I isub(I a, I b) {
  return _mm512_sub_epi32(a, b);
}
SAMOVAR_INLINE I iand(I a, I b) {
  return _mm512_and_si512(a, b);
}
SAMOVAR_INLINE I ior(I a, I b) {
  return _mm512_or_si512(a, b);
}
template <int n> SAMOVAR_INLINE I shl(I a) {
  return _mm512_slli_epi32(a, n);
}
template <int n> SAMOVAR_INLINE I shr(I a) {
  return _mm512_srli_epi32(a, n);
}
template <int n> SAMOVAR_INLINE I sra(I a) {
  return _mm512_srai_epi32(a, n);
}
SAMOVAR_INLINE F to_float(I a) {
  return _mm512_cvtepi32_ps(a);
}
SAMOVAR_INLINE I to_int(F a) {
  return _mm512_cvtps_epi32(a);
} // to nearest even

SAMOVAR_INLINE F load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}
SAMOVAR_INLINE I load_u8(const void* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
SAMOVAR_INLINE I load_s8(const void* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
SAMOVAR_INLINE void store_s8(void* p, I a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}

// Over the lanes of one vector; the order does not matter.
SAMOVAR_INLINE float max_of(F a) {
  return _mm512_reduce_max_ps(a);
}
SAMOVAR_INLINE int32_t sum_of(I a) {
  return _mm512_reduce_add_epi32(a);
}
SAMOVAR_INLINE bool any_bit(I a) {
  return _mm512_test_epi32_mask(a, a) != 0;
}

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
    sum = _mm512_dpbusd_epi32(sum, w, iset1(four));
  }
  SAMOVAR_INLINE I total() const { return sum; }
};

constexpr TileShape kQ8Tiles{
    .few_rows = 4, .stream_rows = 4, .stream_panels = 4, .rows = 8, .panels = 1, .parts = 1};
constexpr TileShape kByteTiles = kQ8Tiles;
constexpr Q8Slices kQ8Slices{};
constexpr TileShape kFloatTiles{
    .few_rows = 4, .stream_rows = 4, .stream_panels = 4, .rows = 8, .panels = 2, .parts = 1};
constexpr TileShape kBf16Tiles{
    .few_rows = 2, .stream_rows = 2, .stream_panels = 4, .rows = 8, .panels = 2, .parts = 1};
constexpr int kAttendRows = 4, kAttendUnits = 2, kBf16Sums = 16;

} // namespace
} // namespace samovar::avx512
