#include "ops.h"
#include "tiled_linear.h"

#include <optional>

namespace samovar {
namespace {

class Linear final : public TiledLinear {
public:
  struct Operands {
    Buffer x, out;
    std::optional<Buffer> add;
  };

  Linear(std::string origin, const Operands& operands, std::shared_ptr<const Weight> weight, int out_col,
         std::vector<float> bias)
      : TiledLinear("linear", std::move(origin), operands.x, std::move(weight), std::move(bias)),
        operands_(operands), out_col_(out_col) {}

private:
  void compute(const Step& step, const Tile& tile, uint8_t*) const noexcept override {
    const auto& [x, out, add] = operands_;
    const int column = out_col_ + tile.first_output();
    float* to = step.floats(out, tile.first_row) + column;
    const int64_t stride = out.stride / 4;
    if (add)
      multiply(step, tile, to, stride, step.floats(*add, tile.first_row) + column, add->stride / 4);
    else
      multiply(step, tile, to, stride);
    if (out.rows == RowKind::Logits) // what becomes logits is checked while it is in cache
      for (int r = 0; r < tile.rows; ++r)
        if (!step.kernels->all_finite(to + r * stride, tile.outputs()))
          step.mark_bad(out.rows, tile.first_row + r);
  }

  Operands operands_;
  int out_col_;
};

} // namespace

void add_linear(Program& program, LinearSpec spec) {
  Adding adding(program, "linear", std::move(spec.origin));
  const Weight& weight = *spec.weight;
  adding.require(!weight.alternates(), "weight: its parts alternate, as only gated_linear reads them");
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
