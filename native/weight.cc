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

// Rows of one part that follow each other in the panels of a segment.
struct Run {
  const uint8_t* data;
  int64_t rows;
  const BlockFormat* format;
  int64_t first_panel = 0; // in the segment

  int64_t num_panels() const { return round_up(rows, kPanelRows) / kPanelRows; }
};

std::vector<Run> runs_of(std::span<const Weight::Part> parts,
                         const std::vector<const BlockFormat*>& formats) {
  std::vector<Run> runs;
  for (size_t i = 0; i < parts.size(); ++i)
    runs.push_back({parts[i].data, parts[i].rows, formats[i]});
  return runs;
}

std::vector<Run> alternating_runs(std::span<const Weight::Part> parts,
                                  const std::vector<const BlockFormat*>& formats) {
  constexpr int64_t kRows = Weight::kAlternatingRows;
  check(parts.size() == 2 && formats[0] == formats[1] && parts[0].rows == parts[1].rows &&
            parts[0].rows % kRows == 0,
        "parts: to alternate they must be two of one format, with the same multiple of ", kRows, " rows");
  std::vector<Run> runs;
  for (int64_t row = 0; row < parts[0].rows; row += kRows)
    for (const Weight::Part& part : parts)
      runs.push_back({part.data + part.bytes / part.rows * row, kRows, formats[0]});
  return runs;
}

// One lane after the other, a piece of k at a time.
void pack_panel(const Run& run, int64_t panel, int64_t cols, uint8_t* to) {
  const BlockFormat& format = *run.format;
  const int64_t row_bytes = cols / format.elements * format.bytes;
  const int64_t start = panel * kPanelRows, lanes = std::min<int64_t>(kPanelRows, run.rows - start);
  for (int64_t k = 0; k < cols; k += kPieceCols) {
    const int64_t before = k / format.elements * format.bytes;
    for (int lane = 0; lane < lanes; ++lane)
      format.pack(run.data + (start + lane) * row_bytes + before, std::min(kPieceCols, cols - k), lane,
                  to + panel_bytes(format.form, k));
  }
}

} // namespace

std::shared_ptr<const Weight> Weight::pack(std::span<const Part> parts, int64_t cols, bool alternate,
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
  weight->alternates_ = alternate;
  weight->arena_ = arena;
  std::vector<Run> runs = alternate ? alternating_runs(parts, formats) : runs_of(parts, formats);
  int64_t first_row = 0;
  for (size_t begin = 0, end; begin < runs.size(); begin = end) {
    const Form form = runs[begin].format->form;
    int64_t panels = 0, segment_rows = 0;
    for (end = begin; end < runs.size(); ++end) {
      if (runs[end].format != runs[begin].format || segment_rows % kPanelRows != 0)
        break;
      runs[end].first_panel = panels;
      panels += runs[end].num_panels();
      segment_rows += runs[end].rows;
    }
    const int64_t stride = panel_bytes(form, cols);
    // Fresh memory is zero, as the padding of panels must be.
    uint8_t* to = arena->allocate(panels * stride);
    const std::span<const Run> own(runs.data() + begin, end - begin);
    pool.each((panels + kItemPanels - 1) / kItemPanels, [&](int64_t item, int) {
      const int64_t last = std::min((item + 1) * kItemPanels, panels);
      for (int64_t panel = item * kItemPanels; panel < last; ++panel) {
        const auto after =
            std::ranges::upper_bound(own, panel, {}, [](const Run& run) { return run.first_panel; });
        const Run& run = *(after - 1);
        pack_panel(run, panel - run.first_panel, cols, to + panel * stride);
      }
    });
    weight->segments_.push_back(
        {form, static_cast<int>(first_row), static_cast<int>(segment_rows), to, stride});
    first_row += segment_rows;
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
