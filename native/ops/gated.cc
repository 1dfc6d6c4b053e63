#include "activation.h"
#include "ops.h"

namespace samovar {
namespace {

class Gated final : public RowOp {
public:
  Gated(std::string origin, Buffer x, const GatedOutputs& outputs, Activation activation)
      : RowOp("gated", std::move(origin), x.rows, x.cols), x_(x), outputs_(outputs), activation_(activation) {
  }

  int64_t scratch_bytes() const override { return outputs_.out ? 0 : row_bytes(RowType::F32, x_.cols / 2); }

private:
  void run_row(const Step& step, int row, uint8_t* scratch) const noexcept override {
    const auto& [out, out_rows] = outputs_;
    const int n = x_.cols / 2;
    float* y = out ? step.floats(*out, row) : reinterpret_cast<float*>(scratch);
    gated_kernel(step, activation_)(step.floats(x_, row), n, n, y);
    if (out_rows)
      write_rounded(step, y, *out_rows, row);
  }

  Buffer x_;
  GatedOutputs outputs_;
  Activation activation_;
};

} // namespace

void add_gated(Program& program, GatedSpec spec) {
  Adding adding(program, "gated", std::move(spec.origin));
  const Buffer x = adding.input("x", spec.x, RowType::F32);
  const Activation activation = checked_activation(adding, spec.activation);
  adding.require(x.cols % 2 == 0, "x: expected gate and up side by side, got ", x.cols, " columns");
  const GatedOutputs outputs = gated_outputs(adding, spec.out, spec.out_rows, x, x.cols / 2);
  adding.finish(std::make_unique<Gated>(adding.origin(), x, outputs, activation));
}

} // namespace samovar
