// Raw GGUF blocks into weight panels, and panels back into numbers.  Both are exact.
#pragma once

#include "dtype.h"

#include <string_view>

namespace samovar {

// A block format as it lies in a GGUF file, and the panel form that holds the same numbers.
struct BlockFormat {
  std::string_view name;
  int elements; // of a block
  int bytes;    // of a block
  Form form;
  // Writes the blocks that hold `k` weights of one row into a lane of a zeroed panel.
  void (*pack)(const uint8_t* blocks, int64_t k, int lane, uint8_t* panel);
};

// Null if there is no such format.
const BlockFormat* find_block_format(std::string_view name);
// The names of all of them, for messages.
const char* block_format_names();

// Writes the k weights of one lane of a panel.
void dequantize_lane(Form form, const uint8_t* panel, int lane, int64_t k, float* out);

} // namespace samovar
