// What the table for aarch64 with I8MM does otherwise than that with the dot product instructions alone.
#include "neon_i8mm.h"

#include "../kernels/kernels.h"

namespace samovar::neon_dotprod {
extern const Kernels kKernels;
}

namespace samovar::neon_i8mm {
namespace {

SAMOVAR_INLINE void matmul_one_row(Form form, const MatmulArgs& a) {
  neon_dotprod::kKernels.matmul[static_cast<int>(form)](a);
}

#include "../kernels/vector.inl"

#include "../kernels/matmul_common.inl"

#include "../kernels/matmul_q8.inl"

#include "../kernels/peak.inl"

#include "../kernels/matmul_q8_pairs.inl"

constexpr Kernels make_table() {
  Kernels table{};
  table.name = "neon_i8mm";
#define SAMOVAR_PAIRS(form) table.matmul[static_cast<int>(Form::form)] = matmul_q8_pairs<Form::form>;
  SAMOVAR_PAIRS(U4)
  SAMOVAR_PAIRS(U4m)
  SAMOVAR_PAIRS(U4k)
  SAMOVAR_PAIRS(U5)
  SAMOVAR_PAIRS(U5m)
  SAMOVAR_PAIRS(U5k)
  SAMOVAR_PAIRS(U6)
  SAMOVAR_PAIRS(U8)
#undef SAMOVAR_PAIRS
  table.peak[static_cast<int>(RowType::Q8)] = peak_pairs;
  table.peak_scaled = peak_pairs_scaled;
  return table;
}
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table(); // null where the other table's are to be used

} // namespace samovar::neon_i8mm
