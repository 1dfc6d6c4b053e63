#include "activation.h"
#include "ops.h"
#include "tiled_linear.h"

namespace samovar {
namespace {

constexpr int kGroup = Weight::kAlternatingRows; // outputs of gate that follow each other, then as many of up

// Gate and up of a column are outputs of one tile: they go no further than its cache.
class GatedLinear final : public TiledLinear {
public:
  GatedLinear(std::string origin, Buffer x, const GatedOutputs& outputs, std::shared_ptr<const Weight> weight,
              Activation activation, std::vector<float> bias)
      : TiledLinear("gated_linear", std::move(origin), x, std::move(weight), std::move(bias),
                    2 * kGroup / kPanelRows),
        outputs_(outputs), activation_(activation) {}

  int64_t scratch_bytes() const override { return kMaxTileRows * kMaxOutputs * 4; }

private:
  static constexpr int kMaxOutputs = kMaxTilePanels * kPanelRows;
  static_assert(kMaxOutputs / 2 <= kMaxRoundedCols);

  void compute(const Step& step, const Tile& tile, uint8_t* scratch) const noexcept override {
    auto* products = reinterpret_cast<float*>(scratch);
    const int cols = tile.outputs() / 2, first_col = tile.first_output() / 2;
    multiply(step, tile, products, 2 * cols);
    gated_kernel(step, activation_)(products, kGroup, tile.rows * cols, products);
    for (int r = 0; r < tile.rows; ++r) {
      const int row = tile.first_row + r;
      const float* y = products + r * cols;
      if (outputs_.out)
        std::copy_n(y, cols, step.floats(*outputs_.out, row) + first_col);
      if (outputs_.out_rows)
        write_rounded_columns(step, y, cols, *outputs_.out_rows, row, first_col);
    }
  }

  GatedOutputs outputs_;
  Activation activation_;
};

// In the order of the weight's rows.
std::vector<float> alternated(const std::vector<float>& bias) {
  std::vector<float> result;
  const size_t half = bias.size() / 2;
  for (size_t i = 0; i < half; i += kGroup)
    for (const size_t first : {i, half + i})
      result.insert(result.end(), bias.begin() + static_cast<std::ptrdiff_t>(first),
                    bias.begin() + static_cast<std::ptrdiff_t>(first + kGroup));
  return result;
}

} // namespace

void add_gated_linear(Program& program, GatedLinearSpec spec) {
  Adding adding(program, "gated_linear", std::move(spec.origin));
  const Weight& weight = *spec.weight;
  adding.require(weight.alternates(), "weight: expected gate and up that alternate");
  const Buffer x = adding.input("x", spec.x, weight.input_type());
  adding.columns("x", x, weight.cols());
  const Activation activation = checked_activation(adding, spec.activation);
  adding.require(spec.bias.empty() || spec.bias.size() == static_cast<size_t>(weight.rows()),
                 "bias: expected ", weight.rows(), " values, got ", spec.bias.size());
  const GatedOutputs outputs = gated_outputs(adding, spec.out, spec.out_rows, x, weight.rows() / 2);
  adding.finish(std::make_unique<GatedLinear>(adding.origin(), x, outputs, std::move(spec.weight), activation,
                                              alternated(spec.bias)));
}

} // namespace samovar
