#include "tiled_linear.h"

#include "../pool.h"

namespace samovar {
namespace {

// Panels that a kernel walks at once: streams for a few rows, tiles for more.
constexpr int kFewRows = 4;
constexpr int walk(int rows) {
  return rows <= kFewRows ? 4 : 2;
}
constexpr int kItemsPerThread = 8;
constexpr int kRowUnit = 8;      // a multiple of the rows of most kernels' tiles
constexpr int kMinRowBlock = 32; // rows of an item, if there are so many

int panels_of(const Weight::Segment& segment) {
  return (segment.rows + kPanelRows - 1) / kPanelRows;
}
int tiles_of(const Weight::Segment& segment, int tile_panels) {
  return (panels_of(segment) + tile_panels - 1) / tile_panels;
}

} // namespace

TiledLinear::TiledLinear(const char* kind, std::string origin, Buffer x, std::shared_ptr<const Weight> weight,
                         std::vector<float> bias, int tile_unit)
    : Op(kind, std::move(origin)), x_(x), weight_(std::move(weight)), bias_(std::move(bias)),
      tile_unit_(tile_unit) {
  for (const Weight::Segment& segment : weight_->segments())
    panels_ += panels_of(segment);
}

int TiledLinear::Cut::first_row(int block) const {
  return units * block / row_blocks * kRowUnit;
}

TiledLinear::Cut TiledLinear::cut_step(const Step& step) const {
  Cut cut{};
  cut.rows = step.num_rows(x_.rows);
  cut.units = (cut.rows + kRowUnit - 1) / kRowUnit;
  const int fit = static_cast<int>(step.kernels->matmul_bytes / x_.stride);
  const int most = std::clamp(fit, kMinRowBlock, kMaxTileRows) / kRowUnit;
  cut.row_blocks = (cut.units + most - 1) / most;
  const int block_rows = cut.rows == 0 ? 0 : (cut.rows + cut.row_blocks - 1) / cut.row_blocks;
  const int64_t even = int64_t{panels_} * cut.row_blocks / (int64_t{step.threads} * kItemsPerThread);
  const int unit = std::max(walk(block_rows), tile_unit_);
  cut.tile_panels = static_cast<int>(std::clamp<int64_t>(even / unit * unit, unit, kMaxTilePanels));
  for (const Weight::Segment& segment : weight_->segments())
    cut.tiles += tiles_of(segment, cut.tile_panels);
  return cut;
}

int64_t TiledLinear::items(const Step& step, int) const noexcept {
  const Cut cut = cut_step(step);
  return cut.rows == 0 ? 0 : int64_t{cut.row_blocks} * cut.tiles;
}

void TiledLinear::run(const Step& step, int, int64_t item, uint8_t* scratch) const noexcept {
  const Cut cut = cut_step(step);
  int index = static_cast<int>(item % cut.tiles);
  const Weight::Segment* segment = &weight_->segments()[0];
  while (index >= tiles_of(*segment, cut.tile_panels)) {
    index -= tiles_of(*segment, cut.tile_panels);
    ++segment;
  }
  const int block = static_cast<int>(item / cut.tiles), first_row = cut.first_row(block);
  const int first_panel = index * cut.tile_panels;
  const bool cold = index == 0 || Pool::begins_share(item, int64_t{cut.row_blocks} * cut.tiles, step.threads);
  compute(step,
          {.segment = segment,
           .first_row = first_row,
           .rows = std::min(cut.first_row(block + 1), cut.rows) - first_row,
           .first_panel = first_panel,
           .end_panel = std::min(first_panel + cut.tile_panels, panels_of(*segment)),
           .cold = cold},
          scratch);
}

void TiledLinear::multiply(const Step& step, const Tile& tile, float* out, int64_t out_stride,
                           const float* add, int64_t add_stride) const {
  const Weight::Segment& segment = *tile.segment;
  MatmulArgs args{};
  args.x = step.row(x_, tile.first_row);
  args.x_stride = x_.stride;
  args.rows = tile.rows;
  args.k = weight_->cols();
  args.w = segment.panels + tile.first_panel * segment.panel_stride;
  args.panel_stride = segment.panel_stride;
  args.n = tile.outputs();
  args.panels_after = panels_of(segment) - tile.end_panel;
  args.cold = tile.cold;
  args.out = out;
  args.out_stride = out_stride;
  args.bias = bias_.empty() ? nullptr : bias_.data() + tile.first_output();
  args.add = add;
  args.add_stride = add_stride;
  step.kernels->matmul[static_cast<int>(segment.form)](args);
}

} // namespace samovar
