#include "../program.h"
#include "../weight.h"
#include "ops.h"

#include <optional>

namespace samovar {
namespace {

// Panels that a kernel walks at once: streams for a few rows, tiles for more.
constexpr int kFewRows = 4;
constexpr int walk(int rows) {
  return rows <= kFewRows ? 4 : 2;
}
constexpr int kMaxTile = 16; // panels of an item at most
constexpr int kItemsPerThread = 8;
constexpr int kRowUnit = 8;                          // a multiple of the rows of most kernels' tiles
constexpr int kMinRowBlock = 32, kMaxRowBlock = 128; // rows of an item, if there are so many

// A step is cut into tiles of panels x blocks of rows; all tiles of a block of rows come first, so
// that its activations stay in cache.  K is never cut.
class Linear final : public Op {
public:
  struct Operands {
    Buffer x, out;
    std::optional<Buffer> add;
  };

  Linear(std::string origin, const Operands& operands, std::shared_ptr<const Weight> weight, int out_col,
         std::vector<float> bias)
      : Op("linear", std::move(origin)), operands_(operands), weight_(std::move(weight)), out_col_(out_col),
        bias_(std::move(bias)) {
    for (const Weight::Segment& segment : weight_->segments())
      panels_ += panels_of(segment);
  }

  int64_t items(const Step& step, int) const noexcept override {
    const Cut cut = cut_step(step);
    return cut.rows == 0 ? 0 : int64_t{cut.row_blocks} * cut.tiles;
  }

  void run(const Step& step, int, int64_t item, uint8_t*) const noexcept override {
    const Cut cut = cut_step(step);
    int tile = static_cast<int>(item % cut.tiles);
    const Weight::Segment* segment = &weight_->segments()[0];
    while (tile >= tiles_of(*segment, cut.tile_panels)) {
      tile -= tiles_of(*segment, cut.tile_panels);
      ++segment;
    }
    const int block = static_cast<int>(item / cut.tiles), first_row = cut.first_row(block);
    const int rows = std::min(cut.first_row(block + 1), cut.rows) - first_row;
    const int first = tile * cut.tile_panels;
    const int last = std::min(first + cut.tile_panels, panels_of(*segment));
    multiply(step, *segment, first_row, rows, first, last);
  }

private:
  struct Cut {
    int rows, units, row_blocks, tile_panels, tiles;

    // Of a block of rows: each has as many units as any other, or one more.
    int first_row(int block) const { return units * block / row_blocks * kRowUnit; }
  };

  static int panels_of(const Weight::Segment& segment) {
    return (segment.rows + kPanelRows - 1) / kPanelRows;
  }
  static int tiles_of(const Weight::Segment& segment, int tile_panels) {
    return (panels_of(segment) + tile_panels - 1) / tile_panels;
  }

  Cut cut_step(const Step& step) const {
    Cut cut{};
    cut.rows = step.num_rows(operands_.x.rows);
    cut.units = (cut.rows + kRowUnit - 1) / kRowUnit;
    const int fit = static_cast<int>(step.kernels->matmul_bytes / operands_.x.stride);
    const int most = std::clamp(fit, kMinRowBlock, kMaxRowBlock) / kRowUnit;
    cut.row_blocks = (cut.units + most - 1) / most;
    const int block_rows = cut.rows == 0 ? 0 : (cut.rows + cut.row_blocks - 1) / cut.row_blocks;
    const int64_t even = int64_t{panels_} * cut.row_blocks / (int64_t{step.threads} * kItemsPerThread);
    const int walked = walk(block_rows);
    cut.tile_panels = std::clamp(static_cast<int>(even) / walked * walked, walked, kMaxTile);
    for (const Weight::Segment& segment : weight_->segments())
      cut.tiles += tiles_of(segment, cut.tile_panels);
    return cut;
  }

  void multiply(const Step& step, const Weight::Segment& segment, int first_row, int rows, int first_panel,
                int end_panel) const {
    const auto& [x, out, add] = operands_;
    const int begin = first_panel * kPanelRows;
    const int column = segment.first_row + begin;
    MatmulArgs args{};
    args.x = step.row(x, first_row);
    args.x_stride = x.stride;
    args.rows = rows;
    args.k = weight_->cols();
    args.w = segment.panels + first_panel * segment.panel_stride;
    args.panel_stride = segment.panel_stride;
    args.n = std::min(end_panel * kPanelRows, segment.rows) - begin;
    args.panels_after = panels_of(segment) - end_panel;
    args.out = step.floats(out, first_row) + out_col_ + column;
    args.out_stride = out.stride / 4;
    args.bias = bias_.empty() ? nullptr : bias_.data() + column;
    if (add) {
      args.add = step.floats(*add, first_row) + out_col_ + column;
      args.add_stride = add->stride / 4;
    }
    step.kernels->matmul[static_cast<int>(segment.form)](args);
    if (out.rows == RowKind::Logits) // what becomes logits is checked while it is in cache
      for (int r = 0; r < rows; ++r)
        if (!step.kernels->all_finite(args.out + r * args.out_stride, args.n))
          step.mark_bad(out.rows, first_row + r);
  }

  Operands operands_;
  std::shared_ptr<const Weight> weight_;
  int out_col_;
  std::vector<float> bias_;
  int panels_ = 0;
};

} // namespace

void add_linear(Program& program, LinearSpec spec) {
  Adding adding(program, "linear", std::move(spec.origin));
  const Weight& weight = *spec.weight;
  Linear::Operands o{.x = adding.input("x", spec.x, weight.input_type()),
                     .out = adding.output("out", spec.out, spec.out_col, weight.rows(), {"add"}),
                     .add = {}};
  adding.columns("x", o.x, weight.cols());
  adding.require(o.out.type == RowType::F32, "out: expected f32 rows, got ", row_type_name(o.out.type));
  adding.same_rows(o.x, o.out);
  adding.require(spec.bias.empty() || spec.bias.size() == static_cast<size_t>(weight.rows()),
                 "bias: expected ", weight.rows(), " values, got ", spec.bias.size());
  if (spec.add != -1) {
    o.add = adding.input("add", spec.add, RowType::F32);
    adding.same_rows(o.x, *o.add);
    adding.columns("add", *o.add, o.out.cols);
  }
  if (o.out.rows == RowKind::Logits && weight.rows() == o.out.cols)
    adding.checks(spec.out);
  adding.finish(std::make_unique<Linear>(adding.origin(), o, std::move(spec.weight), spec.out_col,
                                         std::move(spec.bias)));
}

} // namespace samovar
