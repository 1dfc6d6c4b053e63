// What the table for AMX (int8 and bf16 tiles) does otherwise than that of AVX-512.
#include "amx.h"

#include "../kernels/kernels.h"

namespace samovar::avx512 {
extern const Kernels kKernels;
}

namespace samovar::amx {
namespace {
using namespace avx512;

SAMOVAR_INLINE void matmul_few_rows(Form form, const MatmulArgs& a) {
  avx512::kKernels.matmul[static_cast<int>(form)](a);
}
SAMOVAR_INLINE void attend_few_rows(KvType type, const AttendArgs& a) {
  avx512::kKernels.attend[static_cast<int>(type)](a);
}

#include "../kernels/vector.inl"

#include "../kernels/math.inl"

#include "../kernels/rows.inl"

#include "../kernels/matmul_common.inl"

#include "../kernels/matmul_q8.inl"

#include "../kernels/matmul_tiles.inl"

#include "../kernels/kv_store.inl"

#include "../kernels/attend.inl"

#include "../kernels/softmax_bf16.inl"

#include "../kernels/attend_tiles.inl"

#include "../kernels/peak_tiles.inl"

constexpr Kernels make_table() {
  Kernels table{};
  table.name = "amx";
  table.matmul_bytes = 2 << 20; // weights are widened once for all rows of a call
#define SAMOVAR_TILES(form) table.matmul[static_cast<int>(Form::form)] = matmul_q8_tiles<Form::form>;
  SAMOVAR_TILES(U4)
  SAMOVAR_TILES(U4m)
  SAMOVAR_TILES(U4k)
  SAMOVAR_TILES(U5)
  SAMOVAR_TILES(U5m)
  SAMOVAR_TILES(U5k)
  SAMOVAR_TILES(U6)
  SAMOVAR_TILES(U8)
#undef SAMOVAR_TILES
  table.matmul[static_cast<int>(Form::BF16)] = matmul_bf16_tiles;
  table.attend[static_cast<int>(KvType::BF16)] = attend_tiles<KvType::BF16>;
  table.attend[static_cast<int>(KvType::Q8)] = attend_tiles<KvType::Q8>;
  table.peak[static_cast<int>(RowType::Q8)] = peak_tiles<RowType::Q8>;
  table.peak_scaled = peak_tiles<RowType::Q8>; // vectors scale while tiles multiply
  table.peak[static_cast<int>(RowType::BF16)] = peak_tiles<RowType::BF16>;
  return table;
}
} // namespace

extern const Kernels kKernels;
constinit const Kernels kKernels = make_table(); // null where AVX-512 is to be used

} // namespace samovar::amx
