#include "limits.h"

#include "check.h"
#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

namespace samovar {
namespace {

constexpr int kMostStreams = 4;
constexpr int64_t kLine = 64;
constexpr int64_t kItemsPerThread = 8;
constexpr int kRounds = 4096;         // of products between two looks at the clock
constexpr double kItemSeconds = 1e-3; // long enough that handing out items costs nothing

using Words = uint64_t __attribute__((vector_size(16), may_alias));

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Reads `bytes` as streams side by side, fetched `ahead` bytes before; the result keeps the compiler from
// leaving that out.
template <int streams, int64_t ahead> uint64_t read_streams(const uint8_t* from, int64_t bytes) {
  Words sum[4] = {};
  for (int64_t at = 0; at < bytes / streams; at += kLine)
    for (int64_t stream = 0; stream < streams; ++stream) {
      const uint8_t* p = from + stream * (bytes / streams) + at;
      __builtin_prefetch(p + ahead, 0, 3);
      for (int i = 0; i < 4; ++i)
        sum[i] ^= *reinterpret_cast<const Words*>(p + i * 16);
    }
  sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
  return sum[0][0] ^ sum[0][1];
}

void check_seconds(double seconds) {
  check(seconds > 0 && seconds <= 60, "seconds: expected more than 0, at most 60, got ", seconds);
}

// work() again and again for about `seconds`, once without the clock before; what it adds up to in a second.
template <class Work> double per_second(double seconds, const Work& work) {
  work();
  double sum = 0, spent = 0;
  const double start = now();
  while (spent < seconds) {
    sum += static_cast<double>(work());
    spent = now() - start;
  }
  return sum / spent;
}

} // namespace

Limits::Limits(std::shared_ptr<Pool> pool, const Kernels& kernels, int64_t buffer_bytes)
    : pool_(std::move(pool)), kernels_(&kernels), buffer_bytes_(buffer_bytes) {
  check(buffer_bytes >= 1 << 20, "buffer_bytes: expected at least 1 MiB, got ", buffer_bytes);
  buffer_ = arena_.allocate(buffer_bytes);
  const int64_t items = pool_->threads() * kItemsPerThread, words = buffer_bytes / 8;
  pool_->each(items, [&](int64_t item, int) {
    for (int64_t i = words * item / items; i < words * (item + 1) / items; ++i) {
      const uint64_t bits = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u; // all zeros would be too easy
      std::memcpy(buffer_ + i * 8, &bits, 8);
    }
  });
}

double Limits::read_bytes_per_s(int64_t bytes, double seconds) {
  constexpr int64_t kStep = kMostStreams * kLine;
  const int64_t items = pool_->threads() * kItemsPerThread, slice = bytes / items / kStep * kStep;
  check(bytes <= buffer_bytes_ && slice > 0, "bytes: expected ", items * kStep, " to ", buffer_bytes_,
        ", got ", bytes);
  check_seconds(seconds);
  std::atomic<uint64_t> sink = 0;
  const auto rate = [&](auto read) {
    return per_second(seconds / 2, [&] {
      pool_->each(items, [&](int64_t item, int) {
        sink.fetch_xor(read(buffer_ + item * slice, slice), std::memory_order_relaxed);
      });
      return items * slice;
    });
  };
  // Which of them a processor reads faster differs.
  return std::max(rate(read_streams<kMostStreams, 2048>), rate(read_streams<1, 8192>));
}

double Limits::macs_per_s(RowType type, double seconds) {
  return products_per_s(kernels_->peak[static_cast<int>(type)], seconds);
}

double Limits::scaled_macs_per_s(double seconds) {
  return products_per_s(kernels_->peak_scaled, seconds);
}

double Limits::products_per_s(int64_t (*product)(int rounds), double seconds) {
  check_seconds(seconds);
  const int64_t items = pool_->threads() * kItemsPerThread;
  product(kRounds);
  const double start = now();
  product(kRounds);
  const auto times = std::max<int64_t>(1, static_cast<int64_t>(kItemSeconds / (now() - start)));
  return per_second(seconds, [&] {
    std::atomic<int64_t> macs = 0;
    pool_->each(items, [&](int64_t, int) {
      for (int64_t i = 0; i < times; ++i)
        macs.fetch_add(product(kRounds), std::memory_order_relaxed);
    });
    return macs.load();
  });
}

} // namespace samovar
