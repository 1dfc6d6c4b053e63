// The table for x86-64 with AVX2, FMA, F16C and AVX-VNNI.
#include "avxvnni.h"

#include "../kernels/kernels.h"

namespace samovar::avxvnni {
namespace {
#include "../kernels/all.inl"
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table("avxvnni");

} // namespace samovar::avxvnni
