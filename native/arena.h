// Memory that lives as long as its arena: packed weights, activations.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace samovar {

// Hands out zeroed, 64-byte aligned memory from 2 MiB-aligned slabs that ask for huge pages.  A page
// is touched only as it is used, so what is handed out late costs nothing early.  Thread-safe.
class Arena {
public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // Throws std::bad_alloc when the address space cannot be had.
  uint8_t* allocate(int64_t bytes);

  // Bytes handed out so far.
  int64_t nbytes() const;

private:
  struct Slab {
    void* mapping;
    int64_t mapped;
  };

  mutable std::mutex mutex_;
  std::vector<Slab> slabs_;
  uint8_t* free_ = nullptr; // the unused end of the newest slab that is shared
  int64_t free_bytes_ = 0;
  int64_t nbytes_ = 0;
};

} // namespace samovar
