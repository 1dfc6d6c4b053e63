// What the threads of a pool get from the machine at best: the limits of `samovar bench`.
#pragma once

#include "arena.h"
#include "kernels/kernels.h"

#include <memory>

namespace samovar {

class Pool;

class Limits {
public:
  // buffer_bytes: of memory to read, which is touched at once.
  Limits(std::shared_ptr<Pool> pool, const Kernels& kernels, int64_t buffer_bytes);

  // Bytes a second that all threads together read of the first `bytes` of the buffer, again and again for
  // about `seconds`, in the better of two orders.
  double read_bytes_per_s(int64_t bytes, double seconds);

  // Products (each with its addition) a second of all threads together, from registers.
  double macs_per_s(RowType type, double seconds);
  // The same of 8-bit products whose sums over 32 are scaled.
  double scaled_macs_per_s(double seconds);

private:
  double products_per_s(int64_t (*product)(int rounds), double seconds);

  std::shared_ptr<Pool> pool_;
  const Kernels* kernels_;
  Arena arena_;
  int64_t buffer_bytes_;
  uint8_t* buffer_;
};

} // namespace samovar
