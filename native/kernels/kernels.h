// The table of inner loops.  One table for each instruction set; all give the same bits.
//
// The arithmetic ("S1") is part of each contract: a kernel may reorder work, never roundings.
//  * fma(a, b, c) rounds once.  There are no reciprocal estimates, no libm, no contraction.
//  * `sum16(x)`: 16 virtual lanes, lane l adds x[l], x[l + 16], ... from zero in order; then lanes
//    are added as a tree: l + 8, then + 4, + 2, + 1.  `max16` likewise (order does not matter).
//  * exp is one fixed polynomial (kernels/math.inl) of about 1 ulp, 0 below -86.9 (where a result
//    is under 2^-125); sigmoid, silu, gelu build on it.
//  * FTZ and DAZ are set by the caller in every compute thread.  (x86 flushes what is tiny after
//    rounding, ARM before: a result that rounds up to 2^-126 is the one that may differ.)
//
// Contracts common to all: pointers that name rows, panels and pages are 64-byte aligned unless
// said otherwise; no allocation, no exceptions, no threads, no static state.
//
// The trap: an inline function of the standard library compiled in an ISA file is a weak symbol,
// and the linker may keep that copy for everyone.  ISA files and *.inl therefore include only
// <stdint.h>, intrinsics and headers of ours, and keep all code in the ISA's own namespace.
#pragma once

#include "../dtype.h"

namespace samovar {

// out[r][j] = acc(r, j) [+ bias[j]] [+ add[r][j]], in this order, for j in [0, n).
//
// Q8 input: acc = 0; for each block b of 32 in k order, with I the exact integer sum of
//   (weight code - offset) * activation code: acc = fma(float(I), d_w[b] * d_a[b], acc);
//   forms with minimums then acc = fma(min_w[b], dsum_a[b], acc); U6 combines its halves first,
//   I = s_lo * I_lo + s_hi * I_hi, which is below 2^24 and so exact in float too.  For K-quants
//   d_w = d * sc and min_w = -(dmin * mn), exact in f32.
// F32 input: acc = fma(x[k], w[k], acc) in k order.  F16 weights are widened first.
// BF16 input: for each 32 k: e and o from zero, e = fma(x[2i], w[2i], e), o = fma(x[2i+1], w[2i+1], o)
//   for i = 0..15; acc = acc + (e + o).  This is TDPBF16PS.
struct MatmulArgs {
  const uint8_t* x;     // first activation row, of the type that the form reads
  int64_t x_stride;     // bytes from row to row
  int rows;             // >= 1
  int k;                // columns of x; padding as in dtype.h
  const uint8_t* w;     // first panel
  int64_t panel_stride; // bytes from panel to panel
  int n;                // outputs; ceil(n / 16) panels are read, the last may be partial
  int panels_after;     // panels behind these that may be fetched: the caller goes on with them
  bool cold;            // whether nobody has called for the first panels yet
  float* out;           // no alignment beyond 4; columns past n are not touched
  int64_t out_stride;   // floats from row to row
  const float* bias;    // n floats, or null
  const float* add;     // added last, or null; may be `out` itself
  int64_t add_stride;
};
using MatmulFn = void (*)(const MatmulArgs& args);

// One KV head, one context chunk of at most 512 tokens, some query rows of one sequence.
//
// For each row r and each position p in the chunk with first[r] <= p <= last[r]:
//   s = (q . k_p) * scale, in the order of the KV type (BF16 and Q8: the BF16 matmul order above
//   with q rounded to bf16; F32: one fma chain in dim order);
//   m[r] = max of s; e_p = exp(s - m[r]), for BF16 and Q8 rounded to bf16; positions outside give 0;
//   l[r] = sum16 of e over the chunk's positions (lane = position mod 16);
//   o[r][d] = sum over tokens of e_p * v_p[d]: BF16 and Q8: for each page e/o accumulators of even
//   and odd tokens as in the matmul, o = o + (e + o'); F32: one fma chain in token order.
// A row that sees nothing of the chunk gets m = -inf, l = 0 and o = 0.  The sign of a zero m is open, and so
// is all of a row with a score that is not finite.
// Pages that no row sees need not be read; unwritten slots of read pages are finite.
struct AttendArgs {
  const float* const* q;       // rows pointers to hd floats (not scaled)
  int rows;                    // 1..16
  int hd;                      // multiple of 32, at most 256
  const int32_t* first;        // rows: first visible position (sliding window)
  const int32_t* last;         // rows: last visible position
  const uint8_t* const* pages; // one pointer for each page of the chunk
  int num_pages;               // 1..16
  const uint8_t* const* next;  // pages that the caller attends to next: their keys may be fetched
  int num_next;                // 0..16
  bool cached;                 // whether all pages were just read: none is fetched ahead, nor are `next`
  int32_t base;                // position of the chunk's first token, a multiple of 512
  float scale;                 // above 0
  float* m;                    // rows
  float* l;                    // rows
  float* o;                    // rows x o_stride
  int64_t o_stride;
};
using AttendFn = void (*)(const AttendArgs& args);

struct Kernels {
  const char* name; // as the files of native/isa: "portable", "avx2", ...

  MatmulFn matmul[kNumForms]; // by Form
  int64_t matmul_bytes;       // of activations that a call should have at most, so that L2 holds them
  AttendFn attend[3];         // by KvType

  // Stores one token's k and v (hd floats each) into its slot of a page, by KvType.
  // Q8: for each 32 dims d = max|x| / 127, q = rne(x * (127 / max)); zero block as quantize_q8.
  void (*kv_store[3])(const float* k, const float* v, int hd, int slot, uint8_t* page);

  // Folds chunk b into a running result a, in place: m = max(a.m, b.m), wa = exp(a.m - m),
  // wb = exp(b.m - m), l = fma(b.l, wb, a.l * wa), o = fma(b.o, wb, a.o * wa).  b.m == -inf: unchanged;
  // a.m == -inf: a = b.
  void (*attend_merge)(float* a_m, float* a_l, float* a_o, const float* b_m, const float* b_l,
                       const float* b_o, int hd);

  // For each block of 32: d = max|x| / 127, q = rne(x * (127 / max)), true divisions; a block whose max
  // is 0 or so small that 127 / max overflows gives zeros.  k rounded up to a multiple of 32 codes are
  // written, zero past k.  False if any x is not finite.
  bool (*quantize_q8)(const float* x, int k, int8_t* codes, Q8Block* blocks);
  // Writes a BF16 row (round to nearest even), padding zero.  False if any x is not finite.
  bool (*round_bf16)(const float* x, int k, uint8_t* out);

  // out[i] = (x[i] * (1 / sqrt(sum16(x^2) / n + eps))) * w[i] [+ add[i]]; squares enter the sum by
  // fma(x, x, lane).  w null means 1; out may be x or add.  Pointers need 4-byte alignment only.
  void (*rms_norm)(const float* x, const float* w, const float* add, int n, float eps, float* out);

  // out[i] = act(gate[i]) * up[i], i < n, a multiple of `group`; x is `group` gates, their ups, and so on.
  // silu(x) = x / (1 + exp(-x));
  // gelu_tanh(x) = x * sigmoid(2u), u = sqrt(2/pi) * (x + 0.044715 x^3), evaluated as
  // x / (1 + exp(-2u)).  out may be x.
  void (*silu_mul)(const float* x, int group, int n, float* out);
  void (*gelu_tanh_mul)(const float* x, int group, int n, float* out);

  // Rotates one head in place, half-split: for i < half: a = x[i], b = x[i + half];
  // x[i] = fma(a, cos[i], -(b * sin[i])), x[i + half] = fma(b, cos[i], a * sin[i]).
  void (*rope)(float* x, const float* cos, const float* sin, int half);

  // out[i] = x[i] * s
  void (*scale)(const float* x, float s, int n, float* out);
  // out[i] = x[i] / s
  void (*divide)(const float* x, float s, int n, float* out);

  // Whether no x is infinite or NaN.  x needs 4-byte alignment only.
  bool (*all_finite)(const float* x, int n);

  // Index of the largest value; the lowest index on a tie.  NaN is never chosen; all NaN gives 0.
  int (*argmax)(const float* x, int n);
  // out[i] = exp((x[i] - shift) * mul), returns sum16(out).  -inf gives 0.  out may be x.
  float (*exp_sum)(const float* x, int n, float shift, float mul, float* out);

  // The limit that matmuls are measured against: multiplies and adds as the products of this RowType do at
  // best, from registers, in 1 to 2^14 rounds.  Returns the products made.
  int64_t (*peak[3])(int rounds);
  // The same for 8-bit products whose sums are scaled and added, as the blocks of quantized panels are.
  int64_t (*peak_scaled)(int rounds);
};

// Writes a whole Q8 row of k numbers; false if any is not finite.
SAMOVAR_INLINE bool quantize_q8_row(const Kernels& kernels, const float* x, int k, uint8_t* row) {
  const int64_t codes = round_up(k, kBlock), all_codes = q8_blocks_offset(k);
  auto* blocks = reinterpret_cast<Q8Block*>(row + all_codes);
  const bool finite = kernels.quantize_q8(x, k, reinterpret_cast<int8_t*>(row), blocks);
  auto* end = reinterpret_cast<uint8_t*>(blocks + codes / kBlock);
  __builtin_memset(row + codes, 0, all_codes - codes);
  __builtin_memset(end, 0, row + row_bytes(RowType::Q8, k) - end);
  return finite;
}

// Tables that this build has and this CPU can run, best first; the last is always "portable".
// Returns their number (at most `capacity` are written).
int available_kernels(const Kernels** out, int capacity);

} // namespace samovar
