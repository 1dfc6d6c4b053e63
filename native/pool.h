// The threads that run a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace samovar {

// A fixed team of threads; worker 0 is whoever calls `run`.  Waiting spins briefly, then sleeps on a
// futex: a team with more threads than cores stays usable, and an idle one costs nothing.  Every
// worker computes with FTZ and DAZ set.
class Pool {
public:
  explicit Pool(int threads);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  int threads() const { return threads_; }

  // Calls body(worker), which must not throw, on every worker; returns when all have returned.
  // Callers from several threads take turns.
  template <class Body> void run(const Body& body) {
    dispatch([](const void* b, int worker) { (*static_cast<const Body*>(b))(worker); }, &body);
  }

  // Calls body(item) for each item in [0, items), shared among the workers in no certain order.
  template <class Body> void each(int64_t items, const Body& body) {
    run([&](int) {
      for (int64_t item = claim(); item < items; item = claim())
        body(item);
    });
  }

  // The next number that nobody has claimed since the last barrier.  Only inside `run`.
  int64_t claim() { return next_.fetch_add(1, std::memory_order_relaxed); }

  // Waits until every worker is here.  The last one calls `serial` before anybody goes on.  Only
  // inside `run`.
  template <class Serial> void barrier(const Serial& serial) {
    const uint32_t generation = generation_.word.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      serial();
      arrived_.store(0, std::memory_order_relaxed);
      next_.store(0, std::memory_order_relaxed);
      advance(generation_);
    } else {
      wait(generation_, generation);
    }
  }

private:
  using Body = void (*)(const void* body, int worker);

  // A counter that threads wait on.
  struct alignas(64) Signal {
    std::atomic<uint32_t> word{0};
    std::atomic<int> sleepers{0};
  };

  void dispatch(Body call, const void* body);
  void work(int worker);
  void stop();
  void advance(Signal& signal);
  void wait(Signal& signal, uint32_t old);

  const int threads_;
  int64_t spin_ns_;
  std::vector<std::thread> workers_;
  std::mutex turn_; // held by the caller of `run`
  Body call_ = nullptr;
  const void* body_ = nullptr;
  bool stopping_ = false;
  Signal epoch_;      // advanced at each dispatch
  Signal generation_; // advanced at each barrier
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int64_t> next_{0};
};

} // namespace samovar
