// The table for any processor of the platform: slow, and the reference of the others.
#include "portable.h"

#include "../kernels/kernels.h"

namespace samovar::portable {
namespace {
#include "../kernels/all.inl"
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table("portable");

} // namespace samovar::portable
