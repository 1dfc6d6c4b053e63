#include "op.h"

#include <cstring>

namespace samovar {

void write_rounded_columns(const Step& step, const float* x, int count, const Buffer& out, int r,
                           int first_col) {
  uint8_t* row = step.row(out, r);
  uint8_t* end = nullptr; // of what was written
  bool finite = true;
  if (out.type == RowType::Q8) {
    auto* blocks = reinterpret_cast<Q8Block*>(row + q8_blocks_offset(out.cols)) + first_col / kBlock;
    finite = step.kernels->quantize_q8(x, count, reinterpret_cast<int8_t*>(row) + first_col, blocks);
    end = reinterpret_cast<uint8_t*>(blocks + count / kBlock);
  } else {
    alignas(64) uint8_t part[kMaxRoundedCols * 2]; // with padding, where the next columns may be
    finite = step.kernels->round_bf16(x, count, part);
    end = row + (first_col + count) * 2;
    std::memcpy(row + first_col * 2, part, static_cast<size_t>(count) * 2);
  }
  if (!finite)
    step.mark_bad(out.rows, r);
  if (first_col + count < out.cols)
    return;
  std::memset(end, 0, static_cast<size_t>(row + out.stride - end));
  if (out.type == RowType::Q8)
    std::memset(row + out.cols, 0, static_cast<size_t>(q8_blocks_offset(out.cols) - out.cols));
}

} // namespace samovar
