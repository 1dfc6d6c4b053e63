// Which tables this CPU can run.
#include "../cpu.h"
#include "kernels.h"

namespace samovar {

namespace portable {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace neon_dotprod {
extern const Kernels kKernels;
}

int available_kernels(const Kernels** out, int capacity) {
  [[maybe_unused]] const CpuFeatures cpu = detect_cpu();
  int count = 0;
  const auto offer = [&](const Kernels& table, bool runs) {
    if (runs && count < capacity)
      out[count++] = &table;
  };
#ifdef SAMOVAR_HAVE_AVX512
  offer(avx512::kKernels, cpu.avx2 && cpu.fma && cpu.f16c && cpu.avx512f && cpu.avx512bw && cpu.avx512vl &&
                              cpu.avx512dq && cpu.avx512_vnni);
#endif
#ifdef SAMOVAR_HAVE_AVX2
  offer(avx2::kKernels, cpu.avx2 && cpu.fma && cpu.f16c);
#endif
#ifdef SAMOVAR_HAVE_NEON_DOTPROD
  offer(neon_dotprod::kKernels, cpu.dotprod);
#endif
  offer(portable::kKernels, true);
  return count;
}

} // namespace samovar
