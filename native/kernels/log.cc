#include "log.h"

#include <stdint.h>

namespace samovar {

// x = m * 2^e with m from sqrt(1/2) to sqrt(2); ln m = 2 atanh(s) = 2 (s + s^3/3 + s^5/5 + ...) with
// s = (m - 1) / (m + 1), |s| < 0.172: the first term that is left out is below 2^-58 of the first.
double natural_log(double x) {
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcd;
  constexpr double kLn2High = 0x1.62e42feep-1, kLn2Low = 0x1.a39ef35793c76p-33; // e * high is exact
  const auto bits = __builtin_bit_cast(uint64_t, x);
  const auto e = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  const double m = __builtin_bit_cast(double, bits - (static_cast<uint64_t>(e) << 52));
  const double s = (m - 1) / (m + 1), t = s * s;
  double series = 1.0 / 21;
  for (int n = 19; n >= 3; n -= 2)
    series = series * t + 1.0 / n;
  const auto exponent = static_cast<double>(e);
  return exponent * kLn2High + (2 * s + (2 * s * t * series + exponent * kLn2Low));
}

} // namespace samovar
