#include "rope_angles.h"

#include <bit>
#include <cstdint>

namespace samovar {
namespace {

// Taylor series on |r| <= pi/4: the first term left out is below 2^-53 of the result.
double sin_near_zero(double r) {
  const double z = r * r;
  double p = 1.0 / 355687428096000.0; // 17!
  p = p * z - 1.0 / 1307674368000.0;
  p = p * z + 1.0 / 6227020800.0;
  p = p * z - 1.0 / 39916800.0;
  p = p * z + 1.0 / 362880.0;
  p = p * z - 1.0 / 5040.0;
  p = p * z + 1.0 / 120.0;
  p = p * z - 1.0 / 6.0;
  return r + r * z * p;
}

double cos_near_zero(double r) {
  const double z = r * r;
  double p = 1.0 / 20922789888000.0; // 16!
  p = p * z - 1.0 / 87178291200.0;
  p = p * z + 1.0 / 479001600.0;
  p = p * z - 1.0 / 3628800.0;
  p = p * z + 1.0 / 40320.0;
  p = p * z - 1.0 / 720.0;
  p = p * z + 1.0 / 24.0;
  return 1.0 - 0.5 * z + z * z * p;
}

} // namespace

void rope_angles(const double* inv_freq, int n, int position, float scale, float* cos, float* sin) {
  constexpr double kRound = 6755399441055744.0; // 1.5 * 2^52: adding it rounds to an integer
  // pi/2 in three parts; the first two have 33 bits, so their products with n < 2^20 are exact.
  constexpr double kHalfPi1 = 0x1.921fb544p+0, kHalfPi2 = 0x1.0b4611a6p-34, kHalfPi3 = 0x1.3198a2e037073p-69;
  constexpr uint64_t kSign = uint64_t{1} << 63;
  for (int i = 0; i < n; ++i) {
    const double angle = position * inv_freq[i];
    const double shifted = angle * 0.63661977236758134308 + kRound; // 2 / pi
    const double quarters = shifted - kRound;
    const double r = ((angle - quarters * kHalfPi1) - quarters * kHalfPi2) - quarters * kHalfPi3;
    // Bits instead of branches, so that the compiler makes several angles at once: the integer stands in the
    // lowest bits of the shifted number; odd quadrants swap both series, two of four negate each.
    const auto quadrant = std::bit_cast<uint64_t>(shifted);
    const auto s = std::bit_cast<uint64_t>(sin_near_zero(r)), c = std::bit_cast<uint64_t>(cos_near_zero(r));
    const uint64_t swapped = (s ^ c) & (0 - (quadrant & 1));
    const uint64_t negative_cosine = (quadrant + 1) << 62 & kSign, negative_sine = quadrant << 62 & kSign;
    cos[i] = static_cast<float>(std::bit_cast<double>((c ^ swapped) ^ negative_cosine) * scale);
    sin[i] = static_cast<float>(std::bit_cast<double>((s ^ swapped) ^ negative_sine) * scale);
  }
}

} // namespace samovar
