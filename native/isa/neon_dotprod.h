// The vector type on aarch64 with the dot product instructions: the 16 lanes are four registers.
#pragma once

#include <arm_neon.h>
#include <stdint.h>

#include "../kernels/tile_shape.h"

namespace samovar::neon_dotprod {
namespace {

constexpr int kLanes = 4;
constexpr int kRegisters = 32; // vectors that they hold
using F = float32x4_t;
using I = int32x4_t;

SAMOVAR_INLINE F zero() {
  return vdupq_n_f32(0);
}
SAMOVAR_INLINE F set1(float x) {
  return vdupq_n_f32(x);
}
SAMOVAR_INLINE F load(const float* p) {
  return vld1q_f32(p);
}
SAMOVAR_INLINE void store(float* p, F a) {
  vst1q_f32(p, a);
}
SAMOVAR_INLINE F add(F a, F b) {
  return vaddq_f32(a, b);
}
SAMOVAR_INLINE F sub(F a, F b) {
  return vsubq_f32(a, b);
}
SAMOVAR_INLINE F mul(F a, F b) {
  return vmulq_f32(a, b);
}
SAMOVAR_INLINE F div(F a, F b) {
  return vdivq_f32(a, b);
}
SAMOVAR_INLINE F fma(F a, F b, F c) {
  return vfmaq_f32(c, a, b);
}
SAMOVAR_INLINE F max(F a, F b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
} // FMAX would return NaN
SAMOVAR_INLINE F min(F a, F b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}
SAMOVAR_INLINE I as_int(F a) {
  return vreinterpretq_s32_f32(a);
}
SAMOVAR_INLINE F as_float(I a) {
  return vreinterpretq_f32_s32(a);
}
SAMOVAR_INLINE F select_lt(F a, F b, F yes, F no) {
  return vbslq_f32(vcltq_f32(a, b), yes, no);
}

SAMOVAR_INLINE I iset1(int32_t x) {
  return vdupq_n_s32(x);
}
SAMOVAR_INLINE I iload(const void* p) {
  return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p)));
}
SAMOVAR_INLINE void istore(void* p, I a) {
  vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_s32(a));
}
SAMOVAR_INLINE I iadd(I a, I b) {
  return vaddq_s32(a, b);
}
SAMOVAR_INLINE I isub(I a, I b) {
  return vsubq_s32(a, b);
}
SAMOVAR_INLINE I iand(I a, I b) {
  return vandq_s32(a, b);
}
SAMOVAR_INLINE I ior(I a, I b) {
  return vorrq_s32(a, b);
}
template <int n> SAMOVAR_INLINE I shl(I a) {
  return vshlq_n_s32(a, n);
}
template <int n> SAMOVAR_INLINE I shr(I a) {
  return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), n));
}
template <int n> SAMOVAR_INLINE I sra(I a) {
  return vshrq_n_s32(a, n);
}
SAMOVAR_INLINE F to_float(I a) {
  return vcvtq_f32_s32(a);
}
SAMOVAR_INLINE I to_int(F a) {
  return vcvtnq_s32_f32(a);
} // to nearest even

SAMOVAR_INLINE F load_f16(const void* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(static_cast<const uint8_t*>(p))));
}
SAMOVAR_INLINE uint32_t four_bytes(const void* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}
SAMOVAR_INLINE I load_u8(const void* p) {
  const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four_bytes(p)));
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}
SAMOVAR_INLINE I load_s8(const void* p) {
  const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(four_bytes(p)));
  return vmovl_s16(vget_low_s16(vmovl_s8(bytes)));
}
SAMOVAR_INLINE void store_s8(void* p, I a) {
  const int16x4_t words = vmovn_s32(a);
  const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
  const uint32_t x = vget_lane_u32(vreinterpret_u32_s8(bytes), 0);
  __builtin_memcpy(p, &x, 4);
}

// Over the lanes of one vector; the order does not matter.
SAMOVAR_INLINE float max_of(F a) {
  return vmaxvq_f32(a);
}
SAMOVAR_INLINE int32_t sum_of(I a) {
  return vaddvq_s32(a);
}
SAMOVAR_INLINE bool any_bit(I a) {
  return vmaxvq_u32(vreinterpretq_u32_s32(a)) != 0;
}

// SDOT: both operands are signed, and one of the four groups of activations serves all lanes.
constexpr int kByteOffset = 0;
SAMOVAR_INLINE I byte_codes(I bytes) {
  return veorq_s32(bytes, vdupq_n_s32(static_cast<int32_t>(0x80808080u)));
}
template <int bits> struct Dot {
  I sum;
  Dot() = default;
  SAMOVAR_INLINE explicit Dot(I start) : sum(start) {}
  template <int step, int j> SAMOVAR_INLINE void add(I w, const int8_t* a) {
    sum = vdotq_laneq_s32(sum, vreinterpretq_s8_s32(w), vld1q_s8(a), j);
  }
  SAMOVAR_INLINE I total() const { return sum; }
};

constexpr TileShape kQ8Tiles{
    .few_rows = 1, .stream_rows = 1, .stream_panels = 4, .rows = 4, .panels = 1, .parts = 4};
constexpr TileShape kByteTiles = kQ8Tiles;
constexpr Q8Slices kQ8Slices{};
constexpr TileShape kFloatTiles{
    .few_rows = 1, .stream_rows = 1, .stream_panels = 4, .rows = 4, .panels = 1, .parts = 4};
constexpr TileShape kBf16Tiles{
    .few_rows = 1, .stream_rows = 1, .stream_panels = 2, .rows = 4, .panels = 1, .parts = 4};
constexpr int kAttendRows = 4, kAttendUnits = 2, kBf16Sums = 16;

} // namespace
} // namespace samovar::neon_dotprod
