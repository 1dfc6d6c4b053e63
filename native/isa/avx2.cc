// The table for x86-64 with AVX2, FMA and F16C.
#include "avx2.h"

#include "../kernels/kernels.h"

namespace samovar::avx2 {
namespace {
#include "../kernels/all.inl"
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table("avx2");

} // namespace samovar::avx2
