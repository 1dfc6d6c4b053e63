// Which tables this CPU can run.
#include "../cpu.h"
#include "kernels.h"

#include <cstring>

namespace samovar {

namespace portable {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avxvnni {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace avx512bf16 {
extern const Kernels kKernels;
} // namespace avx512bf16
namespace amx {
extern const Kernels kKernels;
}
namespace neon_dotprod {
extern const Kernels kKernels;
}
namespace neon_i8mm {
extern const Kernels kKernels;
}

namespace {

// A table with the entries that another one has of its own.
[[maybe_unused]] Kernels merged(Kernels table, const Kernels& own) {
  table.name = own.name;
  if (own.matmul_bytes)
    table.matmul_bytes = own.matmul_bytes;
  for (int form = 0; form < kNumForms; ++form)
    if (own.matmul[form])
      table.matmul[form] = own.matmul[form];
  for (int type = 0; type < 3; ++type) {
    if (own.attend[type])
      table.attend[type] = own.attend[type];
    if (own.peak[type])
      table.peak[type] = own.peak[type];
  }
  if (own.peak_scaled)
    table.peak_scaled = own.peak_scaled;
  return table;
}
#ifdef SAMOVAR_HAVE_AMX
const Kernels& amx_table() {
  static const Kernels table = merged(avx512::kKernels, amx::kKernels);
  return table;
}
#endif
#ifdef SAMOVAR_HAVE_NEON_I8MM
const Kernels& i8mm_table() {
  static const Kernels table = merged(neon_dotprod::kKernels, neon_i8mm::kKernels);
  return table;
}
#endif

} // namespace

#ifdef SAMOVAR_HAVE_AVX512BF16
namespace {

// Whether two tables give the same products of bf16.  VDPBF16PS has to round after each of the two that it
// adds; Intel's manual says so, AMD's does not say.
bool multiply_alike(const Kernels& one, const Kernels& other) {
  constexpr int k = 64, rows = 4;
  const FlushDenormals guard;
  alignas(64) uint16_t x[rows][k], w[k * kPanelRows];
  uint32_t state = 1;
  const auto fill = [&state](uint16_t* values, int count, uint32_t exponent) {
    for (int i = 0; i < count; ++i) {
      state = state * 1664525u + 1013904223u;
      values[i] = static_cast<uint16_t>((state >> 16 & 0x807f) | (exponent + (state >> 8 & 15)) << 7);
    }
  };
  for (int row = 0; row < rows; ++row) // around 1, and such that some products are flushed
    fill(x[row], k, row % 2 == 0 ? 119 : 1);
  fill(w, k * kPanelRows, 112);
  float out[2][rows][kPanelRows];
  MatmulArgs args{};
  args.x = reinterpret_cast<const uint8_t*>(x);
  args.x_stride = sizeof x[0];
  args.rows = rows;
  args.k = k;
  args.w = reinterpret_cast<const uint8_t*>(w);
  args.panel_stride = sizeof w;
  args.n = kPanelRows;
  args.out_stride = kPanelRows;
  for (const Kernels* table : {&one, &other}) {
    args.out = out[table == &other][0];
    table->matmul[static_cast<int>(Form::BF16)](args);
  }
  return std::memcmp(out[0], out[1], sizeof out[0]) == 0;
}

} // namespace
#endif

int available_kernels(const Kernels** out, int capacity) {
  [[maybe_unused]] const CpuFeatures cpu = detect_cpu();
  int count = 0;
  const auto offer = [&](const Kernels& table, bool runs) {
    if (runs && count < capacity)
      out[count++] = &table;
  };
#ifdef SAMOVAR_HAVE_AVX2
  const bool runs_avx2 = cpu.avx2 && cpu.fma && cpu.f16c;
#endif
#ifdef SAMOVAR_HAVE_AVX512
  const bool runs_avx512 =
      runs_avx2 && cpu.avx512f && cpu.avx512bw && cpu.avx512vl && cpu.avx512dq && cpu.avx512_vnni;
#ifdef SAMOVAR_HAVE_AMX
#ifndef SAMOVAR_EMULATED_TILES
  if (runs_avx512 && cpu.avx512_bf16 && cpu.amx_int8 && cpu.amx_bf16 && allow_amx())
    offer(amx_table(), true);
#endif
#endif
#ifdef SAMOVAR_HAVE_AVX512BF16
  // Made for AMD's processors: Intel's make a quarter as many of these products, and read memory otherwise.
  const bool runs_dots =
      runs_avx512 && cpu.avx512_bf16 && multiply_alike(avx512bf16::kKernels, avx512::kKernels);
  offer(avx512bf16::kKernels, runs_dots && cpu.amd);
#endif
  offer(avx512::kKernels, runs_avx512);
#ifdef SAMOVAR_HAVE_AVX512BF16
  offer(avx512bf16::kKernels, runs_dots && !cpu.amd);
#endif
#ifdef SAMOVAR_EMULATED_TILES
  offer(amx_table(), runs_avx512 && cpu.avx512_bf16);
#endif
#endif
#ifdef SAMOVAR_HAVE_AVXVNNI
  offer(avxvnni::kKernels, runs_avx2 && cpu.avx_vnni);
#endif
#ifdef SAMOVAR_HAVE_AVX2
  offer(avx2::kKernels, runs_avx2);
#endif
#ifdef SAMOVAR_HAVE_NEON_I8MM
  offer(i8mm_table(), cpu.dotprod && cpu.i8mm);
#endif
#ifdef SAMOVAR_HAVE_NEON_DOTPROD
  offer(neon_dotprod::kKernels, cpu.dotprod);
#endif
  offer(portable::kKernels, true);
  return count;
}

} // namespace samovar
