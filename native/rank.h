// The order of tokens by value.
#pragma once

#include <bit>
#include <cstdint>

namespace samovar {

// Larger for a larger value; among equal values for the lower id.  All keys of a row differ.
inline uint64_t rank_key(float value, int32_t id) {
  const auto bits = std::bit_cast<uint32_t>(value == 0 ? 0.0f : value); // -0 is no less than 0
  const uint32_t ordered = bits & 0x80000000 ? ~bits : bits | 0x80000000;
  return static_cast<uint64_t>(ordered) << 32 | ~static_cast<uint32_t>(id);
}
inline int32_t ranked_id(uint64_t key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(key));
}
// The value of a key; -0 comes back as 0.
inline float ranked_value(uint64_t key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(ordered & 0x80000000 ? ordered & 0x7fffffff : ~ordered);
}

} // namespace samovar
