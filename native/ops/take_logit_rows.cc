#include "../program.h"
#include "ops.h"

#include <cstring>

namespace samovar {
namespace {

class TakeLogitRows final : public RowOp {
public:
  TakeLogitRows(std::string origin, const Buffer& x, const Buffer& out)
      : RowOp("take_logit_rows", std::move(origin), out.rows, out.cols), x_(x), out_(out) {}

private:
  void run_row(const Step& step, int row, uint8_t*) const noexcept override {
    const int token = step.logit_rows[static_cast<size_t>(row)];
    std::memcpy(step.row(out_, row), step.row(x_, token), static_cast<size_t>(out_.stride));
    // A program that ends here has nobody else to check its logits.
    if (out_.type == RowType::F32 && !step.kernels->all_finite(step.floats(out_, row), out_.cols))
      step.mark_bad(out_.rows, row);
  }

  Buffer x_, out_;
};

} // namespace

void add_take_logit_rows(Program& program, TakeLogitRowsSpec spec) {
  Adding adding(program, "take_logit_rows", std::move(spec.origin));
  const Buffer x = adding.input("x", spec.x);
  const Buffer out = adding.output("out", spec.out, x.type);
  adding.tokens_only("x", x);
  adding.require(out.rows == RowKind::Logits, "out: expected rows \"logits\"");
  adding.columns("out", out, x.cols);
  if (out.type == RowType::F32)
    adding.checks(spec.out);
  adding.finish(std::make_unique<TakeLogitRows>(adding.origin(), x, out));
}

} // namespace samovar
