// Weight matrices as the kernels read them.
#pragma once

#include "dtype.h"

#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace samovar {

class Arena;
class Pool;

// An immutable matrix [rows, cols] in panels.  It may be the concatenation of parts in different
// formats: each part is a segment that starts at a panel of its own; rows count on without gaps.
class Weight {
public:
  struct Segment {
    Form form;
    int first_row;
    int rows;
    const uint8_t* panels;
    int64_t panel_stride;
  };

  // One matrix of raw GGUF blocks.
  struct Part {
    const uint8_t* data;
    int64_t bytes;
    std::string_view format;
    int64_t rows;
  };

  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  // Repacks the parts exactly.  Throws std::invalid_argument if a size does not fit or the parts
  // want different kinds of input rows.
  static std::shared_ptr<const Weight> pack(std::span<const Part> parts, int64_t cols,
                                            const std::shared_ptr<Arena>& arena, Pool& pool);

  int rows() const { return rows_; }
  int cols() const { return cols_; }
  RowType input_type() const { return input_; }
  int64_t nbytes() const;
  std::span<const Segment> segments() const { return segments_; }

  // Writes the cols() values of one row, exactly.
  void dequantize_row(int row, float* out) const;

private:
  Weight() = default;

  int rows_ = 0;
  int cols_ = 0;
  RowType input_ = RowType::F32;
  std::vector<Segment> segments_;
  std::shared_ptr<Arena> arena_; // owns the panels
};

const char* row_type_name(RowType type);

} // namespace samovar
