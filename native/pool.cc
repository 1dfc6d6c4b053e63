#include "pool.h"

#include "check.h"
#include "cpu.h"

#include <chrono>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace samovar {
namespace {

constexpr int kMaxThreads = 1024;

// A barrier between busy workers takes 0.2 us and the pause between two steps some 30 us, so this
// covers both; a wake-up from the futex costs 5 to 50 us.
constexpr int64_t kSpinNs = 40'000;
// With more threads than cores, the one that is waited for may need this very core.
constexpr int64_t kCrowdedSpinNs = 1'000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

} // namespace

Pool::Pool(int threads) : threads_(threads) {
  check(threads >= 1 && threads <= kMaxThreads, "threads: expected 1 to ", kMaxThreads, ", got ", threads);
  spin_ns_ = threads > usable_cores() ? kCrowdedSpinNs : kSpinNs;
  workers_.reserve(static_cast<size_t>(threads - 1));
  try {
    for (int worker = 1; worker < threads; ++worker)
      workers_.emplace_back([this, worker] { work(worker); });
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() {
  stop();
}

void Pool::stop() {
  stopping_ = true;
  advance(epoch_);
  for (std::thread& worker : workers_)
    worker.join();
}

void Pool::dispatch(Body call, const void* body) {
  const std::lock_guard turn(turn_);
  const FlushDenormals guard;
  if (threads_ > 1) {
    call_ = call;
    body_ = body;
    next_.store(0, std::memory_order_relaxed);
    advance(epoch_);
    call(body, 0);
    barrier([] {});
  } else {
    next_.store(0, std::memory_order_relaxed);
    call(body, 0);
  }
}

void Pool::work(int worker) {
  const FlushDenormals guard;
  for (uint32_t seen = 0;; ++seen) {
    wait(epoch_, seen);
    if (stopping_)
      return;
    call_(body_, worker);
    barrier([] {});
  }
}

// The order of word and sleepers, both sequentially consistent, makes sure that either the waker
// sees the sleeper or the sleeper sees the new word.
void Pool::advance(Signal& signal) {
  signal.word.fetch_add(1, std::memory_order_seq_cst);
  if (signal.sleepers.load(std::memory_order_seq_cst) > 0)
    futex(signal.word, FUTEX_WAKE_PRIVATE, kMaxThreads);
}

void Pool::wait(Signal& signal, uint32_t old) {
  const int64_t start = now_ns();
  for (int turn = 1; signal.word.load(std::memory_order_acquire) == old; ++turn) {
    pause();
    if (turn % 16 == 0 && now_ns() - start > spin_ns_) {
      signal.sleepers.fetch_add(1, std::memory_order_seq_cst);
      while (signal.word.load(std::memory_order_seq_cst) == old)
        futex(signal.word, FUTEX_WAIT_PRIVATE, old);
      signal.sleepers.fetch_sub(1, std::memory_order_relaxed);
      return;
    }
  }
}

} // namespace samovar
