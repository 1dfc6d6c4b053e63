// Checks the portable table's fma, with denormals and with them flushed, against the vectors on its input:
// lines of a, b, c, a*b+c, and the same flushed, as bits of float.  Prints what differs; exit code 1 if any.
#include "../cpu.h"
#include "../isa/portable.h"

#include <cstdio>
#include <optional>

int main() {
  using namespace samovar;
  unsigned in[3], want[2];
  int count = 0, wrong = 0;
  while (std::scanf("%x %x %x %x %x", &in[0], &in[1], &in[2], &want[0], &want[1]) == 5)
    for (int flush = 0; flush < 2; ++flush) {
      std::optional<FlushDenormals> guard;
      if (flush)
        guard.emplace();
      portable::I bits[3];
      for (int i = 0; i < 3; ++i)
        bits[i] = portable::iset1(static_cast<int32_t>(in[i]));
      const portable::I r = portable::as_int(portable::fma(
          portable::as_float(bits[0]), portable::as_float(bits[1]), portable::as_float(bits[2])));
      ++count;
      for (int i = 0; i < portable::kLanes; ++i)
        if (static_cast<unsigned>(r.v[i]) != want[flush]) {
          std::printf("fma(%08x, %08x, %08x)%s: %08x, expected %08x\n", in[0], in[1], in[2],
                      flush ? " flushed" : "", static_cast<unsigned>(r.v[i]), want[flush]);
          ++wrong;
          break;
        }
    }
  std::printf("%d results, %d wrong\n", count, wrong);
  return wrong != 0 || count == 0;
}
