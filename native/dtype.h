// The layouts in memory that Python, the operations and the kernels agree on.
//
// Everything here is plain data and constexpr arithmetic.  ISA files include this header, so no
// function of it may be emitted out of line (see kernels/kernels.h, "the trap"): all are SAMOVAR_INLINE.
#pragma once

#include <stdint.h>

#define SAMOVAR_INLINE [[gnu::always_inline]] inline

namespace samovar {

constexpr int kPanelRows = 16;     // output rows that share one weight panel: one lane each
constexpr int kBlock = 32;         // k of one quantization block
constexpr int kPageTokens = 32;    // tokens of one KV page
constexpr int kContextChunk = 512; // tokens of one attention chunk, at absolute positions

SAMOVAR_INLINE constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// ---- Activation rows -------------------------------------------------------------------------

enum class RowType : int { F32, Q8, BF16 };

// What a Q8 row knows of each block of 32: the scale, and sums that fold weight offsets and
// minimums.  minus_sum is the sum of the codes, negated: times a weight offset, it is where a sum of
// products begins; minus_sum_hi is that of k 16..31.  dsum = d * float(-minus_sum).
struct Q8Block {
  float d;
  float dsum;
  int32_t minus_sum;
  int32_t minus_sum_hi;
};

// A Q8 row: int8 q[round_up(k, 64)], then Q8Block[round_up(k, 64) / 32].  Padding is all zero.
SAMOVAR_INLINE constexpr int64_t q8_blocks_offset(int64_t k) {
  return round_up(k, 64);
}
SAMOVAR_INLINE constexpr int64_t row_bytes(RowType type, int64_t k) {
  return type == RowType::F32    ? round_up(k * 4, 64)
         : type == RowType::BF16 ? round_up(k, 64) * 2
                                 : round_up(round_up(k, 64) * 3 / 2, 64);
}

// ---- Weight panels ---------------------------------------------------------------------------
//
// A panel is 16 output rows, padded with zero rows; k is padded with zeros to whole chunks.
// A panel is a sequence of chunks over k, 64-byte aligned; `lane n` is row n of the panel.
//
// nibbles, 256 B for a block of 32 k: vector j (0..3, 64 B), lane n holds 4 bytes; byte i of it has
//   q[4j + i] in the low and q[16 + 4j + i] in the high nibble (k counted within the block).
// plane1, 64 B for a block: lane n holds a 32-bit word; bit 8i + j is bit 4 of q[4j + i],
//   bit 8i + 4 + j is bit 4 of q[16 + 4j + i].
// sextets, 384 B for a block: three vectors for its lower 16 k, then three for its upper; byte i of lane n in
//   vector j (0..2) has q[4j + i] in its lower six bits, and above them bits 2j, 2j + 1 of q[12 + i] (k
//   counted within the half).
// bytes, 512 B for a block: vector j (0..7), lane n holds q[4j .. 4j + 3] + 128.
// f16[2][16] means: block 0 for lanes 0..15, then block 1.
//
// form  k/chunk  contents                                                    weight is
// U4     64      nibbles[2], f16 d[2][16]                                    d * (q - 8)
// U4m    64      nibbles[2], f16 d[2][16], f16 m[2][16]                      d * q + m
// U4k   256      nibbles[8], u8 sc[8][16], u8 mn[8][16], f16 d[16], dmin[16] (d*sc) * q - dmin*mn
// U5     64      nibbles[2], plane1[2], f16 d[2][16]                         d * (q - 16)
// U5m    64      nibbles[2], plane1[2], f16 d[2][16], f16 m[2][16]           d * q + m
// U5k   256      nibbles[8], plane1[8], u8 sc[8][16], mn[8][16], f16 d[16], dmin[16]   as U4k
// U6    256      sextets[8], i8 s[8][2][16], f16 d[16], 32 B pad             d * s[half] * (q - 32)
// U8     64      bytes[2], f16 d[2][16]                                      d * q
// F32    64      f32 w[64][16]     F16    64   f16 w[64][16]     BF16   64   bf16 w[32 pairs][16][2]
enum class Form : int { U4, U4m, U4k, U5, U5m, U5k, U6, U8, F32, F16, BF16 };
constexpr int kNumForms = 11;

SAMOVAR_INLINE constexpr int chunk_k(Form form) {
  return form == Form::U4k || form == Form::U5k || form == Form::U6 ? 256 : 64;
}
SAMOVAR_INLINE constexpr int64_t chunk_bytes(Form form) {
  switch (form) {
  case Form::U4: return 512 + 64;
  case Form::U4m: return 512 + 128;
  case Form::U4k: return 2048 + 256 + 64;
  case Form::U5: return 512 + 128 + 64;
  case Form::U5m: return 512 + 128 + 128;
  case Form::U5k: return 2048 + 512 + 256 + 64;
  case Form::U6: return 3072 + 256 + 64;
  case Form::U8: return 1024 + 64;
  case Form::F32: return 4096;
  case Form::F16: return 2048;
  case Form::BF16: return 2048;
  }
  return 0;
}
SAMOVAR_INLINE constexpr int64_t panel_bytes(Form form, int64_t k) {
  return round_up(k, chunk_k(form)) / chunk_k(form) * chunk_bytes(form);
}
SAMOVAR_INLINE constexpr RowType input_row(Form form) {
  return form == Form::F32 || form == Form::F16 ? RowType::F32
         : form == Form::BF16                   ? RowType::BF16
                                                : RowType::Q8;
}

// ---- KV pages --------------------------------------------------------------------------------
//
// A page holds 32 tokens of one kv head: K, then V, each kv_half_bytes long.
// BF16: K bf16[hd/2][32 tokens][2], V bf16[16 token pairs][hd][2]: both are AMX B tiles, and 16
//       tokens (dims) of one pair fill a 64-byte vector.
// F32:  K f32[hd][32 tokens], V f32[32 tokens][hd].
// Q8:   K int8[hd/4][32 tokens][4], f32 scale[hd/32][32 tokens]; V int8[32 tokens][hd],
//       f32 scale[32 tokens][hd/32].  A read gives bf16(q * scale).
// hd is a multiple of 32.
enum class KvType : int { F32, BF16, Q8 };
SAMOVAR_INLINE constexpr int64_t kv_half_bytes(KvType type, int64_t hd) {
  return kPageTokens * (type == KvType::F32 ? hd * 4 : type == KvType::BF16 ? hd * 2 : hd + hd / 8);
}
SAMOVAR_INLINE constexpr int64_t kv_page_bytes(KvType type, int64_t hd) {
  return 2 * kv_half_bytes(type, hd);
}

} // namespace samovar
