// The table for x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
#include "avx512.h"

#include "../kernels/kernels.h"

namespace samovar::avx512 {
namespace {
#include "../kernels/all.inl"

#include "../kernels/quantize_four.inl"

constexpr Kernels make_table() {
  Kernels table = make_table("avx512");
  table.quantize_q8 = quantize_q8_fours;
  return table;
}
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table();

} // namespace samovar::avx512
