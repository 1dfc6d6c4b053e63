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

// The step from phase to phase takes 0.2 us, and what one worker does alone between two of them some more; a
// wake-up from the futex costs 5 to 50 us.  The pause between two steps is longer, but others want the core
// then.
constexpr int64_t kSpinNs = 40'000;
// With more threads than cores, the one that is waited for may need this very core.
constexpr int64_t kCrowdedSpinNs = 1'000;

// A share: 32 bits of its end, 32 bits of the next item.
constexpr uint64_t kOneFromTheBack = uint64_t{1} << 32;
uint64_t share_of(int64_t next, int64_t end) {
  return static_cast<uint64_t>(end) << 32 | static_cast<uint64_t>(next);
}
int64_t end_of(uint64_t share) {
  return static_cast<int64_t>(share >> 32);
}
int64_t next_of(uint64_t share) {
  return static_cast<int64_t>(share & 0xffffffff);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

int64_t now_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, nullptr, nullptr, 0);
}

} // namespace

Pool::Pool(int threads) : threads_(threads) {
  check(threads >= 1 && threads <= kMaxThreads, "threads: expected 1 to ", kMaxThreads, ", got ", threads);
  shares_ = std::vector<Share>(static_cast<size_t>(threads));
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
  stopping_.store(true, std::memory_order_release);
  open(0);
  for (std::thread& worker : workers_)
    worker.join();
}

void Pool::run(Job& job) {
  const std::lock_guard turn(turn_);
  const FlushDenormals guard;
  if (threads_ == 1) {
    while (const int64_t items = job.next_phase(0))
      for (int64_t item = 0; item < items; ++item)
        job.run(item, 0);
    return;
  }
  job_ = &job;
  open(job.next_phase(0));
  for (;;) {
    const uint32_t event = event_.load(std::memory_order_acquire);
    if (items_.load(std::memory_order_acquire) == 0)
      return;
    take_turn(0, event);
  }
}

void Pool::work(int worker) {
  const FlushDenormals guard;
  for (;;) {
    const uint32_t event = event_.load(std::memory_order_acquire);
    if (stopping_.load(std::memory_order_acquire))
      return;
    take_turn(worker, event);
  }
}

// Does one item, or waits for an event after `event` if nobody is needed now.  The event was read
// before what it announces: whatever changes after that reading makes a newer one.
void Pool::take_turn(int worker, uint32_t event) {
  const int64_t item = claim(worker);
  if (item < 0)
    return wait(event);
  // Read now: once the item is done, they may be another phase's.
  const int64_t items = items_.load(std::memory_order_relaxed);
  job_->run(item, worker);
  if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == items)
    open(job_->next_phase(worker));
}

// An item that is this worker's from now on, or -1 if all are taken.  Whatever changes a share between a
// reading and the claim, the claim is of what the share holds at that moment: an item of the present phase.
int64_t Pool::claim(int worker) {
  const auto some_left = [](uint64_t share) { return next_of(share) < end_of(share); };
  std::atomic<uint64_t>& own = shares_[static_cast<size_t>(worker)].left;
  if (some_left(own.load(std::memory_order_acquire))) {
    const uint64_t share = own.fetch_add(1, std::memory_order_acq_rel);
    if (some_left(share))
      return next_of(share);
  }
  for (int i = 1; i < threads_; ++i) {
    std::atomic<uint64_t>& other = shares_[static_cast<size_t>((worker + i) % threads_)].left;
    uint64_t share = other.load(std::memory_order_acquire);
    while (some_left(share))
      if (other.compare_exchange_weak(share, share - kOneFromTheBack, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
        return end_of(share) - 1;
  }
  return -1;
}

// The order of event and sleepers, both sequentially consistent, makes sure that either this sees
// the sleeper or the sleeper sees the new event.
void Pool::open(int64_t items) {
  done_.store(0, std::memory_order_relaxed);
  items_.store(items, std::memory_order_release);
  // No items end the job: its caller may go on at once and open another, so the shares, which are used up,
  // are not touched any more.  Otherwise the last one holds an item: nothing can end before it is written.
  for (int64_t w = 0; items > 0 && w < threads_; ++w)
    shares_[static_cast<size_t>(w)].left.store(
        share_of(share_begin(items, w, threads_), share_begin(items, w + 1, threads_)),
        std::memory_order_release);
  event_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0)
    futex(event_, FUTEX_WAKE_PRIVATE, kMaxThreads);
}

void Pool::wait(uint32_t event) {
  const int64_t start = now_ns();
  for (int turn = 1; event_.load(std::memory_order_acquire) == event; ++turn) {
    pause();
    if (turn % 16 != 0 || now_ns() - start < spin_ns_)
      continue;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (event_.load(std::memory_order_seq_cst) == event)
      futex(event_, FUTEX_WAIT_PRIVATE, event);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
    return;
  }
}

} // namespace samovar
