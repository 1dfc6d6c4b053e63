// The table for aarch64 with the dot product instructions.
#include "neon_dotprod.h"

#include "../kernels/kernels.h"

namespace samovar::neon_dotprod {
namespace {
#include "../kernels/all.inl"
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table("neon_dotprod");

} // namespace samovar::neon_dotprod
