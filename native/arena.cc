#include "arena.h"

#include "dtype.h"

#include <new>
#include <sys/mman.h>

namespace samovar {
namespace {

constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kSlab = int64_t{64} << 20;

} // namespace

Arena::~Arena() {
  for (const Slab& slab : slabs_)
    munmap(slab.mapping, static_cast<size_t>(slab.mapped));
}

uint8_t* Arena::allocate(int64_t bytes) {
  if (bytes < 0 || bytes > (int64_t{1} << 46))
    throw std::bad_alloc();
  bytes = round_up(bytes, 64);
  const std::lock_guard lock(mutex_);
  if (bytes > free_bytes_) {
    // One huge page more than asked, so that the slab can start on a boundary.
    const int64_t slab = round_up(bytes > kSlab ? bytes : kSlab, kHugePage);
    const int64_t mapped = slab + kHugePage;
    slabs_.reserve(slabs_.size() + 1);
    void* mapping = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
      throw std::bad_alloc();
    slabs_.push_back({mapping, mapped});
    auto* start = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<int64_t>(mapping), kHugePage));
    madvise(start, static_cast<size_t>(slab), MADV_HUGEPAGE); // a wish: refusal changes only the speed
    if (slab - bytes < free_bytes_) {
      // The older slab has more room left: keep filling that one.
      nbytes_ += bytes;
      return start;
    }
    free_ = start;
    free_bytes_ = slab;
  }
  uint8_t* result = free_;
  free_ += bytes;
  free_bytes_ -= bytes;
  nbytes_ += bytes;
  return result;
}

int64_t Arena::nbytes() const {
  const std::lock_guard lock(mutex_);
  return nbytes_;
}

} // namespace samovar
