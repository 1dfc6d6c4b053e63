// The threads that run a step.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace samovar {

// Work in phases, each of independent items.
class Job {
public:
  // Prepares the next phase and returns its number of items, 0 after the last.  Called first, and then
  // by whoever finished the last item of a phase; never by two workers at once.
  virtual int64_t next_phase(int worker) noexcept = 0;
  virtual void run(int64_t item, int worker) noexcept = 0;

protected:
  ~Job() = default;
};

// A fixed team of threads; worker 0 is whoever calls `run`.
//
// A phase ends when its items are done, not when every worker has come: one that the system has put
// aside delays no more than the item in its hands, and joins again wherever the work has got to.
// Waiting spins briefly, then sleeps on a futex, so that a team with more threads than cores stays
// usable, and an idle one costs nothing.  Every worker computes with FTZ and DAZ set.
class Pool {
public:
  explicit Pool(int threads);
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool();

  int threads() const { return threads_; }

  // Does a job; callers from several threads take turns.
  void run(Job& job);

  // Calls body(item, worker), which must not throw, for each item in [0, items), in no certain order.
  template <class Body> void each(int64_t items, const Body& body) {
    struct Each final : Job {
      Each(int64_t n, const Body& b) : items(n), body(b) {}
      int64_t next_phase(int) noexcept override { return std::exchange(items, 0); }
      void run(int64_t item, int worker) noexcept override { body(item, worker); }
      int64_t items;
      const Body& body;
    } job(items, body);
    run(job);
  }

  static constexpr int64_t kMaxItems = int64_t{1} << 31; // of a phase

  // The items that worker `w` begins with are those from here to where those of the next begin; when they are
  // done, it takes others'.
  static int64_t share_begin(int64_t items, int64_t w, int threads) { return items * w / threads; }
  static bool begins_share(int64_t item, int64_t items, int threads) {
    return share_begin(items, (item * threads + items - 1) / items, threads) == item;
  }

private:
  // The items of a phase that a worker has yet to do, [next, end) in one word: its owner takes from the
  // front, so that it walks through memory in order, and others, once they have none, from the back.  A
  // claim needs nothing else, so a worker that comes too late touches no job.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
  };

  void work(int worker);
  int64_t claim(int worker);
  void take_turn(int worker, uint32_t event);
  void open(int64_t items);
  void wait(uint32_t event);
  void stop();

  const int threads_;
  int64_t spin_ns_;
  std::vector<std::thread> workers_;
  std::mutex turn_; // held by the caller of `run`
  Job* job_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::vector<Share> shares_;                  // of each worker
  alignas(64) std::atomic<int64_t> items_{0};  // of the phase; none: no job
  alignas(64) std::atomic<int64_t> done_{0};   // items of the phase
  alignas(64) std::atomic<uint32_t> event_{0}; // advanced after each change that somebody may wait for
  std::atomic<int> sleepers_{0};
};

} // namespace samovar
