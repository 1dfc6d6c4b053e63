// Seeded inputs for the test programs: plain arithmetic, so that every machine makes the same bytes.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "../kernels/kernels.h"

namespace samovar::test {

class Random {
public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint32_t bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    const uint32_t x = static_cast<uint32_t>(state_ >> 33) ^ static_cast<uint32_t>(state_ >> 18);
    return x * 0x85ebca6bu ^ static_cast<uint32_t>(state_ >> 40);
  }
  int below(int n) { return static_cast<int>(bits() % static_cast<uint32_t>(n)); }
  // In [-1, 1), a multiple of 2^-23.
  float real() { return static_cast<float>(static_cast<int32_t>(bits()) >> 8) * 0x1p-23f; }
  // Like activations: most small, a few large.
  float activation() {
    const float x = real() * real();
    return below(50) == 0 ? x * 20 : x;
  }

private:
  uint64_t state_;
};

// 64-byte aligned bytes, zero at first.
class Buffer {
public:
  explicit Buffer(int64_t bytes)
      : size_(round_up(bytes, 64)), data_(static_cast<uint8_t*>(std::aligned_alloc(64, size_ + 64))) {
    std::memset(data_.get(), 0, size_ + 64);
  }
  template <class T> T* as() { return reinterpret_cast<T*>(data_.get()); }
  uint8_t* data() { return data_.get(); }
  int64_t size() const { return size_; }

private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  int64_t size_;
  std::unique_ptr<uint8_t, Free> data_;
};

constexpr const char* kFormNames[] = {
#define SAMOVAR_FORM(form, function) #form,
#include "../kernels/kernels.inc"
};

// A small f16: about 2^-7 .. 2^-4, either sign; now and then a subnormal or zero.
inline uint16_t small_f16(Random& random) {
  const uint32_t x = random.bits();
  if (x % 97 == 0)
    return static_cast<uint16_t>(x >> 8 & 0x83ff);
  return static_cast<uint16_t>((x & 0x83ff) | (8 + (x >> 16 & 3)) << 10);
}

// Fills panels of any form with random bits that are valid: every code, finite scales.
inline void fill_panels(Form form, uint8_t* p, int64_t bytes, Random& random) {
  const int64_t chunk = chunk_bytes(form);
  for (uint8_t* end = p + bytes; p < end; p += chunk) {
    if (form == Form::F32) {
      for (int i = 0; i < 1024; ++i)
        reinterpret_cast<float*>(p)[i] = random.real();
    } else if (form == Form::F16) {
      for (int i = 0; i < 1024; ++i)
        reinterpret_cast<uint16_t*>(p)[i] = small_f16(random);
    } else if (form == Form::BF16) {
      for (int i = 0; i < 1024; ++i) {
        const float x = random.real();
        std::memcpy(p + 2 * i, reinterpret_cast<const uint8_t*>(&x) + 2, 2);
      }
    } else {
      for (int64_t i = 0; i < chunk; ++i)
        p[i] = static_cast<uint8_t>(random.bits() >> 11);
      // The f16 scales stand at the end of a chunk; U6 has padding after them.
      const bool k256 = chunk_k(form) == 256;
      const int halves = form == Form::U6                                  ? 16
                         : !k256 && form != Form::U4m && form != Form::U5m ? 32
                         : k256                                            ? 32
                                                                           : 64;
      uint8_t* scales = p + chunk - halves * 2 - (form == Form::U6 ? 32 : 0);
      for (int i = 0; i < halves; ++i) {
        const uint16_t d = small_f16(random);
        std::memcpy(scales + 2 * i, &d, 2);
      }
    }
  }
}

// out = x . w: rows of k numbers, n outputs, nothing added.
inline MatmulArgs matmul_args(Buffer& x, int rows, Buffer& w, Form form, int k, int n, float* out,
                              int64_t out_stride) {
  MatmulArgs args{};
  args.x = x.data();
  args.x_stride = row_bytes(input_row(form), k);
  args.rows = rows;
  args.k = k;
  args.w = w.data();
  args.panel_stride = panel_bytes(form, k);
  args.n = n;
  args.out = out;
  args.out_stride = out_stride;
  return args;
}

} // namespace samovar::test
