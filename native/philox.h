// Random numbers that depend on a key and a counter, and on nothing before them.
#pragma once

#include <cstdint>

namespace samovar {

// Four random words: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
struct PhiloxWords {
  uint32_t word[4];
};
PhiloxWords philox(uint64_t key, const PhiloxWords& counter);

} // namespace samovar
