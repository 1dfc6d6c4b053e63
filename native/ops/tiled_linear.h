// How a product of activations with a weight is cut into items.
#pragma once

#include "../program.h"
#include "../weight.h"

namespace samovar {

// A step is cut into tiles of panels x blocks of rows; all tiles of a block of rows come first, so
// that its activations stay in cache.  K is never cut.
class TiledLinear : public Op {
public:
  int64_t items(const Step& step, int phase) const noexcept override;
  void run(const Step& step, int phase, int64_t item, uint8_t* scratch) const noexcept override;

protected:
  static constexpr int kMaxTileRows = 128, kMaxTilePanels = 16;

  struct Tile {
    const Weight::Segment* segment;
    int first_row; // of the activations
    int rows;
    int first_panel; // of the segment
    int end_panel;
    bool cold; // whether no tile before called for its first weights

    int first_output() const { return segment->first_row + first_panel * kPanelRows; }
    int outputs() const { return std::min(end_panel * kPanelRows, segment->rows) - first_panel * kPanelRows; }
  };

  // tile_unit: tiles are a multiple of so many panels, as far as the segment goes.
  TiledLinear(const char* kind, std::string origin, Buffer x, std::shared_ptr<const Weight> weight,
              std::vector<float> bias, int tile_unit = 1);

  // Calls the kernel: outputs of the tile's rows, `out_stride` floats apart.
  void multiply(const Step& step, const Tile& tile, float* out, int64_t out_stride,
                const float* add = nullptr, int64_t add_stride = 0) const;

  const Weight& weight() const { return *weight_; }

private:
  struct Cut {
    int rows, units, row_blocks, tile_panels, tiles;

    // Of a block of rows: each has as many units as any other, or one more.
    int first_row(int block) const;
  };

  virtual void compute(const Step& step, const Tile& tile, uint8_t* scratch) const noexcept = 0;

  Cut cut_step(const Step& step) const;

  Buffer x_;
  std::shared_ptr<const Weight> weight_;
  std::vector<float> bias_;
  int tile_unit_;
  int panels_ = 0;
};

} // namespace samovar
