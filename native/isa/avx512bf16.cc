// The table for x86-64 with AVX-512 F, BW, VL, DQ, VNNI and BF16.
#include "avx512bf16.h"

#include "../kernels/kernels.h"

namespace samovar::avx512bf16 {
namespace {
#include "../kernels/all.inl"

#include "../kernels/softmax_bf16.inl"

#include "../kernels/bf16_dots.inl"

constexpr Kernels make_table_with_dots() {
  Kernels table = make_table("avx512bf16");
  table.matmul[static_cast<int>(Form::BF16)] = matmul_bf16_words;
  table.attend[static_cast<int>(KvType::BF16)] = attend_words<KvType::BF16>;
  table.attend[static_cast<int>(KvType::Q8)] = attend_words<KvType::Q8>;
  table.peak[static_cast<int>(RowType::BF16)] = peak_words;
  return table;
}
} // namespace

// Whether this processor's instruction rounds after each of its two products.  Intel's manual says so, AMD's
// does not say.
bool dots_round_as_fma();
bool dots_round_as_fma() {
  uint32_t state = 1;
  const auto random_bf16 = SAMOVAR_BODY() { // 2^-8 to 2^8, either sign
    state = state * 1664525u + 1013904223u;
    return (state & 0x807f0000u) | (119u + (state >> 8 & 15u)) << 23;
  };
  bool same = true;
  for (int turn = 0; turn < 64; ++turn) {
    alignas(64) uint32_t x[2][16];
    for (auto& half : x)
      for (uint32_t& value : half)
        value = random_bf16();
    const uint32_t y[2] = {random_bf16(), random_bf16()};
    const F start = set1(static_cast<float>(turn) * 0.1f);
    const F first = fma(as_float(iload(x[0])), set1(__builtin_bit_cast(float, y[0])), start);
    const F both = fma(as_float(iload(x[1])), set1(__builtin_bit_cast(float, y[1])), first);
    const F dot =
        bf16_dot(start, ior(iload(x[0]), shr<16>(iload(x[1]))), __builtin_bit_cast(float, y[0] | y[1] >> 16));
    same = same && !any_bit(_mm512_xor_si512(as_int(dot), as_int(both)));
  }
  return same;
}

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table_with_dots();

} // namespace samovar::avx512bf16
