// The vector type of NEON, with products of two rows by two outputs in the same registers (I8MM).
#pragma once

#include "neon_dotprod.h"

namespace samovar::neon_i8mm {
namespace {
using namespace neon_dotprod;

// SMMLA: sum[2i + j] += the eight bytes i of `rows` . the eight bytes j of `outputs`, all signed.
SAMOVAR_INLINE I dot_pairs(I sum, I rows, I outputs) {
  return vmmlaq_s32(sum, vreinterpretq_s8_s32(rows), vreinterpretq_s8_s32(outputs));
}
SAMOVAR_INLINE I eight_of_each(const int8_t* one, const int8_t* other) {
  return vreinterpretq_s32_s8(vcombine_s8(vld1_s8(one), vld1_s8(other)));
}
SAMOVAR_INLINE I zip_lower(I a, I b) { // a0 b0 a1 b1
  return vzip1q_s32(a, b);
}
SAMOVAR_INLINE I zip_upper(I a, I b) { // a2 b2 a3 b3
  return vzip2q_s32(a, b);
}
SAMOVAR_INLINE I lower_halves(I a, I b) { // a0 a1 b0 b1
  return vcombine_s32(vget_low_s32(a), vget_low_s32(b));
}
SAMOVAR_INLINE I upper_halves(I a, I b) { // a2 a3 b2 b3
  return vcombine_s32(vget_high_s32(a), vget_high_s32(b));
}

constexpr TileShape kPairTiles{
    .few_rows = 0, .stream_rows = 1, .stream_panels = 1, .rows = 8, .panels = 1, .parts = 1};

} // namespace
} // namespace samovar::neon_i8mm
