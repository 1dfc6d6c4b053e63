#include "../program.h"
#include "ops.h"

#include <optional>

namespace samovar {
namespace {

enum class Activation { Silu, GeluTanh };

class Gated final : public RowOp {
public:
  struct Operands {
    Buffer x;
    std::optional<Buffer> out, out_rows;
  };

  Gated(std::string origin, const Operands& operands, Activation activation)
      : RowOp("gated", std::move(origin), operands.x.rows, operands.x.cols), operands_(operands),
        activation_(activation) {}

  int64_t scratch_bytes() const override {
    return operands_.out ? 0 : row_bytes(RowType::F32, operands_.x.cols / 2);
  }

private:
  void run_row(const Step& step, int row, uint8_t* scratch) const noexcept override {
    const auto& [x, out, out_rows] = operands_;
    const int n = x.cols / 2;
    const float* gate = step.floats(x, row);
    float* y = out ? step.floats(*out, row) : reinterpret_cast<float*>(scratch);
    const auto kernel =
        activation_ == Activation::Silu ? step.kernels->silu_mul : step.kernels->gelu_tanh_mul;
    kernel(gate, gate + n, n, y);
    if (out_rows)
      write_rounded(step, y, *out_rows, row);
  }

  Operands operands_;
  Activation activation_;
};

} // namespace

void add_gated(Program& program, GatedSpec spec) {
  Adding adding(program, "gated", std::move(spec.origin));
  Gated::Operands o{.x = adding.input("x", spec.x, RowType::F32), .out = {}, .out_rows = {}};
  adding.require(spec.activation == "silu" || spec.activation == "gelu_tanh",
                 "activation: expected silu or gelu_tanh, got ", spec.activation);
  adding.require(o.x.cols % 2 == 0, "x: expected gate and up side by side, got ", o.x.cols, " columns");
  adding.require(spec.out != -1 || spec.out_rows != -1, "neither out nor out_rows is given");
  if (spec.out != -1)
    o.out = adding.output("out", spec.out, RowType::F32);
  if (spec.out_rows != -1)
    o.out_rows = adding.rounded_output("out_rows", spec.out_rows);
  for (const auto& [name, operand] : {std::pair{"out", o.out}, {"out_rows", o.out_rows}}) {
    if (!operand)
      continue;
    adding.same_rows(o.x, *operand);
    adding.columns(name, *operand, o.x.cols / 2);
  }
  const Activation activation = spec.activation == "silu" ? Activation::Silu : Activation::GeluTanh;
  adding.finish(std::make_unique<Gated>(adding.origin(), o, activation));
}

} // namespace samovar
