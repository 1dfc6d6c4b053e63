#include "../program.h"
#include "ops.h"

namespace samovar {
namespace {

class QkNorm final : public RowOp {
public:
  QkNorm(std::string origin, const Buffer& x, QkNormSpec spec)
      : RowOp("qk_norm", std::move(origin), x.rows, x.cols), x_(x), spec_(std::move(spec)) {}

private:
  void run_row(const Step& step, int row, uint8_t*) const noexcept override {
    float* head = step.floats(x_, row);
    for (int h = 0; h < spec_.heads + spec_.kv_heads; ++h, head += spec_.head_dim) {
      const float* weight = (h < spec_.heads ? spec_.q_weight : spec_.k_weight).data();
      step.kernels->rms_norm(head, weight, nullptr, spec_.head_dim, spec_.eps, head);
    }
  }

  Buffer x_;
  QkNormSpec spec_;
};

} // namespace

void add_qk_norm(Program& program, QkNormSpec spec) {
  Adding adding(program, "qk_norm", std::move(spec.origin));
  const Buffer x = adding.in_place("x", spec.x, RowType::F32);
  adding.require(spec.heads >= 1 && spec.kv_heads >= 1 && spec.head_dim >= 1,
                 "heads, kv_heads and head_dim must be at least 1");
  adding.columns("x", x, (int64_t{spec.heads} + 2 * int64_t{spec.kv_heads}) * spec.head_dim);
  const auto dim = static_cast<size_t>(spec.head_dim);
  adding.require(spec.q_weight.size() == dim, "q_weight: expected ", dim, " values, got ",
                 spec.q_weight.size());
  adding.require(spec.k_weight.size() == dim, "k_weight: expected ", dim, " values, got ",
                 spec.k_weight.size());
  adding.require(spec.eps >= 0 && spec.eps < 1, "eps: expected 0 to 1, got ", spec.eps);
  adding.finish(std::make_unique<QkNorm>(adding.origin(), x, std::move(spec)));
}

} // namespace samovar
