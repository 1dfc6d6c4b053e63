// The vector type in plain C++: 16 lanes in an array.
//
// x86's baseline has no fused multiply-add, and libm's is slow or chosen at run time, so fma is
// computed exactly in double here: the product of two floats is exact, the sum is rounded to odd,
// and 53 bits rounded to odd round to 24 bits as the exact sum would (Boldo and Melquiond 2008).
#pragma once

#include <stdint.h>

#include "../kernels/tile_shape.h"

namespace samovar::portable {
namespace {

constexpr int kLanes = 16;
constexpr int kRegisters = 16; // vectors that they hold

struct F {
  float v[kLanes];
};
struct I {
  int32_t v[kLanes];
};

#define SAMOVAR_LANES for (int i = 0; i < kLanes; ++i)

SAMOVAR_INLINE F zero() {
  return F{};
}
SAMOVAR_INLINE F set1(float x) {
  F r;
  SAMOVAR_LANES r.v[i] = x;
  return r;
}
SAMOVAR_INLINE F load(const float* p) {
  F r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
SAMOVAR_INLINE void store(float* p, F a) {
  __builtin_memcpy(p, &a, sizeof a);
}
SAMOVAR_INLINE F add(F a, F b) {
  SAMOVAR_LANES a.v[i] += b.v[i];
  return a;
}
SAMOVAR_INLINE F sub(F a, F b) {
  SAMOVAR_LANES a.v[i] -= b.v[i];
  return a;
}
SAMOVAR_INLINE F mul(F a, F b) {
  SAMOVAR_LANES a.v[i] *= b.v[i];
  return a;
}
SAMOVAR_INLINE F div(F a, F b) {
  SAMOVAR_LANES a.v[i] /= b.v[i];
  return a;
}
// Kept out of line, as are other long ones: inlined into every tile they cost megabytes.
[[gnu::noinline]] F fma(F a, F b, F c) {
#if defined(__FMA__) || defined(__aarch64__)
  SAMOVAR_LANES c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
#else
  typedef float Float2 __attribute__((vector_size(8)));
  typedef double Double2 __attribute__((vector_size(16)));
  typedef uint64_t ULong2 __attribute__((vector_size(16)));
  const auto widen = [](const float* p) {
    Float2 x;
    __builtin_memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, Double2);
  };
  for (int i = 0; i < kLanes; i += 2) {
    const Double2 p = widen(a.v + i) * widen(b.v + i), q = widen(c.v + i);
    const Double2 s = p + q, t = s - p;
    const Double2 rest = (p - (s - t)) + (q - t); // p + q - s, exactly; NaN if s is not finite
    // An inexact sum that is even in its last bit takes the odd neighbour on the exact sum's side.
    const ULong2 bits = __builtin_bit_cast(ULong2, s);
    const ULong2 inexact = __builtin_bit_cast(ULong2, rest * rest > 0), even = (bits & 1) - 1;
    const ULong2 toward_zero = (bits ^ __builtin_bit_cast(ULong2, rest)) >> 63;
    const ULong2 odd = bits + (inexact & even & (1 - 2 * toward_zero));
    const Float2 r = __builtin_convertvector(__builtin_bit_cast(Double2, odd), Float2);
    __builtin_memcpy(c.v + i, &r, sizeof r);
  }
#endif
  return c;
}
SAMOVAR_INLINE F max(F a, F b) {
  SAMOVAR_LANES b.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return b;
}
SAMOVAR_INLINE F min(F a, F b) {
  SAMOVAR_LANES b.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return b;
}
SAMOVAR_INLINE I as_int(F a) { // lane by lane: GCC 12 on aarch64 loses a cast of the whole array
  I r;
  SAMOVAR_LANES r.v[i] = __builtin_bit_cast(int32_t, a.v[i]);
  return r;
}
SAMOVAR_INLINE F as_float(I a) {
  F r;
  SAMOVAR_LANES r.v[i] = __builtin_bit_cast(float, a.v[i]);
  return r;
}
SAMOVAR_INLINE F select_lt(F a, F b, F yes, F no) { // chosen as integers, which keep every bit
  const I y = as_int(yes);
  I r = as_int(no);
  SAMOVAR_LANES r.v[i] = a.v[i] < b.v[i] ? y.v[i] : r.v[i];
  return as_float(r);
}

SAMOVAR_INLINE I iset1(int32_t x) {
  I r;
  SAMOVAR_LANES r.v[i] = x;
  return r;
}
SAMOVAR_INLINE I iload(const void* p) {
  I r;
  __builtin_memcpy(&r, p, sizeof r);
  return r;
}
SAMOVAR_INLINE void istore(void* p, I a) {
  __builtin_memcpy(p, &a, sizeof a);
}
SAMOVAR_INLINE I iadd(I a, I b) {
  SAMOVAR_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i]));
  return a;
}
SAMOVAR_INLINE I isub(I a, I b) {
  SAMOVAR_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i]));
  return a;
}
SAMOVAR_INLINE I iand(I a, I b) {
  SAMOVAR_LANES a.v[i] &= b.v[i];
  return a;
}
SAMOVAR_INLINE I ior(I a, I b) {
  SAMOVAR_LANES a.v[i] |= b.v[i];
  return a;
}
template <int n> SAMOVAR_INLINE I shl(I a) {
  SAMOVAR_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << n);
  return a;
}
template <int n> SAMOVAR_INLINE I shr(I a) {
  SAMOVAR_LANES a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> n);
  return a;
}
template <int n> SAMOVAR_INLINE I sra(I a) {
  SAMOVAR_LANES a.v[i] >>= n;
  return a;
}
SAMOVAR_INLINE F to_float(I a) {
  F r;
  SAMOVAR_LANES r.v[i] = static_cast<float>(a.v[i]);
  return r;
}
// Round to nearest even; for |x| < 2^22, which is all that callers need.
SAMOVAR_INLINE I to_int(F a) {
  constexpr float magic = 12582912.0f; // 1.5 * 2^23
  I r;
  SAMOVAR_LANES r.v[i] = __builtin_bit_cast(int32_t, a.v[i] + magic) - __builtin_bit_cast(int32_t, magic);
  return r;
}

SAMOVAR_INLINE float widen_f16(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00)
    return __builtin_bit_cast(float, sign | 0x7f800000 | rest << 13);
  if (rest < 0x400) { // subnormal: an integer times 2^-24
    const float x = static_cast<float>(static_cast<int32_t>(rest)) * 0x1p-24f;
    return sign ? -x : x;
  }
  return __builtin_bit_cast(float, sign | ((rest << 13) + (112u << 23)));
}
[[gnu::noinline]] F load_f16(const void* p) {
  uint16_t h[kLanes];
  __builtin_memcpy(h, p, sizeof h);
  F r;
  SAMOVAR_LANES r.v[i] = widen_f16(h[i]);
  return r;
}
SAMOVAR_INLINE I load_u8(const void* p) {
  I r;
  SAMOVAR_LANES r.v[i] = static_cast<const uint8_t*>(p)[i];
  return r;
}
SAMOVAR_INLINE I load_s8(const void* p) {
  I r;
  SAMOVAR_LANES r.v[i] = static_cast<const int8_t*>(p)[i];
  return r;
}
SAMOVAR_INLINE void store_s8(void* p, I a) {
  SAMOVAR_LANES static_cast<int8_t*>(p)[i] = static_cast<int8_t>(a.v[i]);
}

// Over the lanes of one vector; the order does not matter.
SAMOVAR_INLINE float max_of(F a) {
  float most = a.v[0];
  SAMOVAR_LANES most = a.v[i] > most ? a.v[i] : most;
  return most;
}
SAMOVAR_INLINE int32_t sum_of(I a) {
  int32_t sum = 0;
  SAMOVAR_LANES sum += a.v[i];
  return sum;
}
SAMOVAR_INLINE bool any_bit(I a) {
  int32_t any = 0;
  SAMOVAR_LANES any |= a.v[i];
  return any != 0;
}

// Sums of products of weight codes and the activations 4j..4j+3 of sixteen, which all lanes share.
// `step` counts the additions to one sum.
constexpr int kByteOffset = 128; // what remains in the codes of U8 after byte_codes
SAMOVAR_INLINE I byte_codes(I bytes) {
  return bytes;
}
template <int bits> struct Dot {
  I sum;
  Dot() = default;
  SAMOVAR_INLINE explicit Dot(I start) : sum(start) {}
  template <int step, int j> SAMOVAR_INLINE void add(I w, const int8_t* a) { sum = dot4(sum, w, a + 4 * j); }
  [[gnu::noinline]] static I dot4(I sum, I w, const int8_t* a) {
    const int32_t a0 = a[0], a1 = a[1], a2 = a[2], a3 = a[3];
    SAMOVAR_LANES {
      const uint32_t x = static_cast<uint32_t>(w.v[i]);
      sum.v[i] += static_cast<int32_t>(x & 255) * a0 + static_cast<int32_t>(x >> 8 & 255) * a1 +
                  static_cast<int32_t>(x >> 16 & 255) * a2 + static_cast<int32_t>(x >> 24) * a3;
    }
    return sum;
  }
  SAMOVAR_INLINE I total() const { return sum; }
};

#undef SAMOVAR_LANES

constexpr TileShape kQ8Tiles{
    .few_rows = 0, .stream_rows = 1, .stream_panels = 1, .rows = 2, .panels = 1, .parts = 1};
constexpr TileShape kByteTiles = kQ8Tiles;
constexpr Q8Slices kQ8Slices{};
constexpr TileShape kFloatTiles = kQ8Tiles;
constexpr TileShape kBf16Tiles = kQ8Tiles;
// Rows and vectors that attention computes at once, and the sums of bf16 products that registers hold.
constexpr int kAttendRows = 2, kAttendUnits = 1, kBf16Sums = 8;

} // namespace
} // namespace samovar::portable
