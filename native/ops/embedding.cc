#include "../program.h"
#include "../weight.h"
#include "ops.h"

namespace samovar {
namespace {

class Embedding final : public RowOp {
public:
  Embedding(std::string origin, std::shared_ptr<const Weight> weight, const Buffer& out, float scale)
      : RowOp("embedding", std::move(origin), out.rows, out.cols), weight_(std::move(weight)), out_(out),
        scale_(scale) {}

private:
  void run_row(const Step& step, int row, uint8_t*) const noexcept override {
    float* out = step.floats(out_, row);
    weight_->dequantize_row(step.tokens[static_cast<size_t>(row)], out);
    if (scale_ != 1.0f)
      step.kernels->scale(out, scale_, out_.cols, out);
  }

  std::shared_ptr<const Weight> weight_;
  Buffer out_;
  float scale_;
};

} // namespace

void add_embedding(Program& program, EmbeddingSpec spec) {
  Adding adding(program, "embedding", std::move(spec.origin));
  adding.require(!spec.weight->alternates(), "weight: its parts alternate, as only gated_linear reads them");
  const Buffer out = adding.output("out", spec.out, RowType::F32);
  adding.tokens_only("out", out);
  adding.columns("out", out, spec.weight->cols());
  adding.set_vocab(spec.weight->rows());
  adding.finish(std::make_unique<Embedding>(adding.origin(), std::move(spec.weight), out, spec.scale));
}

} // namespace samovar
