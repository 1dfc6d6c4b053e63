#include "../program.h"
#include "ops.h"

#include <optional>

namespace samovar {
namespace {

class RmsNorm final : public RowOp {
public:
  struct Operands {
    Buffer x;
    std::optional<Buffer> add, out, out_rows;
  };

  RmsNorm(std::string origin, const Operands& operands, std::vector<float> weight, float eps)
      : RowOp("rms_norm", std::move(origin), operands.x.rows, operands.x.cols), operands_(operands),
        weight_(std::move(weight)), eps_(eps) {}

  int64_t scratch_bytes() const override {
    return operands_.out ? 0 : row_bytes(RowType::F32, operands_.x.cols);
  }

private:
  void run_row(const Step& step, int row, uint8_t* scratch) const noexcept override {
    const auto& [x, add, out, out_rows] = operands_;
    float* y = out ? step.floats(*out, row) : reinterpret_cast<float*>(scratch);
    step.kernels->rms_norm(step.floats(x, row), weight_.empty() ? nullptr : weight_.data(),
                           add ? step.floats(*add, row) : nullptr, x.cols, eps_, y);
    if (out_rows)
      write_rounded(step, y, *out_rows, row);
  }

  Operands operands_;
  std::vector<float> weight_;
  float eps_;
};

} // namespace

void add_rms_norm(Program& program, RmsNormSpec spec) {
  Adding adding(program, "rms_norm", std::move(spec.origin));
  RmsNorm::Operands o{.x = adding.input("x", spec.x, RowType::F32), .add = {}, .out = {}, .out_rows = {}};
  adding.require(spec.weight.empty() || spec.weight.size() == static_cast<size_t>(o.x.cols),
                 "weight: expected ", o.x.cols, " values, got ", spec.weight.size());
  adding.require(spec.eps >= 0 && spec.eps < 1, "eps: expected 0 to 1, got ", spec.eps);
  adding.require(spec.out != -1 || spec.out_rows != -1, "neither out nor out_rows is given");
  if (spec.add != -1)
    o.add = adding.input("add", spec.add, RowType::F32);
  if (spec.out != -1)
    o.out = adding.output("out", spec.out, RowType::F32, {"x", "add"});
  if (spec.out_rows != -1)
    o.out_rows = adding.rounded_output("out_rows", spec.out_rows);
  for (const auto& [name, operand] : {std::pair{"add", o.add}, {"out", o.out}, {"out_rows", o.out_rows}}) {
    if (!operand)
      continue;
    adding.same_rows(o.x, *operand);
    adding.columns(name, *operand, o.x.cols);
  }
  adding.finish(std::make_unique<RmsNorm>(adding.origin(), o, std::move(spec.weight), spec.eps));
}

} // namespace samovar
