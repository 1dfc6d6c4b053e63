#include "weight.h"

#include "arena.h"
#include "check.h"
#include "panels.h"
#include "pool.h"

#include <algorithm>

namespace samovar {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 28;
constexpr int64_t kMaxCols = int64_t{1} << 24;
// Columns packed lane after lane: all lanes of a piece stay in L1.  A multiple of each chunk.
constexpr int64_t kPieceCols = 512;
constexpr int64_t kItemPanels = 8;
static_assert(kMaxRows / kPanelRows / kItemPanels <= Pool::kMaxItems);

const BlockFormat& checked_format(const Weight::Part& part, size_t index, int64_t cols) {
  const BlockFormat* format = find_block_format(part.format);
  check(format != nullptr, "part ", index, ": format ", part.format, " is not one of ", block_format_names());
  check(part.rows >= 1 && part.rows <= kMaxRows, "part ", index, ": rows must be 1 to ", kMaxRows, ", got ",
        part.rows);
  check(cols % format->elements == 0, "part ", index, ": ", part.format, " needs a multiple of ",
        format->elements, " columns, got ", cols);
  const int64_t expected = part.rows * (cols / format->elements * format->bytes);
  check(part.bytes == expected, "part ", index, ": ", part.rows, " x ", cols, " in ", part.format, " is ",
        expected, " bytes, got ", part.bytes);
  return *format;
}

} // namespace

std::shared_ptr<const Weight> Weight::pack(std::span<const Part> parts, int64_t cols,
                                           const std::shared_ptr<Arena>& arena, Pool& pool) {
  check(!parts.empty(), "parts: at least one is needed");
  check(cols >= 1 && cols <= kMaxCols, "cols must be 1 to ", kMaxCols, ", got ", cols);
  std::vector<const BlockFormat*> formats;
  int64_t rows = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    formats.push_back(&checked_format(parts[i], i, cols));
    const RowType first = input_row(formats[0]->form), own = input_row(formats[i]->form);
    check(own == first, "part ", i, ": ", parts[i].format, " reads ", row_type_name(own),
          " rows, but part 0 (", parts[0].format, ") reads ", row_type_name(first), " rows");
    rows += parts[i].rows;
    check(rows <= kMaxRows, "rows of all parts: at most ", kMaxRows, ", got ", rows);
  }

  const std::shared_ptr<Weight> weight(new Weight);
  weight->rows_ = static_cast<int>(rows);
  weight->cols_ = static_cast<int>(cols);
  weight->input_ = input_row(formats[0]->form);
  weight->arena_ = arena;
  int first_row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const BlockFormat& format = *formats[i];
    const int64_t stride = panel_bytes(format.form, cols);
    const int64_t panels = round_up(parts[i].rows, kPanelRows) / kPanelRows;
    // Fresh memory is zero, as the padding of panels must be.
    uint8_t* to = arena->allocate(panels * stride);
    const auto part_rows = static_cast<int>(parts[i].rows);
    weight->segments_.push_back({format.form, first_row, part_rows, to, stride});
    const int64_t row_bytes = cols / format.elements * format.bytes;
    const auto pack_panel = [&, data = parts[i].data](int64_t panel) {
      const int64_t start = panel * kPanelRows;
      const int64_t lanes = std::min<int64_t>(kPanelRows, part_rows - start);
      for (int64_t k = 0; k < cols; k += kPieceCols) {
        const int64_t before = k / format.elements * format.bytes;
        uint8_t* chunks = to + panel * stride + panel_bytes(format.form, k);
        for (int lane = 0; lane < lanes; ++lane)
          format.pack(data + (start + lane) * row_bytes + before, std::min(kPieceCols, cols - k), lane,
                      chunks);
      }
    };
    pool.each((panels + kItemPanels - 1) / kItemPanels, [&](int64_t item, int) {
      const int64_t end = std::min((item + 1) * kItemPanels, panels);
      for (int64_t panel = item * kItemPanels; panel < end; ++panel)
        pack_panel(panel);
    });
    first_row += part_rows;
  }
  return weight;
}

int64_t Weight::nbytes() const {
  int64_t total = 0;
  for (const Segment& s : segments_)
    total += round_up(s.rows, kPanelRows) / kPanelRows * s.panel_stride;
  return total;
}

void Weight::dequantize_row(int row, float* out) const {
  const Segment* segment = &segments_[0];
  while (row >= segment->first_row + segment->rows)
    ++segment;
  const int local = row - segment->first_row;
  dequantize_lane(segment->form, segment->panels + local / kPanelRows * segment->panel_stride,
                  local % kPanelRows, cols_, out);
}

const char* row_type_name(RowType type) {
  return type == RowType::F32 ? "f32" : type == RowType::BF16 ? "bf16" : "q8";
}

} // namespace samovar
