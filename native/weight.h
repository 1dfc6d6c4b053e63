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

// An immutable matrix [rows, cols] in panels: the concatenation of parts, which may differ in format, or two
// parts that alternate.  Rows of one format that fill their panels follow each other in one segment; others
// begin a new one.  Rows count on without gaps.
class Weight {
public:
  static constexpr int kAlternatingRows = 64;

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

  // Repacks the parts exactly; two that alternate, kAlternatingRows of each at a time, have one format and a
  // multiple of so many rows each.  Throws std::invalid_argument if a size does not fit or the parts want
  // different kinds of input rows.
  static std::shared_ptr<const Weight> pack(std::span<const Part> parts, int64_t cols, bool alternate,
                                            const std::shared_ptr<Arena>& arena, Pool& pool);

  int rows() const { return rows_; }
  int cols() const { return cols_; }
  RowType input_type() const { return input_; }
  bool alternates() const { return alternates_; }
  int64_t nbytes() const;
  std::span<const Segment> segments() const { return segments_; }

  // Writes the cols() values of one row, exactly.
  void dequantize_row(int row, float* out) const;

private:
  Weight() = default;

  int rows_ = 0;
  int cols_ = 0;
  RowType input_ = RowType::F32;
  bool alternates_ = false;
  std::vector<Segment> segments_;
  std::shared_ptr<Arena> arena_; // owns the panels
};

const char* row_type_name(RowType type);

} // namespace samovar
