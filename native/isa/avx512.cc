// The table for x86-64 with AVX-512 F, BW, VL, DQ and VNNI.
#include "avx512.h"

#include "../kernels/kernels.h"

namespace samovar::avx512 {
namespace {
#include "../kernels/all.inl"
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table("avx512");

} // namespace samovar::avx512
