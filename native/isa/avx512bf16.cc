// The table for x86-64 with AVX-512 F, BW, VL, DQ, VNNI and BF16.
#include "avx512bf16.h"

#include "../kernels/kernels.h"

namespace samovar::avx512bf16 {
namespace {
#include "../kernels/all.inl"

#include "../kernels/softmax_bf16.inl"

#include "../kernels/bf16_dots.inl"

#include "../kernels/quantize_four.inl"

constexpr Kernels make_table() {
  Kernels table = make_table("avx512bf16");
  table.quantize_q8 = quantize_q8_fours;
  table.matmul[static_cast<int>(Form::BF16)] = matmul_bf16_words;
  table.attend[static_cast<int>(KvType::BF16)] = attend_words<KvType::BF16>;
  table.attend[static_cast<int>(KvType::Q8)] = attend_words<KvType::Q8>;
  table.peak[static_cast<int>(RowType::BF16)] = peak_words;
  return table;
}
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table();

} // namespace samovar::avx512bf16
